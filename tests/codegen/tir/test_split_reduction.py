"""Split reductions: parts add up to what the whole is, whatever does not divide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.mapping import Mapping
from amos.perfmodel.batch import MODELS
from amos.perfmodel.batch import evaluate as evaluate_batch
from amos.plan import CpuSchedule, Schedule, Structure
from amos.plan.nest import Nest
from amos.plan.schedule import batch_of
from amos.plan.split_reduction import split_reduction
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
GEMV = "out[i] += weight[i,k] * x[k]"
CONV = "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]"
#: Reductions of 512 calls and more, so that they may be split: even, prime, of two loops.
CASES = [
    (VNNI, GEMV, dict(i=16, k=4 * 512), None),
    (VNNI, GEMV, dict(i=11, k=2053), None),
    (VNNI, "out[i] += x[i,k] * y[i,k]", dict(i=1, k=4 * 1031), None),
    (VNNI, CONV, dict(n=1, p=1, q=2, k=16, c=331, r=3, s=3), None),
    (VNNI, CONV, dict(n=1, p=3, q=1, k=13, c=259, r=3, s=3), None),
    ("vnni_dpbusd_signed_m16k4_s8_s32", GEMV, dict(i=5, k=2999), None),
    ("avx512_fmadd_m16_f32_f32", "out[i,j] += a[i,k] * b[k,j]", dict(i=2, j=20, k=523), None),
    ("avx512bf16_dpbf16ps_m16k2_bf16_f32", GEMV, dict(i=9, k=1031), "generic"),
]


def _mapping(unit: str, text: str, extents: dict[str, int], rng: np.random.Generator) -> Mapping:
    """A mapping whose space has more than one part."""
    op = Operator.parse(text, extents=extents)
    space = amos.enumerate_mappings(op, amos.intrinsics.get(unit), rule="gather", commute=True)
    able = [m for m in space if len(_splits(m)) > 1]
    assert able, f"no mapping of {op} may be split"
    return able[int(rng.integers(len(able)))]


def _fragments(extents: dict[str, int]) -> Mapping:
    """The product of a matrix whose rows are the lanes."""
    op = Operator.parse(GEMV, extents=extents, dtypes=dict(weight="s8", x="u8", out="s32"))
    space = amos.enumerate_mappings(op, amos.intrinsics.get(VNNI), rule="gather", commute=True)
    (mapping,) = [m for m in space if m.name.startswith("i-k")]
    return mapping


def _splits(mapping: Mapping, machine: Any = None) -> tuple[Any, ...]:
    return ScheduleSpace(mapping, machine).variables.get("split", ())


@pytest.mark.parametrize(("unit", "text", "extents", "kind"), CASES)
def test_parts_add_up_to_the_whole(
    unit: str, text: str, extents: dict[str, int], kind: str | None
) -> None:
    rng = np.random.default_rng(sum(extents.values()))
    mapping = _mapping(unit, text, extents, rng)
    space = ScheduleSpace(mapping)
    pinned = {"split": _splits(mapping)[1]}
    schedule = space.repair(space.sample(rng).as_dict() | pinned, rng)
    assert schedule.split == pinned["split"]
    inputs = random_inputs(mapping.operator, rng)
    expected = evaluate(mapping.operator, inputs)
    got = amos.build(mapping, schedule, implementation=kind)(**inputs)
    where = f"{mapping.operator}: {mapping.name}, {schedule}"
    assert got.dtype == expected.dtype and got.shape == expected.shape, where
    if got.dtype.kind in "iu":
        assert np.array_equal(got, expected), where
    else:
        scale = max(1.0, float(np.abs(expected).max()))
        assert np.abs(got - expected).max() <= 1e-5 * scale, where


def test_an_epilogue_sees_the_whole_sum() -> None:
    rng = np.random.default_rng(0)
    op = amos.operators.get("conv2d", n=1, p=1, q=3, k=13, c=2053, r=1, s=1, dtype="u8s8")
    op = op.with_epilogue("u8(relu((acc + bias[k]) * scale[k]) + 3)", {"bias": "int32"})
    space = amos.enumerate_mappings(op, amos.intrinsics.get(VNNI), rule="gather")
    mapping = next(m for m in space if len(_splits(m)) > 1)
    inputs = random_inputs(mapping.operator, rng)
    expected = evaluate(mapping.operator, inputs)
    assert len(np.unique(expected)) > 1
    for tile in (1, 2):
        pinned = {"split": 2, "tile.q": tile}
        schedule = ScheduleSpace(mapping).repair(pinned, rng)
        np.testing.assert_array_equal(amos.build(mapping, schedule)(**inputs), expected)


def test_the_model_knows_parts_and_leaves_the_rest_alone() -> None:
    mapping = _fragments(dict(i=16, k=65536))
    machine = amos.machines.get("xeon_6240")
    space, structure = ScheduleSpace(mapping, machine), Structure(mapping)
    assert space.variables["split"] == (1, 2, 4, 8, 16)
    start = space.smallest().as_dict()
    rows = [Schedule.of(start | {"split": n}) for n in space.variables["split"]]
    for model in MODELS:
        predictions = evaluate_batch(structure, machine, batch_of(structure, rows), model)
        alone = evaluate_batch(structure, machine, batch_of(structure, rows[:1]), model)
        assert predictions.seconds[0] == alone.seconds[0]
        assert (np.diff(predictions.compute) < 0).all()
        np.testing.assert_allclose(
            predictions.compute * [1, 2, 4, 8, 16], predictions.compute[0], rtol=0.1
        )
    assert predictions.launch[1] > predictions.launch[0]


@pytest.mark.parametrize(
    ("extents", "cores", "offered"),
    [
        (dict(i=16, k=4 * 512), 2, (1, 2)),
        (dict(i=16, k=4 * 512), 18, (1, 2)),
        (dict(i=16, k=4 * 5000), 18, (1, 2, 4, 8, 16)),
        (dict(i=16, k=4 * 5000), 6, (1, 2, 4)),
        (dict(i=16, k=4 * 511), 2, ()),
        (dict(i=17, k=4 * 5000), 2, (1,)),
        (dict(i=17, k=4 * 5000), 4, (1, 2, 4)),
        (dict(i=16, k=4 * 5000), 1, ()),
    ],
)
def test_parts_are_offered_where_cores_would_wait(
    extents: dict[str, int], cores: int, offered: tuple[int, ...]
) -> None:
    mapping = _fragments(extents)
    machine = replace(amos.machines.get("xeon_6240"), cores=cores)
    assert _splits(mapping, machine) == offered
    # What is allowed on some machine can be built on every one.
    assert set(offered) <= {1, *_splits(mapping)}


def test_every_step_is_in_one_part() -> None:
    nest = Nest(_fragments(dict(i=16, k=4 * 523)))
    (loop,) = (x for x in nest.reduce if x.extent > 1)
    for split in range(2, 17):
        for unroll in (1, 2, 4):
            parts = split_reduction(nest, CpuSchedule.of({"split": split, "unroll": unroll}))
            assert parts is not None and 1 < parts.count <= split
            assert (parts.count - 1) * parts.steps < loop.extent <= parts.count * parts.steps
    assert split_reduction(nest, CpuSchedule.of({"unroll": 4})) is None
