"""Sets of assignments: what they count, list and index is the same thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amos.errors import MappingError
from amos.intrinsics.virtual import unit
from amos.ir import Operator
from amos.mapping import enumerate_mappings, spaces
from amos.mapping.spaces import KEPT, AssignmentSet, bound_iterations

CONV_4D = "out[n,k,b,d,p,q] += x[n,c,b+e,d+t,p+r,q+s,m] * w[k,c,e,t,r,s,m]"


SIX = unit(
    "Dst[i1,i2,i3] += Src1[i1,i2,r1,r2,r3] * Src2[i3,r1,r2,r3]",
    dict.fromkeys(["i1", "i2", "i3", "r1", "r2", "r3"], 4),
)
FIVE = unit(
    "Dst[i1,i2,i3] += Src1[i1,i2,r1,r2] * Src2[i3,r1,r2]",
    dict.fromkeys(["i1", "i2", "i3", "r1", "r2"], 4),
)


@dataclass(frozen=True)
class Drawn:
    """What an :class:`AssignmentSet` is made of."""

    options: tuple[tuple[int, ...], ...]
    rank: int
    conflicts: tuple[int, ...]

    def brute_force(self) -> list[tuple[int, ...]]:
        """Assignments in which each pair lies in a choice of one for each filled group."""
        accepted = []
        for assignment in self.everything():
            groups = [
                [s for s, at in enumerate(assignment) if at == t]
                for t in sorted(set(assignment) - {-1})
            ]
            if len(groups) < self.rank:
                continue
            good = {
                s
                for chosen in product(*groups)
                if not any(self.conflicts[a] >> b & 1 for a in chosen for b in chosen if a != b)
                for s in chosen
            }
            if all(s in good for group in groups for s in group):
                accepted.append(assignment)
        return accepted

    def everything(self) -> Iterator[tuple[int, ...]]:
        return product(*((*targets, -1) for targets in self.options))


@st.composite
def sets(draw: st.DrawFn) -> Drawn:
    """Few kinds of iterations, so that many are twins; some may go to two places.

    Iterations of a kind have equal options and equal conflicts, whatever their number.
    """
    steps, kinds = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    targets = st.lists(st.integers(0, steps - 1), unique=True, max_size=steps).map(sorted)
    options = [tuple(draw(targets)) for _ in range(kinds)]
    between = [[draw(st.integers(0, 2)) == 0 for _ in range(a + 1)] for a in range(kinds)]
    kind = draw(st.lists(st.integers(0, kinds - 1), min_size=1, max_size=5))
    conflicts = tuple(
        sum(1 << b for b, second in enumerate(kind)
            if a == b or between[max(first, second)][min(first, second)])
        for a, first in enumerate(kind)
    )  # fmt: skip
    return Drawn(tuple(options[k] for k in kind), draw(st.integers(1, steps)), conflicts)


@given(sets())
@settings(max_examples=150, derandomize=True)
def test_sets_are_those_of_brute_force(drawn: Drawn) -> None:
    expected = drawn.brute_force()
    for limit in (KEPT, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spaces, "KEPT", limit)
            listed = AssignmentSet(drawn.options, drawn.rank, drawn.conflicts)
            assert list(listed) == expected
            assert listed.count == len(expected)
            assert [listed.at(i) for i in range(listed.count)] == expected
            assert [name for name in drawn.everything() if name in listed] == expected


def test_a_large_space_is_indexed_without_being_stored() -> None:
    op = Operator.parse(CONV_4D, dict.fromkeys("nkbdpqcetrsm", 3))
    space = enumerate_mappings(op, FIVE)
    assert space.count > KEPT
    period = 997
    place = -1
    for place, mapping in enumerate(space):
        if place % period == 0:
            assert space[place] == mapping
    assert place + 1 == space.count
    assert space[-1] == mapping


@pytest.mark.parametrize("rule", ["paper", "gather"])
def test_fourteen_loops_on_six_iterations_are_counted_in_a_second(rule: str) -> None:
    text = CONV_4D.replace("[n,", "[n,g,").replace("s,m]", "s,m,l]")
    op = Operator.parse(text, dict.fromkeys("ngkbdpqcetrsml", 3))
    assert (len(op.iterations), len(SIX.iterations)) == (14, 6)
    assert 7 ** len(op.iterations) > 10**11
    start = thread_time()
    space = enumerate_mappings(op, SIX, rule)
    count = space.count
    assert thread_time() - start < 1
    assert count == (2_300_196 if rule == "paper" else 6_144_012)
    assert space.find(space[count // 3].name) == space[count // 3]


def test_bound_iterations_are_those_that_can_exclude_each_other() -> None:
    # 0 and 1 share a dimension, as do 2 and 3; 2 and 3 have one place to go to.
    conflicts = (0b0011, 0b0011, 0b1100, 0b1100)
    assert bound_iterations(((0,), (1,), (0,), (0,)), conflicts) == ((0, 1),)
    assert bound_iterations(((0,), (0,), (0,), (0,)), conflicts) == ()


def test_products_are_kept_or_walked_alike() -> None:
    small, large = AssignmentSet(((0,),) * 5, 1), AssignmentSet(((0, 1),) * 8, 2)
    assert small.count <= KEPT < large.count
    for listed in (small, large):
        assert list(listed) == [listed.at(i) for i in range(listed.count)]


def test_tables_of_huge_spaces_need_a_limit() -> None:
    op = Operator.parse(CONV_4D, dict.fromkeys("nkbdpqcetrsm", 3))
    space = enumerate_mappings(op, SIX, "gather")
    with pytest.raises(MappingError, match=r"all 378000 mappings.*to_frame\(limit=100000\)"):
        space.to_frame()
    with pytest.raises(MappingError, match="limit: expected 0 or more, got -1"):
        space.to_frame(limit=-1)
    frame = space.to_frame(limit=5)
    assert list(frame["name"]) == [mapping.name for mapping in space[:5]]
    assert frame.attrs["count"] == 378000
    assert len(space.to_frame(limit=0)) == 0
