"""Schedules drawn from the spaces of odd operators: each can be built, and is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.machine.cpu import cpu
from amos.plan import Candidate, Schedule
from amos.schedule import ScheduleSpace
from amos.schedule.constraints import Constraint, In
from amos.validate import evaluate, random_inputs

VNNI = [f"vnni_dpbusd_{side}m16k4_u8_s8_s32" for side in ("", "lhs_", "lanes_")]
BF16 = ["avx512bf16_dpbf16ps_m8k2_bf16_f32", "avx512bf16_dpbf16ps_m16k2_bf16_f32"]


def _operator(text: str, **extents: int) -> Operator:
    return Operator.parse(
        text,
        extents=extents,
        dtypes=dict(a="uint8", b="int8", out="int32"),
        shapes=SHAPES.get(text),
    )


#: Tensors of which every element that is read lies outside, or that have gaps.
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "out[i] += pad(a[i,3]) * b[i]": dict(a=(4, 1)),
    "out[i,j] += pad(a[i,3,k]) * b[k,j]": dict(a=(4, 1, 9)),
    "out[i,j] += a[i,k] * pad(b[k-40,j])": dict(b=(5, 17)),
    "out[i*2,j] += a[i,k,l] * b[j,k,l]": dict(out=(5, 4)),
}
WINDOW = "out[x] += a[p,s] * b[c,x,s]"
OPERATORS = {
    "scalar, products": _operator("out[i] += a[] * b[i,k]", i=19, k=9),
    "scalar, sums": _operator("out[i,j] += a[i,k] * b[]", i=5, j=18, k=9),
    "scalar, no sum": _operator("out[i,j] += a[i,j] * b[]", i=5, j=18),
    "outside": _operator("out[i] += pad(a[i,3]) * b[i]", i=4),
    "outside, sums": _operator("out[i,j] += pad(a[i,3,k]) * b[k,j]", i=4, j=17, k=9),
    "outside, always": _operator("out[i,j] += a[i,k] * pad(b[k-40,j])", i=4, j=17, k=9),
    "parts": _operator(WINDOW, x=2, p=33, s=5, c=23),
    "parts, scaled": _operator(WINDOW, x=2, p=33, s=9, c=23).with_epilogue(
        "u8(relu((acc + bias[x]) * scale[x]))", {"bias": "int32"}
    ),
    "parts, gaps": _operator(
        "out[i*2,j] += a[i,k,l] * b[j,k,l]", i=1, j=3, k=91, l=33
    ).with_epilogue("acc + t[i,j]", {"t": "int32"}),
    "parts, long": amos.operators.get("gemm", m=1, n=3, k=4103, dtype="u8s8").with_epilogue(
        "s8(acc * scale[n])"
    ),
    "parts, pairs": Operator.parse(
        WINDOW,
        extents=dict(x=2, p=33, s=5, c=23),
        dtypes=dict(a="bfloat16", b="bfloat16", out="float32"),
    ),
}


def drawn(op: Operator, rng: np.random.Generator) -> Candidate | None:
    """Some candidate, of rare choices more than there are; ``None`` if the unit takes none."""
    unit = str(rng.choice(BF16 if op.output.tensor.dtype == "float32" else VNNI))
    try:
        space = amos.enumerate_mappings(op, amos.intrinsics.get(unit), rule="gather", commute=True)
    except amos.AmosError:
        return None
    if not len(space):
        return None
    mapping = space[int(rng.integers(len(space)))]
    schedules = ScheduleSpace(mapping)
    constraints: list[Constraint] = []
    if "copy" in schedules.variables and rng.random() < 0.6:
        constraints.append(In("copy", ("vectors",)))
    split = tuple(n for n in schedules.variables.get("split", ()) if n != 1)
    if split and rng.random() < 0.7:
        constraints.append(In("split", split))
    try:
        return Candidate(mapping, schedules.fix(constraints).sample(rng))
    except amos.AmosError:
        return Candidate(mapping, schedules.sample(rng))


def check(candidate: Candidate, rng: np.random.Generator) -> None:
    op = candidate.mapping.operator
    inputs = random_inputs(op, rng)
    got = amos.build(candidate, implementation="generic")(**inputs)
    expected = evaluate(op, inputs)
    if op.epilogue is None and expected.dtype.kind == "f":
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)
    else:
        np.testing.assert_array_equal(got, expected, str(candidate))


@pytest.mark.parametrize("name", OPERATORS)
def test_a_drawn_schedule_is_right(name: str) -> None:
    rng = np.random.default_rng(len(name))
    while (candidate := drawn(OPERATORS[name], rng)) is None:
        pass
    check(candidate, rng)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_many_drawn_schedules_are_right(name: str) -> None:
    for seed in range(40):
        rng = np.random.default_rng((1, seed))
        if (candidate := drawn(OPERATORS[name], rng)) is not None:
            check(candidate, rng)


#: Each could not be built.
REFUSED = [
    ("scalar, sums", VNNI[1], dict(copy="vectors")),
    ("outside", VNNI[2], dict(copy="elements")),
    ("outside", VNNI[2], dict(copy="vectors")),
    (
        "parts, pairs",
        BF16[0],
        {"copy": "vectors", "split": 4, "reduce": "p r1.tile c", "unroll": 4},
    ),
]


def _allows(variables: Mapping[str, Any], values: Mapping[str, int | str]) -> bool:
    return all(value in variables.get(key, ()) for key, value in values.items())


@pytest.mark.parametrize(("name", "unit", "values"), REFUSED)
def test_schedules_that_could_not_be_built(
    name: str, unit: str, values: dict[str, int | str]
) -> None:
    rng = np.random.default_rng(0)
    op = OPERATORS[name]
    space = amos.enumerate_mappings(op, amos.intrinsics.get(unit), rule="gather", commute=True)
    mapping = next(m for m in space if _allows(ScheduleSpace(m).variables, values))
    staged = {"stage.Src1": "tile", "stage.Src2": "whole"}
    fixed = [In(key, (value,)) for key, value in (values | staged).items()]
    schedule: Schedule = ScheduleSpace(mapping).fix(fixed).sample(rng)
    check(Candidate(mapping, schedule), rng)


@pytest.mark.parametrize("implementation", ["native", "generic"])
@pytest.mark.parametrize("vector", [16, 32, 64])
def test_replicated_lanes_that_are_guarded_are_copied_right(
    vector: int, implementation: str
) -> None:
    """LLVM 22 vectorizes a copy that reads element ``s % 4`` in step ``s`` as if it were ``s``."""
    unit = amos.intrinsics.get("vnni_dpbusd_lanes_m16k4_u8_s8_s32")
    if implementation == "native" and not set(unit.requires) <= cpu().features:
        pytest.skip(f"this CPU lacks {', '.join(unit.requires)}")
    op = Operator.parse(
        "out[i*2] += a[i,k] * b[k]",
        extents=dict(i=7, k=41),
        shapes=dict(out=(15,)),
        dtypes=dict(a="uint8", b="int8", out="int32"),
    )
    (mapping,) = amos.enumerate_mappings(op, unit, rule="gather")
    values = ScheduleSpace(mapping).smallest().as_dict() | {"vector": vector}
    kernel = amos.build(mapping, Schedule.of(values), implementation=implementation)
    inputs = random_inputs(op, np.random.default_rng(0))
    np.testing.assert_array_equal(kernel(**inputs), evaluate(op, inputs))


def test_what_fuzzing_found() -> None:
    """A vector that is padding as a whole, and a fragment of one element under a tile."""
    from amos.intrinsics.virtual import unit

    single = unit("D[i1] += A[i1, r1]", {"i1": 1, "r1": 3}, {"A": "uint8", "D": "uint32"})
    edges: dict[str, int | str] = {
        "tile.l": 3,
        "tile.i1.tile": 3,
        "block.l": 2,
        "order": "l i1.tile",
        "parallel": 2,
    }
    cases: list[tuple[Operator, Any, dict[str, int | str]]] = [
        (
            _operator("out[l] += a[c,w] * pad(b[3*c-3,l-1,w-2])", l=31, c=2, w=2),
            amos.intrinsics.get(VNNI[0]),
            {"copy": "vectors", "stage.Src2": "whole"},
        ),
        (Operator.parse("out[j,l] += left[j]", dict(l=5, j=5)), single, edges),
    ]
    rng = np.random.default_rng(0)
    for op, chosen, violated in cases:
        mapping = amos.enumerate_mappings(op, chosen, rule="access")[0]
        kernel = amos.build(mapping, ScheduleSpace(mapping).repair(violated, rng))
        inputs = random_inputs(mapping.operator, rng)
        out = np.full(mapping.operator.output.tensor.shape, 77, np.dtype(chosen.dtypes[-1]))
        expected = evaluate(mapping.operator, inputs)
        np.testing.assert_array_equal(kernel(*inputs.values(), out=out), expected)


def test_saturating_sums_are_right_as_loops() -> None:
    """LLVM makes one wrong vector of the products that a saturating sum adds in 64 bits."""
    op = _operator("out[i] += a[i,2*k+1] * b[1-i,k]", i=1, k=12)
    unit = amos.intrinsics.get("avxvnni_dpbusds_lhs_m8k4_u8_s8_s32")
    mapping = amos.enumerate_mappings(op, unit, rule="access")[0]
    schedule = ScheduleSpace(mapping).repair({"stage.Src1": "tile"}, np.random.default_rng(0))
    kernel = amos.build(mapping, schedule, implementation="generic")
    inputs = random_inputs(mapping.operator, np.random.default_rng(3))
    np.testing.assert_array_equal(kernel(**inputs), evaluate(mapping.operator, inputs))
