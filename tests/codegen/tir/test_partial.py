"""Sums kept in parts by the lanes of a call, and added up after the last one."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.codegen.tir.tensor_intrin import implementation
from amos.errors import IntrinsicError
from amos.intrinsics import Implementation, Intrinsic
from amos.ir import Operator
from amos.machine.cpu import cpu
from amos.plan import Schedule
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

DOTS = [amos.intrinsics.get(f"vnni_dpbusd_dot_m1k{k}_u8_s8_s32") for k in (64, 32)]

pytestmark = [
    pytest.mark.features,
    pytest.mark.skipif(
        any(implementation(unit, cpu().features) != "native" for unit in DOTS),
        reason="this CPU has no avx512_vnni, so the instruction itself cannot run",
    ),
]

OPERATORS = {
    "rows": ("out[i] += x[i,k] * weight[k]", dict(i=13, k=192)),
    "prime": ("out[i] += x[i,k] * weight[k]", dict(i=7, k=131)),
    "below a fragment": ("out[i] += x[i,k] * weight[k]", dict(i=5, k=3)),
    "one row": ("out[i] += x[i,k] * weight[k]", dict(i=1, k=300)),
    "one element": ("out[i] += x[i,k] * weight[k]", dict(i=1, k=1)),
    "scores": ("out[b,i,j] += q[b,i,d] * key[b,j,d]", dict(b=2, i=5, j=6, d=64)),
    "window": ("out[p,n] += image[n,p+r,c] * weight[r,c]", dict(n=2, p=3, r=3, c=29)),
    "digits": ("out[a*3+b,j] += x[a,b,k] * weight[j,k]", dict(a=2, b=3, j=4, k=70)),
}


def _operator(name: str) -> Operator:
    text, extents = OPERATORS[name]
    return Operator.parse(text, extents)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        *((name, DOTS[0]) for name in OPERATORS),
        # Half as many lanes are a matter of what is left over.
        *((name, DOTS[1]) for name in ("prime", "window", "digits")),
    ],
    ids=lambda case: case if isinstance(case, str) else case.name,
)
def test_parts_add_up_to_the_sum(name: str, unit: Intrinsic) -> None:
    rng = np.random.default_rng(len(name))
    space = amos.enumerate_mappings(_operator(name), unit, rule="gather")
    assert len(space)
    for mapping in list(space)[:3]:
        schedules = ScheduleSpace(mapping)
        inputs = random_inputs(mapping.operator, rng)
        expected = evaluate(mapping.operator, inputs)
        for schedule in [schedules.smallest(), *schedules.draw(2, rng)]:
            kernel = amos.build(mapping, schedule, implementation="native")
            got = kernel(**inputs)
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            assert np.array_equal(got, expected), f"{mapping.name}: {schedule}"


def test_parts_of_lanes_and_parts_that_run_side_by_side() -> None:
    """Ranges of the reduction, each in lanes, and rows that tiles do not divide."""
    op = Operator.parse("out[i] += x[i,k] * weight[k]", dict(i=5, k=1000))
    mapping = amos.enumerate_mappings(op, DOTS[0])[0]
    space = ScheduleSpace(mapping)
    inputs = random_inputs(mapping.operator, np.random.default_rng(0))
    first = space.smallest().as_dict()
    for changed in ({"split": 2}, {"split": 2, "tile.i": 2, "unroll": 2}, {"tile.i": 3}):
        if "split" in changed and 2 not in space.variables["split"]:
            continue
        schedule = space.check(Schedule.of(first | changed))
        got = amos.build(mapping, schedule, implementation="native")(**inputs)
        assert np.array_equal(got, evaluate(op, inputs)), changed


def test_an_epilogue_sees_the_whole_sum() -> None:
    op = Operator.parse("out[i] += x[i,k] * weight[k]", dict(i=11, k=200)).with_epilogue(
        "u8(relu(acc + bias[i]) * 0.001)", dict(bias="s32")
    )
    mapping = amos.enumerate_mappings(op, DOTS[0])[0]
    rng = np.random.default_rng(0)
    inputs = random_inputs(mapping.operator, rng)
    expected = evaluate(mapping.operator, inputs)
    assert expected.any()
    for schedule in ScheduleSpace(mapping).draw(3, rng):
        got = amos.build(mapping, schedule, implementation="native")(**inputs)
        assert np.array_equal(got, expected), schedule


def test_the_call_itself_leaves_parts() -> None:
    """No lane is moved inside the reduction."""
    op = Operator.parse("out[i] += x[i,k] * weight[k]", dict(i=64, k=64 * 100))
    mapping = amos.enumerate_mappings(op, DOTS[0])[0]
    kernel = amos.build(mapping, implementation="native")
    assert '"llvm.x86.avx512.vpdpbusd.512"' in kernel.source
    assert "fold" in kernel.source
    assert "stage_" not in kernel.source


def test_parts_are_the_compilers_business() -> None:
    with pytest.raises(IntrinsicError, match="partial: expected 1, or more for llvm"):
        Implementation("x", "c", "return;", partial=16)
    with pytest.raises(IntrinsicError, match="partial: expected 1, or more for llvm"):
        Implementation("x", "llvm", "pass", partial=0)
