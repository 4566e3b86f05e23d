"""Schedules that place more than there is are named, and never look fast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import amos
from amos.errors import MachineError
from amos.machine import Machine
from amos.perfmodel import evaluate, predict
from amos.plan import Schedule, Structure
from amos.schedule import ScheduleSpace


def _mapping(text: str, unit: str, **extents: int) -> amos.mapping.Mapping:
    op = amos.Operator.parse(text, extents=extents)
    return amos.enumerate_mappings(op, amos.intrinsics.get(unit))[0]


GEMM = "out[m,n] += a[m,k] * b[k,n]"


def test_registers_are_counted_in_fragments() -> None:
    mapping = _mapping(GEMM, "vnni_dpbusd_m16k4_u8_s8_s32", m=64, n=64, k=64)
    machine = amos.machines.get("xeon_6240")
    values = ScheduleSpace(mapping).smallest().as_dict()
    # 32 accumulators, two fragments of the weights, one of the activations.
    schedule = Schedule.of(values | {"tile.m": 16, "tile.i1.tile": 2})
    with pytest.raises(MachineError, match=r"registers of xeon_6240 overflow: 35 .* 3 too many"):
        predict(mapping, machine, schedule)
    structure = Structure(mapping)
    assert np.isinf(evaluate(structure, machine, schedule.batch(structure)).seconds[0])


def test_scratchpads_hold_what_is_staged_tile_by_tile() -> None:
    mapping = _mapping(GEMM, "wmma_m16n16k16_f16_f32", m=1024, n=1024, k=4096)
    machine = replace(amos.machines.get("a100"), features=())
    space = ScheduleSpace(mapping)
    whole = {f"stage.{op.name}": "whole" for op in space.context.gathered}
    values = space.smallest().as_dict() | {"parallel": 2}
    # 16 rows of 4096 halves of each operand: two times 128 KiB, of 164 KiB.
    tiled = Schedule.of(values | dict.fromkeys(whole, "tile"))
    with pytest.raises(MachineError, match=r"shared of a100 overflow: 262144 bytes"):
        predict(mapping, machine, tiled)
    assert predict(mapping, machine, Schedule.of(values | whole)).seconds > 0
    # With CUDA each step of the reduction is staged by itself.
    assert predict(mapping, amos.machines.get("a100"), tiled).seconds > 0


def test_a_larger_scratchpad_takes_it() -> None:
    mapping = _mapping(GEMM, "wmma_m16n16k16_f16_f32", m=1024, n=1024, k=4096)
    a100 = amos.machines.get("a100")
    shared = replace(a100.levels[0], capacity=1 << 20)
    machine: Machine = replace(a100, levels=(shared, *a100.levels[1:]), features=())
    space = ScheduleSpace(mapping)
    values = space.smallest().as_dict() | {"parallel": 2}
    values |= {f"stage.{op.name}": "tile" for op in space.context.gathered}
    assert predict(mapping, machine, Schedule.of(values)).seconds > 0
