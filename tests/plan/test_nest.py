"""Peeling and the loops around the calls."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import amos
from amos.ir import Operator
from amos.mapping import Mapping
from amos.plan.nest import Group, Nest

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")

EXTENTS = st.fixed_dictionaries({name: st.integers(1, 9) for name in "npkcrs"})


def _conv(extents: dict[str, int]) -> Operator:
    text = "out[n,k,p] += image[n,c,p+r,s] * weight[k,c,r,s]"
    return Operator.parse(text, extents=extents)


@given(EXTENTS, st.data())
def test_every_loop_is_kept_once(extents: dict[str, int], data: st.DataObject) -> None:
    space = amos.enumerate_mappings(_conv(extents), VNNI, rule="gather")
    mapping = space[data.draw(st.integers(0, space.count - 1))]
    nest = Nest(mapping)
    members = [name for group in nest.groups.values() for name in group.members]
    outer = [loop.name for loop in nest.outer]
    assert sorted(members + outer) == sorted(extents)
    assert [loop.name for loop in nest.tiles] == ["i1.tile", "r1.tile"]
    assert nest.loops == nest.outer + nest.tiles
    assert set(nest.spatial) | set(nest.reduce) == set(nest.loops)
    assert [loop.name for loop in nest.spatial if loop.name in extents] == [
        it.name for it in mapping.operator.spatial if it.name in outer
    ]


@given(EXTENTS, st.data())
def test_peeling_keeps_the_calls(extents: dict[str, int], data: st.DataObject) -> None:
    space = amos.enumerate_mappings(_conv(extents), VNNI, rule="gather")
    mapping = space[data.draw(st.integers(0, space.count - 1))]
    assert Nest(mapping).calls == mapping.physical().calls


@given(EXTENTS, st.data())
def test_calls_cover_the_same_points_with_and_without_peeling(
    extents: dict[str, int], data: st.DataObject
) -> None:
    """The set of (call, slot) → software point is the physical mapping's, call by call."""
    space = amos.enumerate_mappings(_conv(extents), VNNI, rule="gather")
    mapping = space[data.draw(st.integers(0, space.count - 1))]
    for group in Nest(mapping).groups.values():
        members = mapping.groups[group.target]
        peeled = members[: len(members) - len(group.members)]
        assert group.members == members[len(peeled) :]
        if peeled and prod(extents[name] for name in peeled) > 1:
            assert group.size % group.lanes == 0 or all(extents[n] == 1 for n in peeled)
        if group.members:
            assert (
                group.tiles * prod(extents[n] for n in peeled)
                == mapping.physical().tiles[group.target]
            )


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_decode_is_the_mixed_radix(radices: list[int]) -> None:
    members = tuple(f"x{n}" for n in range(len(radices)))
    group = Group("i1", "spatial", 4, members, tuple(radices))
    fused = np.arange(group.size)
    digits = group.decode(fused)
    expected = np.unravel_index(fused, radices)
    for name, digit in zip(members, expected, strict=True):
        np.testing.assert_array_equal(digits[name], digit)


@pytest.mark.parametrize(
    ("extents", "members", "outer"),
    [
        (dict(c=8, r=3), ("c", "r"), []),  # 3 is no multiple of 4
        (dict(c=3, r=4), ("r",), ["c"]),
        (dict(c=3, r=8), ("r",), ["c"]),
        (dict(c=1, r=3), ("r",), ["c"]),  # an extent of 1 never varies
        (dict(c=5, r=1), ("c", "r"), []),
    ],
)
def test_what_is_peeled(
    extents: dict[str, int], members: tuple[str, ...], outer: list[str]
) -> None:
    op = Operator.parse("out[k] += a[c,r] * weight[k,c,r]", extents=dict(k=16, **extents))
    mapping = Mapping.of(op, VNNI, [[1, 0, 0], [0, 1, 1]])
    nest = Nest(mapping)
    assert nest.groups["r1"].members == members
    assert [loop.name for loop in nest.outer] == outer


def test_an_empty_group_is_one_padded_slice() -> None:
    group = Group("i2", "spatial", 16, (), ())
    assert (group.size, group.tiles, group.is_padded) == (1, 1, True)
    assert group.decode(0) == {}
    assert (group.tile, group.lane) == ("i2.tile", "i2.lane")
