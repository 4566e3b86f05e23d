"""Rows of copies that lie a cache line further apart than what they hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.plan import Candidate, CpuSchedule
from amos.plan.cpu_plan import CpuPlan
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

_LIMITS = CpuLimits(cores=2, cache=1 << 20)


def _operator(channels: int, dtype: str = "f32") -> Operator:
    floats = dict(image="f32", weight="f32", out="f32")
    return Operator.parse(
        "out[p,q,k] += pad(image[p+r-1,q+s-1,c]) * weight[k,c,r,s]",
        dict(p=4, q=4, k=32, r=3, s=3, c=channels),
        floats if dtype == "f32" else dict(image="u8", weight="s8", out="s32"),
        shapes={"image": (4, 4, channels)},
        constants=["weight"],
    )


def _candidates(operator: Operator, intrinsic: str, place: str) -> list[Candidate]:
    """Some candidates that copy the image element by element, whole or as it is used."""
    space = amos.enumerate_mappings(operator, intrinsic)
    (mapping,) = (each for each in space if each.name == "k-c" or each.name == "k")
    schedules, rng = ScheduleSpace(mapping), np.random.default_rng(0)
    drawn = (schedules.sample(rng) for _ in range(60))
    candidates = [Candidate(mapping, each) for each in drawn if _copied(each.as_dict(), place)]
    return candidates[:3]


def _copied(schedule: Mapping[str, object], place: str) -> bool:
    return schedule["stage.Src1"] == place and schedule.get("copy") != "vectors"


@pytest.mark.parametrize(
    ("channels", "dtype", "intrinsic", "line"),
    [
        (128, "f32", "avx2_fmadd_m8_f32_f32", 16),
        (512, "f32", "avx2_fmadd_m8_f32_f32", 16),
        (512, "u8", "vnni_dpbusd_m16k4_u8_s8_s32", 64),
        (144, "f32", "avx2_fmadd_m8_f32_f32", None),
        (64, "u8", "vnni_dpbusd_m16k4_u8_s8_s32", None),
    ],
)
def test_rows_of_a_power_of_two_are_spread(
    channels: int, dtype: str, intrinsic: str, line: int | None
) -> None:
    for candidate in _candidates(_operator(channels, dtype), intrinsic, "whole"):
        schedule = CpuSchedule.of(candidate.schedule.as_dict())
        copy = CpuPlan(candidate.mapping, schedule, _LIMITS).copies["Src1"]
        if line is None:
            assert copy.spread is None or copy.extents[copy.spread + 1 :] != (channels,)
        else:
            assert copy.spread is not None and copy.line == line
            assert np.prod(copy.extents[copy.spread + 1 :]) == channels


@pytest.mark.parametrize("place", ["whole", "tile"])
def test_kernels_are_right(place: str) -> None:
    operator = _operator(128)
    inputs = random_inputs(operator, np.random.default_rng(1))
    expected = evaluate(operator, inputs)
    candidates = _candidates(operator, "avx2_fmadd_m8_f32_f32", place)
    assert candidates
    for candidate in candidates:
        np.testing.assert_allclose(amos.build(candidate)(**inputs), expected, rtol=1e-4, atol=1e-3)
