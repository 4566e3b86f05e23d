"""Counts, order, and the ways into a space of mappings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, islice
from time import thread_time
from typing import Any

import numpy as np
import pytest

from amos import intrinsics, operators
from amos.errors import MappingError
from amos.intrinsics import Intrinsic
from amos.intrinsics.virtual import unit
from amos.ir import Operator
from amos.mapping import Mapping, MappingSpace, enumerate_mappings
from amos.validate import check_matching

WMMA = intrinsics.get("wmma_m16n16k16_f16_f32")
VNNI = intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
CONV = Operator.parse(
    "out[n,k,p,q] += image[n,c,p*2+r,q*2+s] * weight[k,c,r,s]",
    dict(n=1, k=64, p=28, q=28, c=64, r=3, s=3),
    name="conv2d",
)


def best_time(action: Any, tries: int = 5) -> float:
    times = []
    for _ in range(tries):
        start = thread_time()
        action()
        times.append(thread_time() - start)
    return min(times)


@pytest.mark.parametrize(("name", "count"), operators.TABLE_6.items())
def test_table_6(name: str, count: int) -> None:
    assert len(enumerate_mappings(operators.get(name), WMMA, rule="paper")) == count


@pytest.mark.parametrize(("rule", "count"), [("paper", 35), ("access", 49), ("gather", 49)])
def test_conv2d_on_a_matrix_unit(rule: str, count: int) -> None:
    space = enumerate_mappings(CONV, WMMA, rule=rule)
    assert space.count == len(space) == count
    assert space[0].groups == {"i1": ("n", "p", "q"), "i2": ("k",), "r1": ("c", "r", "s")}
    assert len(set(space)) == count


def test_the_fourteen_that_paper_leaves_out() -> None:
    more = set(enumerate_mappings(CONV, WMMA, "access")) - set(
        enumerate_mappings(CONV, WMMA, "paper")
    )
    assert len(more) == 14
    assert "q-k-cs" in {m.name for m in more}


@pytest.mark.parametrize("rule", ["paper", "gather"])
def test_indexing_is_iterating(rule: str) -> None:
    space = enumerate_mappings(CONV, WMMA, rule, commute=True)
    listed = list(space)
    assert listed == [space[i] for i in range(len(space))]
    assert listed == space[:]
    assert listed[::-3] == space[::-3]
    assert space[-1] == listed[-1]
    assert all(m in space for m in listed)
    assert isinstance(space, Sequence)
    for position in (len(listed), -len(listed) - 1):
        with pytest.raises(IndexError):
            space[position]


def test_other_order_of_the_sources() -> None:
    space = enumerate_mappings(CONV, WMMA, commute=True)
    assert [m.order for m in space] == [(0, 1)] * 49 + [(1, 0)] * 49
    assert space[49].name == "k-npq-crs~10"
    assert space[49] not in enumerate_mappings(CONV, WMMA)


def test_equal_sources_have_one_order() -> None:
    square = Operator.parse("out[i] += a[i,k] * a[i,k]", dict(i=4, k=4))
    assert {m.order for m in enumerate_mappings(square, WMMA, commute=True)} == {(0, 1)}


def test_dtypes_decide_on_the_order() -> None:
    op = Operator.parse(
        "out[m] += a[m,k] * x[k]", dict(m=16, k=8), dict(a="s8", x="u8", out="s32"), name="gemv"
    )
    with pytest.raises(MappingError, match="in the order `x`, `a` it can: commute=True"):
        enumerate_mappings(op, VNNI)
    (mapping,) = enumerate_mappings(op, VNNI, commute=True)
    assert mapping.order == (1, 0)
    assert mapping.name == "m-k~10"


def test_open_dtypes_are_the_intrinsics() -> None:
    op = enumerate_mappings(CONV, WMMA)[0].operator
    assert [load.tensor.dtype for load in op.operands] == ["float16", "float16", "float32"]
    assert CONV.output.tensor.dtype is None


def test_an_empty_space() -> None:
    op = Operator.parse(
        "out[k,p] += image[p+r] * weight[k,2-r]", dict(k=4, p=4, r=3), name="reversed"
    )
    space = enumerate_mappings(op, WMMA, "paper")
    assert len(space) == 0
    assert not space
    assert list(space) == space[:] == []
    assert len(enumerate_mappings(op, WMMA, "access")) == 1


def test_a_kind_that_the_operator_lacks_stays_empty() -> None:
    gemv = operators.get("gemv")
    (mapping,) = enumerate_mappings(gemv, WMMA)
    assert mapping.groups["i2"] == ()
    assert "_" in mapping.name


def test_errors() -> None:
    with pytest.raises(MappingError, match="unknown rule 'union'"):
        enumerate_mappings(CONV, WMMA, rule="union")
    with pytest.raises(MappingError, match="it has 1 source"):
        enumerate_mappings(Operator.parse("out[i] += a[i,k]", dict(i=2, k=2)), WMMA, commute=True)
    # As many orders as there are sources would be tried for hours.
    many = Operator.parse(
        "out[i] += " + " * ".join(f"a{n}[i,k]" for n in range(24)), dict(i=2, k=2)
    )
    with pytest.raises(MappingError, match="24"):
        enumerate_mappings(many, WMMA, commute=True)


def test_frame() -> None:
    frame = enumerate_mappings(CONV, WMMA).to_frame()
    assert list(frame.columns) == ["name", "i1", "i2", "r1", "calls", "utilization"]
    assert len(frame) == 49
    assert frame.loc[0, "i1"] == "n, p, q"
    assert frame.loc[0, "calls"] == 49 * 4 * 36
    assert frame.loc[0, "utilization"] == 1.0
    both = enumerate_mappings(CONV, WMMA, commute=True).to_frame()
    assert list(both["order"].unique()) == [(0, 1), (1, 0)]


def test_the_180_of_conv3d_in_five_milliseconds() -> None:
    op = operators.get("conv3d")
    assert best_time(lambda: len(enumerate_mappings(op, WMMA))) < 0.005


def _wide(count: int) -> tuple[Operator, Intrinsic]:
    """``count`` spatial and as many reduce loops on three of each in the intrinsic."""
    spatial, reduce = [f"a{i}" for i in range(count)], [f"b{i}" for i in range(count)]
    op = Operator.parse(
        f"out[{','.join(spatial)}] += x[{','.join(spatial + reduce)}] * w[{','.join(reduce)}]",
        dict.fromkeys(spatial + reduce, 2),
    )
    compute = "Dst[i1,i2,i3] += Src1[i1,i2,i3,r1,r2,r3] * Src2[r1,r2,r3]"
    names = ["i1", "i2", "i3", "r1", "r2", "r3"]
    return op, unit(compute, dict.fromkeys(names, 2))


@pytest.mark.parametrize("rule", ["paper", "gather"])
def test_counting_is_not_listing(rule: str) -> None:
    op, cube = _wide(7)
    start = thread_time()
    space = enumerate_mappings(op, cube, rule)
    # Functions from 7 loops to 3 groups or none that leave no group empty, squared.
    onto = 4**7 - 3 * 3**7 + 3 * 2**7 - 1
    assert space.count == onto**2
    assert space[space.count // 2] in space
    assert len(list(islice(space, 100))) == 100
    assert thread_time() - start < 1
    assert list(islice(space, 50)) == space[:50]


def test_iteration_has_no_dead_ends() -> None:
    op, cube = _wide(10)
    assert best_time(lambda: next(iter(enumerate_mappings(op, cube, "gather"))), 1) < 1


def test_space_says_what_it_holds() -> None:
    space = enumerate_mappings(CONV, WMMA)
    assert isinstance(space, MappingSpace)
    assert repr(space).endswith("rule 'access': 49 mappings)")


def test_names_tell_mappings_apart() -> None:
    for op in (operators.get("conv3d"), operators.get("capsule_conv2d")):
        names = [m.name for m in enumerate_mappings(op, WMMA, "gather", commute=True)]
        assert len(set(names)) == len(names)


def test_mapping_of_a_matrix() -> None:
    first = enumerate_mappings(CONV, WMMA)[0]
    assert Mapping.of(CONV, WMMA, first.matching, "paper") == first
    wrong = np.zeros((3, 7))
    wrong[0, :2] = wrong[2, 4] = 1
    with pytest.raises(MappingError, match="`n` and `k` both go to `i1`"):
        Mapping.of(CONV, WMMA, wrong)


def test_orders_are_permutations_of_the_sources() -> None:
    op = Operator.parse("out[i,j] += a[i,k] * b[k] * d[k,j]", dict(i=2, j=2, k=2))
    three = unit("Dst[i1,i2] += Src1[i1,r1] * Src2[r1] * Src3[r1,i2]", dict(i1=2, i2=2, r1=2))
    space = enumerate_mappings(op, three, "gather", commute=True)
    orders = sorted({m.order for m in space})
    assert (0, 1, 2) in orders
    assert (2, 1, 0) in orders
    for first, second in combinations(space, 2):
        assert first != second
    for mapping in space:
        assert check_matching(op, three, mapping.matching, "gather", order=mapping.order)
