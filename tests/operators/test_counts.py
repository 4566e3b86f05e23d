"""Table 6: every operator's form has the paper's number of mappings.

The counter is the literal definition of a union of base matches, written for
this test alone: it shares nothing with the enumeration that users call.
"""

from __future__ import annotations

from itertools import product

import pytest

from amos import operators
from amos.ir import Compute, Operator
from amos.ir.parser import parse_statement

MATMUL = parse_statement(
    "Dst[i1,i2] += Src1[i1,r1] * Src2[r1,i2]", {"i1": 16, "i2": 16, "r1": 16}, {}
)


def is_match(op: Operator, intrinsic: Compute, chosen: dict[str, str]) -> bool:
    """Each operand's indices, with all other iterations zero, are the intrinsic's."""
    software = {name: intrinsic_name for intrinsic_name, name in chosen.items()}
    for ours, theirs in zip(op.operands, intrinsic.operands, strict=True):
        names = [index.names[0] for index in theirs.indices if index.names[0] in chosen]
        loops = []
        for index in ours.indices:
            restricted = index.restrict(software)
            if len(restricted.terms) > 1 or any(c < 0 for _, c in restricted.terms):
                return False
            loops += [software[name] for name in restricted.names]
        if sorted(loops) != sorted(names):
            return False
    return True


def count_unions(op: Operator, intrinsic: Compute = MATMUL) -> int:
    """Number of distinct unions of base matches."""
    candidates = {
        hard.name: [
            soft.name
            for soft in op.iterations
            if soft.kind == hard.kind and is_match(op, intrinsic, {hard.name: soft.name})
        ]
        for hard in intrinsic.iterations
    }
    fillable = [name for name, loops in candidates.items() if loops]
    base = [
        frozenset(zip(fillable, choice, strict=True))
        for choice in product(*(candidates[name] for name in fillable))
        if is_match(op, intrinsic, dict(zip(fillable, choice, strict=True)))
    ]
    unions: set[frozenset[tuple[str, str]]] = set()
    for match in base:
        unions |= {union | match for union in unions} | {match}
    return len(unions)


@pytest.mark.parametrize(("name", "count"), operators.TABLE_6.items())
def test_form_has_the_count_of_table_6(name: str, count: int) -> None:
    assert count_unions(operators.get(name)) == count


def test_table_6_names_the_papers_fifteen_in_its_order() -> None:
    codes = " ".join(operators.builder(name).code for name in operators.TABLE_6)
    assert codes == "GMV GMM C1D C2D C3D T2D GRP DIL DEP CAP BCV GFC MEN VAR SCN"


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_layout_stride_and_padding_do_not_change_the_count(layout: str) -> None:
    assert count_unions(operators.conv2d(layout=layout, stride=2, padding=1)) == 35


def test_square_of_one_tensor_leaves_the_rows_to_a_loop() -> None:
    op = Operator.parse("out[i] += x[i,k] * x[i,k]", {"i": 4, "k": 4})
    assert not is_match(op, MATMUL, {"i1": "i"})
    assert count_unions(op) == 1


def test_pose_matrices_have_far_more_mappings_than_the_paper_counts() -> None:
    assert count_unions(operators.capsule_pose_conv2d()) > 105
