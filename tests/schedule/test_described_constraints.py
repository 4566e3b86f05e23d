"""What the description of an intrinsic demands becomes constraints of the space."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

import amos
from amos.cuda import GpuSchedule
from amos.errors import IntrinsicError, ScheduleError
from amos.intrinsics import Intrinsic, Memory
from amos.ir import Operator
from amos.plan import Schedule
from amos.schedule import In, ScheduleSpace
from amos.streams import StreamSchedule

VTA, PYNQ = amos.intrinsics.get("vta_gemm_m1n16k16_s8_s32"), amos.machines.get("vta_pynq")
WMMA, A100 = amos.intrinsics.get("wmma_m16n16k16_f16_f32"), amos.machines.get("a100")
GEMM = Operator.parse(
    "out[i,j] += a[i,k] * weight[j,k]",
    extents=dict(i=64, j=256, k=256),
    dtypes=dict(a="s8", weight="s8", out="s32"),
)
(MAPPING,) = amos.enumerate_mappings(GEMM, VTA)


def _changed(unit: Intrinsic, **changes: object) -> ScheduleSpace:
    """The space of an intrinsic whose memory statements say something else."""
    memory = tuple(
        replace(m, **{k: v for k, v in changes.items() if k != "write_interval"})  # type: ignore[arg-type]
        if m.direction == "load"
        else replace(m, write_interval=changes.get("write_interval", m.write_interval))  # type: ignore[arg-type]
        for m in unit.memory
    )
    machine, op = (PYNQ, GEMM) if unit is VTA else (A100, amos.operators.resolve("gemm"))
    return ScheduleSpace(amos.enumerate_mappings(op, replace(unit, memory=memory))[0], machine)


def test_buffers_of_their_own_have_their_own_limits() -> None:
    space = ScheduleSpace(MAPPING, PYNQ)
    values = space.csp.variables
    capacity = {name: values[f"{name}.capacity"].domain for name in ("inp", "wgt", "acc")}
    assert capacity == {"inp": (32768,), "wgt": (262144,), "acc": (131072,)}
    for schedule in space.draw(100, np.random.default_rng(0)):
        assert isinstance(schedule, StreamSchedule)
        rows, columns = (schedule.tile[x] for x in ("i1.tile", "i2.tile"))
        sums, count = schedule.steps["r1.tile"], schedule.buffers
        used = space.values(schedule)
        assert used["inp.used"] == count["Src1"] * rows * sums * 16 <= 32768
        assert used["wgt.used"] == count["Src2"] * columns * sums * 256 <= 262144
        assert used["acc.used"] == count["Dst"] * rows * columns * 64 <= 131072


def test_the_write_cycle() -> None:
    """A reduction must not come back to an accumulator before three cycles have passed."""
    space = ScheduleSpace(MAPPING, PYNQ)
    drawn = space.draw(200, np.random.default_rng(0))
    assert len(drawn) == 200
    assert min(prod(s.tile[x] for x in ("i1.tile", "i2.tile")) for s in drawn) == 3
    schedule = Schedule.of(space.smallest().as_dict() | {"tile.i1.tile": 1, "tile.i2.tile": 2})
    with pytest.raises(ScheduleError, match="written again after 2 calls, but 3 must pass"):
        space.check(schedule)
    free = _changed(VTA, write_interval=0)
    assert free.is_feasible(schedule)
    assert not _changed(VTA, write_interval=4).is_feasible(
        Schedule.of(schedule.as_dict() | {"tile.i2.tile": 3})
    )


def test_a_write_cycle_that_cannot_be_met_is_named() -> None:
    """One accumulator alone, and a reduction over it."""
    alone = Operator.parse(
        "out[i,j] += a[i,k] * weight[j,k]",
        extents=dict(i=1, j=16, k=64),
        dtypes=dict(a="s8", weight="s8", out="s32"),
    )
    (mapping,) = amos.enumerate_mappings(alone, VTA)
    with pytest.raises(ScheduleError, match=r"write\.interval <= fragments\.Dst \(rule C6\)"):
        ScheduleSpace(mapping, PYNQ).sample(np.random.default_rng(0))
    once = Operator.parse(
        "out[i,j] += a[i,k] * weight[j,k]",
        extents=dict(i=1, j=16, k=16),
        dtypes=dict(a="s8", weight="s8", out="s32"),
    )
    (mapping,) = amos.enumerate_mappings(once, VTA)
    drawn = ScheduleSpace(mapping, PYNQ).sample(np.random.default_rng(0))
    assert {name.partition(".")[0] for name in drawn.as_dict()} == {"buffers"}


def _copied(space: ScheduleSpace) -> set[int]:
    drawn = space.draw(100, np.random.default_rng(0))
    return {s.copy_bytes for s in drawn if isinstance(s, GpuSchedule)}


def test_vector_lengths() -> None:
    space = _changed(WMMA)
    assert WMMA.memory[0].vectors == (2, 4, 8, 16)
    assert _copied(space) == {
        4,
        8,
        16,
    }
    narrow = _changed(WMMA, vectors=(8,))
    rules = [c for c in narrow.csp.constraints if isinstance(c, In) and c.rule == "C6"]
    assert [str(c) for c in rules] == ["copy_bytes in [8]", "copy_bytes in [8]"]
    assert _copied(narrow) == {8}
    with pytest.raises(ScheduleError, match=r"infeasible: copy_bytes in \[2\] \(rule C6\)"):
        _changed(WMMA, vectors=(2,)).sample(np.random.default_rng(0))


def test_vectors_are_numbers_of_bytes() -> None:
    with pytest.raises(IntrinsicError, match="vectors: expected positive numbers of bytes"):
        Memory.parse("reg.A[i1] = shared.A[addr_a + i1]", vectors=(0,))


def test_toml_describes_vectors() -> None:
    text = """
        name = "mine_m4n4k4_f32_f32"
        compute = "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]"
        family = "mine"
        source = "test"
        memory = [
          {{ statement = "reg.Src1[i1, r1] = shared.Src1[addr_a + i1 * 4 + r1]", vectors = {0} }},
          "reg.Src2[r1, i2] = shared.Src2[addr_b + r1 * 4 + i2]",
          "global.Dst[addr_c + i1 * 4 + i2] = reg.Dst[i1, i2]",
        ]
        [extents]
        i1 = 4
        i2 = 4
        r1 = 4
        [dtypes]
        Src1 = "f32"
        Src2 = "f32"
        Dst = "f32"
    """
    assert amos.intrinsics.from_toml(text.format("[4, 16]")).memory[0].vectors == (4, 16)
    with pytest.raises(IntrinsicError, match=r"memory\[0\]\.vectors"):
        amos.intrinsics.from_toml(text.format("4"))
