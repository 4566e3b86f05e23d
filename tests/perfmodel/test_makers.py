"""Constants of CPUs by their maker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amos import machines
from amos.errors import MachineError
from amos.perfmodel import Costs, as_fitted

XEON = machines.get("xeon_6240")


def test_measured_cpus_have_the_constants_of_their_maker() -> None:
    intel = as_fitted(replace(XEON, source="measured on Intel(R) Xeon(R) Processor"))
    assert intel.costs != Costs()
    assert intel.exchange > 0
    other = replace(XEON, source="measured on AMD EPYC")
    assert as_fitted(other) == other
    # A described machine is what its file says.
    assert as_fitted(XEON) == XEON


def test_a_measured_exchange_is_kept() -> None:
    known = replace(XEON, source="measured on Intel", exchange=1e-9)
    assert as_fitted(known).exchange == 1e-9


def test_a_negative_exchange_is_refused() -> None:
    with pytest.raises(MachineError, match="exchange is negative: -1"):
        replace(XEON, exchange=-1.0)
