"""Machines with queues of instructions, as data."""

from __future__ import annotations

from dataclasses import replace

import pytest

import amos
from amos.errors import MachineError
from amos.machine.catalogue import from_toml
from amos.machine.stream_unit import StreamUnit
from amos.records.canonical import machine_from, machine_values

PYNQ = amos.machines.get("vta_pynq")
TEXT = """
name = "mine"
source = "test"
cores = 1
clock = 2e8
[[level]]
name = "DRAM"
capacity = 0
units = 1
read_bandwidth = 1e9
write_bandwidth = 1e9
[peak.vta_gemm_m1n16k16_s8_s32]
latency = 1e-8
interval = 5e-9
[stream]
encoding = "{}"
micro_ops = {}
instructions = 4096
"""


def test_a_machine_of_ones_own() -> None:
    unit = from_toml(TEXT.format("vta", 512)).stream
    assert unit == StreamUnit(encoding="vta", micro_ops=512, instructions=4096, issue=1)


def test_it_is_shown() -> None:
    message = "streams of vta instructions, at most 262,144; room for 8,192 micro-operations"
    assert message in str(PYNQ)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("gemmini", 512), "encoding: expected vta or calls, got 'gemmini'"),
        (("vta", 0), "micro_ops: expected 1 or more, got 0"),
    ],
)
def test_what_is_no_unit(values: tuple[str, int], message: str) -> None:
    with pytest.raises(MachineError, match=message):
        from_toml(TEXT.format(*values))
    assert PYNQ.stream is not None
    with pytest.raises(MachineError, match="latency: expected 0 or more cycles, below .*, got -1"):
        replace(PYNQ.stream, latency=-1)


def test_records_keep_the_unit_and_older_ones_had_none() -> None:
    assert machine_from(machine_values(PYNQ)) == PYNQ
    a100 = amos.machines.get("a100")
    assert "stream" not in machine_values(a100)
    assert machine_from(machine_values(a100)) == a100
