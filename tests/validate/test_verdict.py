"""What a verdict says, in the user's own names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amos import intrinsics
from amos.errors import MappingError, UnknownNameError
from amos.intrinsics import Intrinsic
from amos.intrinsics.virtual import unit
from amos.ir import Operator
from amos.mapping import enumerate_mappings
from amos.validate import Verdict, check_compatible, check_matching

WMMA = intrinsics.get("wmma_m16n16k16_f16_f32")
CONV = Operator.parse(
    "out[n,k,p,q] += image[n,c,p*2+r,q*2+s] * weight[k,c,r,s]",
    dict(n=1, k=4, p=2, q=2, c=1, r=3, s=3),
    name="conv2d",
)


def judge(rule: str, i1: str, i2: str, r1: str, op: Operator = CONV) -> Verdict:
    groups = (i1, i2, r1)
    return check_matching(
        op, WMMA, [[it.name in group for it in op.iterations] for group in groups], rule
    )


def intrinsic(compute: str, **extents: int) -> Intrinsic:
    return unit(compute, extents, "int64")


@pytest.mark.parametrize("rule", ["paper", "access", "gather"])
def test_figure_3_is_valid(rule: str) -> None:
    verdict = judge(rule, "npq", "k", "crs")
    assert verdict
    assert verdict.reasons == ()
    assert str(verdict) == f"valid ({rule})"


def test_one_of_two_is_at_fault() -> None:
    verdict = judge("gather", "nk", "", "c")
    assert not verdict
    assert verdict.wrong == (
        "`n` and `k` both go to `i1`, but `k` indexes `weight` and `i1` does not index `Src2`",
    )
    assert verdict.idle == ("`i2` stays empty though `k` could go there",)
    assert verdict.reasons == verdict.wrong + verdict.idle


def test_a_single_iteration_at_fault() -> None:
    (reason,) = judge("gather", "k", "k"[:0], "c").wrong
    assert reason == "`k` goes to `i1`, but `k` indexes `weight` and `i1` does not index `Src2`"


def test_access_also_asks_what_the_intrinsic_indexes() -> None:
    assert judge("access", "npqk", "", "c").wrong[1] == (
        "`n`, `k`, `p` and `q` all go to `i1`, "
        "but `k` does not index `image` and `i1` indexes `Src1`"
    )


def test_kinds_have_to_agree() -> None:
    (reason,) = judge("gather", "nc", "k", "r").wrong[:1]
    assert reason == "`n` and `c` both go to `i1`, but `c` is reduce and `i1` is spatial"


def test_idle_is_no_wrong_answer() -> None:
    verdict = judge("paper", "", "k", "c")
    assert verdict.wrong == ()
    assert verdict.idle == ("`i1` stays empty though `n`, `p`, `q` could go there",)
    assert str(verdict).startswith("idle (paper)")


def test_paper_names_the_shared_dimension() -> None:
    assert judge("access", "p", "k", "r")
    assert judge("paper", "p", "k", "r").wrong == (
        "no base match contains `p` or `r`: `p` and `r` share dimension 2 of `image`",
    )
    assert judge("paper", "pq", "k", "cr")
    assert judge("paper", "q", "k", "cs").wrong == (
        "no base match contains `s`: `q` and `s` share dimension 3 of `image`",
    )


def test_paper_names_the_reversed_dimension() -> None:
    op = Operator.parse(
        "out[k,p] += image[c,p+r] * weight[k,c,2-r]", dict(k=4, p=4, c=2, r=3), name="transposed"
    )
    verdict = judge("paper", "p", "k", "cr", op)
    assert judge("access", "p", "k", "cr", op)
    assert verdict.wrong == (
        "no base match contains `r`: `r` is reversed in dimension 2 of `weight`",
    )


def test_paper_names_two_dimensions() -> None:
    op = Operator.parse("out[i,j] += a[i,k,k] * b[k,j]", dict(i=2, j=2, k=2), name="diagonal")
    assert judge("paper", "i", "j", "k", op).wrong == (
        "no base match contains `k`: `k` indexes 2 dimensions of `a` and `r1` indexes 1 of `Src1`",
    )


def test_a_tensor_used_twice_is_named_by_its_access() -> None:
    op = Operator.parse("out[i,j] += a[i,k] * a[j,k]", dict(i=2, j=2, k=2))
    assert judge("gather", "j", "i", "k", op).wrong[0] == (
        "`j` goes to `i1`, but `j` indexes `a[j, k]` and `i1` does not index `Src2`"
    )


def test_competing_intrinsic_iterations_may_stay_empty() -> None:
    """One software iteration for two intrinsic ones: either is as full as it can be."""
    op = Operator.parse("out[m] += a[k,m] * b[k]", dict(m=4, k=4))
    both = intrinsic("Dst[i1,i2] += Src1[r1,i1,i2] * Src2[r1]", i1=2, i2=2, r1=2)
    for row in (0, 1):
        matrix = np.zeros((3, 2), dtype=bool)
        matrix[row, 0] = matrix[2, 1] = True
        assert check_matching(op, both, matrix)
    matrix[1, 0] = False
    assert check_matching(op, both, matrix).idle == (
        "`i1` stays empty though `m` could go there",
        "`i2` stays empty though `m` could go there",
    )


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((3, 6)), r"expected shape \(3, 7\).*got \(3, 6\)"),
        (np.zeros(7), r"got \(7,\)"),
        ([[0] * 7, [0] * 6, [0] * 7], "3 rows of 7 zeros and ones, got rows of different"),
        (None, r"expected shape \(3, 7\) .*, got NoneType"),
        ("101", "got str"),
        (np.full((3, 7), np.nan), "zeros and ones only"),
        (np.zeros((1, 3, 7)), r"got \(1, 3, 7\)"),
        (np.full((3, 7), 0.5), "zeros and ones only"),
        (np.full((3, 7), "x"), "expected zeros and ones"),
    ],
)
def test_what_is_no_matching(matrix: Any, message: str) -> None:
    with pytest.raises(MappingError, match=message):
        check_matching(CONV, WMMA, matrix)


def test_unknown_rule() -> None:
    with pytest.raises(MappingError, match="unknown rule 'best': rules are 'paper'"):
        judge("best", "npq", "k", "crs")


@pytest.mark.parametrize(
    ("text", "dtypes", "message"),
    [
        ("out[i] += a[i,k]", {}, "it has 1 source, the intrinsic takes 2"),
        ("out[i,j] = a[i] * b[j]", {}, "its arithmetic is multiply, the intrinsic's is multiply"),
        (
            "out[i,j] += a[i,k] * b[k,j]",
            {"a": "u8", "b": "s8", "out": "s32"},
            "`a` is uint8, its operand `Src1` is float16",
        ),
        (
            "out[i,j] += a[i,k] * b[k,j]",
            {"out": "f16"},
            "`out` is float16, its operand `Dst` is float32",
        ),
        (
            "out[i] += a[i] * b[i]",
            {},
            r"no iteration can go anywhere. `i1` \(spatial\): `i` indexes `b`, not indexed in "
            r"`Src2`; `i2` .*; `r1` \(reduce\): op has no reduce iteration",
        ),
    ],
)
def test_operators_that_cannot_use_the_intrinsic(
    text: str, dtypes: dict[str, str], message: str
) -> None:
    extents = {n: 4 for n in "ijk" if f"[{n}" in text or f",{n}" in text}
    op = Operator.parse(text, extents, dtypes, name="op")
    with pytest.raises(MappingError, match=f"op cannot use wmma_m16n16k16_f16_f32: .*{message}"):
        check_compatible(op, WMMA)


def test_one_open_tensor_cannot_be_of_two_dtypes() -> None:
    op = Operator.parse("out[i] += a[k] * a[i]", dict(i=4, k=4), name="op")
    with pytest.raises(MappingError, match=r"`a` feeds both `Src1` \(uint8\) and `Src2` \(int8\)"):
        check_compatible(op, intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32"))


def test_open_dtypes_fit() -> None:
    check_compatible(CONV, WMMA)


@pytest.mark.parametrize("order", [(0,), (0, 0), (1.0, 0), "01", 5, (0, 1, 2), (1, -1)])
def test_what_is_no_order_of_the_sources(order: Any) -> None:
    with pytest.raises(MappingError, match="order .*: expected a permutation of the 2 sources"):
        check_matching(CONV, WMMA, np.zeros((3, 7)), order=order)


def test_what_is_no_operator_or_intrinsic() -> None:
    with pytest.raises(MappingError, match="expected an Operator, got 'conv2d'; amos.Operator"):
        check_matching("conv2d", WMMA, np.zeros((3, 7)))  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="unknown intrinsic 'wmma': did you mean"):
        check_matching(CONV, "wmma", np.zeros((3, 7)))
    with pytest.raises(MappingError, match="expected an Intrinsic, got NoneType"):
        check_compatible(CONV, None)  # type: ignore[arg-type]


def test_two_ones_in_a_column_are_a_verdict() -> None:
    matrix = np.array([[it.name in g for it in CONV.iterations] for g in ("npq", "k", "crs")])
    matrix[0, 1] = True
    verdict = check_matching(CONV, WMMA, matrix, "paper")
    assert verdict.reasons == ("`k` goes to `i1` and `i2`, expected at most one",)
    assert verdict.cells == (("i1", "k"), ("i2", "k"))
    assert verdict.nearest == ("npq-k-crs",)
    assert str(verdict).endswith("expected at most one. Near it is 'npq-k-crs'")


@pytest.mark.parametrize("rule", ["paper", "access", "gather"])
def test_every_flipped_bit_has_a_verdict(rule: str) -> None:
    """A wrong one names right ones, none of which is further away than needed."""
    space = enumerate_mappings(CONV, WMMA, rule)
    columns = [np.array(m.assignment) for m in space]
    for mapping in list(space)[:: len(space) // 5]:
        for t, s in np.ndindex(mapping.matching.shape):
            flipped = mapping.matching.copy()
            flipped[t, s] ^= True
            verdict = check_matching(CONV, WMMA, flipped, rule)
            if verdict:
                assert not verdict.nearest
                continue
            targets = np.where(flipped.any(axis=0), flipped.argmax(axis=0), -1)
            targets[flipped.sum(axis=0) > 1] = -2  # whatever it becomes, it changes
            least = min(int((targets != column).sum()) for column in columns)
            for name in verdict.nearest:
                assert int((targets != np.array(space.find(name).assignment)).sum()) == least
            assert 1 <= len(verdict.nearest) <= 3


def test_a_rule_without_a_mapping_has_nothing_near() -> None:
    outer = Operator.parse("o[i,j] += a[i,k] * b[k]", dict(i=8, j=8, k=8))
    verdict = check_matching(outer, WMMA, [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "access")
    assert not verdict.nearest
    assert str(verdict).endswith("Rule 'access' accepts no matching")
    assert check_matching(outer, WMMA, [[1, 0, 0], [0, 1, 0], [0, 0, 0]], "gather").nearest == (
        "i-j-k",
    )


def test_the_nearest_of_many_loops_comes_at_once() -> None:
    text = "o[a,b,c,d,e,f,g,h,i,j] += x[a,b,c,d,e,k,l,m,n] * y[f,g,h,i,j,k,l,m,n]"
    wide = Operator.parse(text, dict.fromkeys("abcdefghijklmn", 4))
    verdict = check_matching(wide, WMMA, [[0] * 14] * 3, "paper")
    assert verdict.nearest == ("a-f-k", "a-f-l", "a-f-m")
