"""Operands as numbers: results that leave one by one."""

from __future__ import annotations

import pytest

import amos
from amos.ir import Operator
from amos.plan.structure import Structure

_UNIT = "avx512_fmadd_m16_f32_f32"


@pytest.mark.parametrize(
    ("lanes", "epilogue", "count"),
    [
        (("k",), "relu(acc)", 0),  # stored in vectors
        (("q",), "", 2),  # taken from its lane, and stored
        (("q",), "acc + bias[k]", 3),
        (("q",), "relu(acc + bias[k])", 4),
    ],
)
def test_results_whose_lanes_lie_apart_are_finished_one_by_one(
    lanes: tuple[str, ...], epilogue: str, count: int
) -> None:
    op = Operator.parse(
        "out[q,k] += image[q,c] * weight[k,c]",
        dict(q=62, k=12, c=9),
        dict(image="f32", weight="f32", out="f32"),
    )
    if epilogue:
        op = op.with_epilogue(epilogue, {"bias": "f32"} if "bias" in epilogue else None)
    op = op.with_output("out[q,k]")
    space = amos.enumerate_mappings(op, _UNIT, commute=True)
    mapping = next(each for each in space if each.groups["i1"] == lanes)
    assert Structure(mapping).destination.scalar_instructions == count
