"""The plan of a CPU kernel says what the kernel does."""

from __future__ import annotations

import numpy as np

import amos
from amos.codegen import scheduled as generator
from amos.machine.limits import CpuLimits
from amos.plan import Candidate
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
        str(generator.scheduled(candidate, "native", limits)[1].script())
        for limits in (CpuLimits.of(machine), CpuLimits(18, 1 << 20))
    }
    assert len(texts) == 1
