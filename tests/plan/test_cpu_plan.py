"""The plan of a CPU kernel says what the kernel does."""

from __future__ import annotations

import numpy as np

import amos
from amos.codegen import scheduling as generator
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.plan import Candidate, CpuSchedule
from amos.plan.cpu_plan import CpuPlan
from amos.schedule import ScheduleSpace


def test_a_plan_depends_on_limits_alone() -> None:
    """The same limits, whoever asks, are the same plan in words, and the same code."""
    op = amos.operators.resolve("resnet18:C0", dtype="u8s8", layout="NHWC")
    mapping = amos.enumerate_mappings(op, "vnni_dpbusd_m16k4_u8_s8_s32", rule="access")[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).sample(np.random.default_rng(0)))
    machine = amos.machines.get("xeon_6240")
    plan = amos.plan(candidate, "xeon_6240")
    assert str(plan) == str(amos.plan(candidate, machine))
    assert "18 cores, 1024 KiB of cache" in str(plan)
    texts = {
        str(generator.schedule_candidate(candidate, "native", limits)[1].script())
        for limits in (CpuLimits.of(machine), CpuLimits(18, 1 << 20))
    }
    assert len(texts) == 1


def test_a_plan_tells_edges_skipped_steps_and_prefetches() -> None:
    op = Operator.parse(
        "out[p,q,k] += pad(image[p+r-1,q+s-1,c]) * weight[k,c,r,s]",
        dict(p=7, q=9, k=256, r=3, s=3, c=256),
        dict(image="f32", weight="f32", out="f32"),
        shapes={"image": (7, 9, 256)},
        constants=["weight"],
    ).with_epilogue("acc + residual[p,q,k]", {"residual": "float32"})
    (mapping,) = amos.enumerate_mappings(op, "avx512_fmadd_m16_f32_f32")
    schedule = CpuSchedule(
        tile={"q": 4, "i1.tile": 2}, order=("i1.tile", "p", "q"), parallel=2, reduce=("r", "s", "c")
    )
    text = str(CpuPlan(mapping, schedule, CpuLimits(cores=2, cache=1 << 15)))
    for line in (
        "edge      q: tiles of 4, the last of 1",
        "skipped   steps of r with p + r - 1 outside of 0 to 6",
        "weight: packed, 11 elements of the next tile prefetched in each step",
        "prefetch  residual, before each register tile",
    ):
        assert line in text


def test_vectors_need_all_their_positions_in_every_range() -> None:
    """Four steps of twelve run one tile of positions in some ranges, and both in others."""
    op = amos.operators.conv2d(
        n=1, c=8, k=24, p=5, q=6, r=3, s=3, padding=1, layout="NHWC", dtype="u8s8"
    )
    space = amos.enumerate_mappings(
        op, "vnni_dpbusd_lhs_m8k4_u8_s8_s32", rule="access", commute=True
    )
    mapping = next(m for m in space if m.name == "npq-rsc")
    schedule = CpuSchedule(
        tile={"k": 4, "i1.tile": 1}, block={"i1.tile": 2}, reduce=("s", "r", "r1.tile"),
        unroll=2, order=("i1.tile", "k"), parallel=2, copy="vectors",
        stage={"Src1": "tile"},
    )  # fmt: skip
    for cores, in_vectors in ((1, True), (3, False)):
        limits = CpuLimits(cores, cache=1 << 18)
        copy = CpuPlan(mapping, schedule, limits).copies["Src1"]
        assert (copy.place, copy.vectors is not None) == ("range", in_vectors)
        generator.schedule_candidate(Candidate(mapping, schedule), "native", limits)
