"""Workspace of kernels: the plan's number beside that of the C that is written from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import amos
from amos.codegen.c.source import c_kernel
from amos.errors import BuildError
from amos.machine.limits import CpuLimits
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from amos.streams.schedule import StreamSchedule

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"


@pytest.mark.parametrize(("layer", "unit"), [("heron:G3", VNNI), ("resnet18:C11", VNNI)])
def test_copies_ahead_take_what_the_c_kernel_asks_for(layer: str, unit: str) -> None:
    intrinsic = amos.intrinsics.get(unit)
    machine = amos.machines.get("xeon_6240", [intrinsic])
    rng = np.random.default_rng(1)
    for mapping in list(amos.enumerate_mappings(amos.operators.resolve(layer), intrinsic))[:3]:
        space = ScheduleSpace(mapping, machine)
        values = space.sample(rng).as_dict()
        values |= {name: "whole" for name in values if name.startswith("stage")}
        candidate = Candidate(mapping, space.repair(values, rng))
        memory = candidate.memory_on(machine)
        assert memory == c_kernel(candidate, CpuLimits.of(machine)).workspace > 0


def test_the_copy_of_one_core_takes_less_than_a_whole_one() -> None:
    intrinsic = amos.intrinsics.get(VNNI)
    machine = replace(amos.machines.get("xeon_6240", [intrinsic]), cores=1)
    (mapping, *_) = amos.enumerate_mappings(amos.operators.resolve("vgg16:V5"), intrinsic)
    space = ScheduleSpace(mapping, machine)
    shares, rng = [], np.random.default_rng(0)
    for schedule in space.draw(30, rng):
        whole, tile = (
            Candidate(mapping, space.repair(schedule.as_dict() | {"stage.Src1": place}, rng))
            for place in ("whole", "tile")
        )
        shares.append(tile.memory_on(machine) / whole.memory_on(machine))
    assert min(shares) < 0.7


def test_other_targets() -> None:
    products = (
        ("f16", "wmma_m16n16k16_f16_f32", "a100"),
        ("f32", "opencl_mad_m8_f32", "pocl"),
    )
    for dtype, unit, machine in products:
        mapping = amos.enumerate_mappings(amos.operators.get("gemm", dtype=dtype), unit)[0]
        space = ScheduleSpace(mapping, amos.machines.get(machine))
        assert Candidate(mapping, space.smallest()).memory == 0
    op = amos.operators.get("gemm", dtype="s8", m=64, n=64, k=64)
    streamed = amos.enumerate_mappings(op, "vta_gemm_m1n16k16_s8_s32")[0]
    with pytest.raises(BuildError, match="'stream': no workspace is computed"):
        _ = Candidate(streamed, StreamSchedule()).memory
