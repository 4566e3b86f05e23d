"""Plans of vector copies, carried out in NumPy, against staging element by element."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.mapping.mapping import Mapping
from amos.plan.nest import Nest
from amos.plan.staging import StagedOperand, stage_array, staged_sources
from amos.plan.staging_vectors import VectorCopy, vector_copy

LANES = "vnni_dpbusd_lanes_m16k4_u8_s8_s32"
SHARED = "vnni_dpbusd_m16k4_u8_s8_s32"
LEFT = "vnni_dpbusd_lhs_m16k4_u8_s8_s32"


def _mapping(op: Operator, unit: str, **groups: tuple[str, ...]) -> Mapping:
    space = amos.enumerate_mappings(op, amos.intrinsics.get(unit), rule="gather")
    return next(m for m in space if m.groups == groups)


def _carried_out(copy: VectorCopy, array: np.ndarray) -> np.ndarray:
    """What the plans say where no run leaves the tensor, and elements elsewhere."""
    op, flat = copy.op, array.ravel()
    staged = stage_array(op, array).copy()
    outer = [d for d in range(len(op.dims) - copy.unit) if d not in copy.written_out]
    vectors = 0
    for at in product(*(range(op.dims[d].extent) for d in outer)):
        for place in copy.places():
            lead = [0] * (len(op.dims) - copy.unit)
            for d, x in (*zip(outer, at, strict=True), *zip(copy.written_out, place, strict=True)):
                lead[d] = x
            live = [
                pick is not None and all(0 <= value < bound for value, bound, _ in guards)
                for pick, guards in (
                    (pick, op.locate([*lead, *position])[1])
                    for pick, position in zip(_picks(copy, place), copy.positions(), strict=True)
                )
            ]
            if live != [pick is not None for pick in _picks(copy, place)]:
                continue
            indices, _ = op.locate([*lead, *[0] * copy.unit])
            # Not ravel_multi_index: the first place of a vector may lie in the padding.
            first = 0
            for index, size in zip(indices, array.shape, strict=True):
                first = first * size + index
            plan = copy.plan(place)
            assert plan is not None
            values = [
                0 if pick is None else flat[first + plan.runs[pick[0]][0] + pick[1]]
                for pick in plan.picks
            ]
            staged[tuple(lead)] = np.reshape(values, staged[tuple(lead)].shape)
            vectors += 1
    assert vectors
    return staged


def _picks(copy: VectorCopy, place: tuple[int, ...]) -> tuple[tuple[int, int] | None, ...]:
    plan = copy.plan(place)
    assert plan is not None
    return plan.picks


def _source(mapping: Mapping) -> StagedOperand:
    return staged_sources(Nest(mapping))[0]


DEPTHWISE: dict[str, Any] = dict(c=64, p=5, q=7, r=3, s=3, dtype="u8s8")
CASES = {
    "channels": (
        _mapping(amos.operators.depthwise_conv2d(**DEPTHWISE, layout="NHWC"), LANES,
                 i1=("c",), r1=("s",)),
        [(0, 16), (64, 16), (128, 16)],
    ),
    "window": (
        _mapping(amos.operators.depthwise_conv2d(**DEPTHWISE | dict(q=16)), LEFT,
                 i1=("q",), r1=("s",)),
        [(0, 18)],
    ),
    "padded": (
        _mapping(amos.operators.depthwise_conv2d(**DEPTHWISE, padding=1, layout="NHWC"), LANES,
                 i1=("c",), r1=("r",)),
        [(0, 16), (448, 16), (896, 16)],
    ),
    "digits": (
        _mapping(amos.operators.conv2d(c=3, k=16, p=4, q=5, r=3, s=3, stride=2, layout="NHWC",
                                       dtype="u8s8"), SHARED, i1=("k",), r1=("s", "c")),
        [(0, 9)],
    ),
    "transposed": (
        _mapping(amos.operators.bmm(b=2, m=3, n=16, k=8, dtype="u8s8"), LEFT,
                 i1=("m",), r1=("k",)),
        [(0, 20)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_plans_are_what_staging_is(case: str) -> None:
    mapping, runs = CASES[case]
    op = _source(mapping)
    copy = vector_copy(op)
    assert copy is not None
    plan = copy.plan(next(copy.places()))
    assert plan is not None
    assert list(plan.runs) == runs
    shape = op.load.tensor.shape
    array = np.random.default_rng(0).integers(1, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(_carried_out(copy, array), stage_array(op, array))


def test_instructions_count_loads_and_permutations() -> None:
    copy = vector_copy(_source(CASES["channels"][0]))
    assert copy is not None
    # Three loads, one of them and the store and the permutation besides, for 64 elements.
    assert copy.instructions == pytest.approx((2 * 3 + 2) / 64)


def test_what_is_no_runs_is_refused() -> None:
    op = amos.operators.conv2d(c=8, k=16, p=4, q=5, r=1, s=1, layout="NHWC", dtype="u8s8")
    in_place = _source(_mapping(op, SHARED, i1=("k",), r1=("c",)))
    assert in_place.in_place
    assert vector_copy(in_place) is None
    # Digits of a fused index over many tiles: each of them would need a plan of its own.
    op = amos.operators.depthwise_conv2d(c=3, p=9, q=9, dtype="u8s8")
    assert vector_copy(_source(_mapping(op, LEFT, i1=("p", "q"), r1=("s",)))) is not None
    op = amos.operators.depthwise_conv2d(c=3, p=99, q=9, dtype="u8s8")
    assert vector_copy(_source(_mapping(op, LEFT, i1=("p", "q"), r1=("s",)))) is None
