"""Floors of schedules on a CPU, and the optimum that they prove."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.explore.method import enumerate_candidates
from amos.explore.objective import Problem
from amos.ir import Operator
from amos.perfmodel import evaluate
from amos.perfmodel.batch import floor_of_loops, floor_of_tiles
from amos.plan import batch_of
from amos.targets.optimum import find_cpu_optimum

VNNI, FLOATS = "vnni_dpbusd_m16k4_u8_s8_s32", "avx512_fmadd_m16_f32_f32"
XEON = amos.machines.get("xeon_6240", [amos.intrinsics.get(VNNI), amos.intrinsics.get(FLOATS)])


def _parse(text: str, **extents: int) -> Operator:
    dtypes = dict(a="uint8", w="int8", out="int32")
    return Operator.parse(text, extents=extents, dtypes=dtypes, name="op")


TINY = {
    "product": _parse("out[i,j] += a[i,k] * w[k,j]", i=5, j=48, k=12),
    "window": _parse("out[p,j] += pad(a[p+r-1,k]) * w[r,k,j]", p=5, r=3, k=8, j=32),
    "rows": _parse(
        "out[p,q,j] += pad(a[p+r-1,q+s-1,k]) * w[r,s,k,j]", p=2, q=2, r=3, s=3, k=4, j=16
    ),
    "long sum": _parse("out[i,j] += a[i,k] * w[k,j]", i=2, j=16, k=2048),
}
LARGE = [
    ("resnet18:C5", "u8s8", VNNI),
    ("resnet18:C8", "u8s8", VNNI),
    ("resnet18:C2", "f32", FLOATS),
    ("mobilenet:M3", "f32", FLOATS),
    ("heron:G3", "u8s8", VNNI),
    ("heron:G4", "f32", FLOATS),  # a matrix that is read in place or copied
]


@pytest.mark.parametrize("name", TINY)
def test_it_is_the_best_of_all_candidates(name: str) -> None:
    problem = Problem([*amos.enumerate_mappings(TINY[name], VNNI)][:2], XEON)
    values = problem.scores([*enumerate_candidates(problem)])
    optimum = find_cpu_optimum([*problem.spaces.values()], XEON, 60.0)
    certificate = optimum.certificate
    assert certificate.is_optimal
    assert certificate.value == pytest.approx(values.min(), rel=1e-12)
    assert problem.scores(optimum.candidates)[0] == pytest.approx(values.min(), rel=1e-12)
    spaces = problem.spaces
    assert all(spaces[c.mapping.name].is_feasible(c.schedule) for c in optimum.candidates)


@pytest.mark.parametrize(("layer", "dtype", "unit"), LARGE)
def test_no_candidate_is_below_its_floors(layer: str, dtype: str, unit: str) -> None:
    operator, rng = amos.operators.resolve(layer, dtype=dtype), np.random.default_rng(0)
    problem = Problem([*amos.enumerate_mappings(operator, unit)], XEON)
    for space in problem.spaces.values():
        batch = batch_of(space.context, space.draw(100, rng))
        seconds = evaluate(space.context, XEON, batch).seconds * (1 + 1e-12)
        loops = floor_of_loops(space.context, XEON, batch)
        assert np.all(loops <= seconds)
        assert np.all(floor_of_tiles(space.context, XEON, batch) <= loops * (1 + 1e-12))
        floor = space.target.floor_seconds(space.context, XEON)
        assert np.all(floor <= floor_of_tiles(space.context, XEON, batch) * (1 + 1e-12))


def test_a_convolution_is_proven() -> None:
    operator = amos.operators.resolve("resnet18:C5", dtype="u8s8")
    problem = Problem([*amos.enumerate_mappings(operator, VNNI)], XEON)
    stopped = find_cpu_optimum([*problem.spaces.values()], XEON, 0.0).certificate
    whole = find_cpu_optimum([*problem.spaces.values()], XEON, 60.0).certificate
    assert whole.is_optimal
    assert stopped.least <= whole.value <= stopped.value
    assert not stopped.is_optimal
    assert whole.pruned_mappings > 0
