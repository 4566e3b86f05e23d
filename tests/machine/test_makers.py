"""Constants of CPUs by their maker."""

from __future__ import annotations

import pytest

from amos import machines
from amos.machine import Costs, fitted
from amos.machine.makers import FITTED


@pytest.mark.parametrize("name", ["xeon_4110", "xeon_6240"])
def test_described_cpus_have_the_constants_of_their_maker(name: str) -> None:
    assert machines.get(name).costs == FITTED["GenuineIntel"]


@pytest.mark.parametrize("name", ["mali_g76", "vta_pynq", "a100"])
def test_what_is_no_cpu_has_constants_that_leave_every_term_out(name: str) -> None:
    assert machines.get(name).costs == fitted("") == Costs()


def test_a_cpu_of_an_unknown_maker_is_no_machine_without_costs() -> None:
    assert fitted("VIA VIA VIA") == FITTED["AuthenticAMD"]
