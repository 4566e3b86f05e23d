"""Schedule spaces: what they draw is feasible, and refusals name what is broken."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amos
from amos.errors import ScheduleError
from amos.ir import Operator
from amos.mapping import Mapping
from amos.perfmodel import evaluate
from amos.plan import Candidate, Schedule, Structure, batch_of
from amos.schedule import ScheduleSpace
from tests.support.models import plan_of

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
XEON = amos.machines.get("xeon_6240")

CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=14, q=12, k=64, c=20, r=3, s=3),
    shapes=dict(image=(1, 14, 12, 20)),
)
MAPPINGS = list(amos.enumerate_mappings(CONV, VNNI, rule="gather"))

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=40)
@given(st.sampled_from(MAPPINGS), seeds)
def test_what_is_drawn_is_feasible(mapping: Mapping, seed: int) -> None:
    space, rng = ScheduleSpace(mapping), np.random.default_rng(seed)
    first = space.sample(rng)
    for schedule in (first, space.smallest(), space.mutate(first, rng)):
        assert space.violations(schedule) == ()
        assert space.check(schedule) is schedule


@settings(max_examples=20)
@given(st.sampled_from(MAPPINGS), seeds)
def test_the_same_seed_draws_the_same(mapping: Mapping, seed: int) -> None:
    space = ScheduleSpace(mapping)
    drawn = [space.sample(np.random.default_rng(seed)) for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_mutation_changes_few_variables() -> None:
    space, rng = ScheduleSpace(MAPPINGS[0]), np.random.default_rng(0)
    schedule = space.sample(rng)
    start = schedule.as_dict()
    changed = [
        sum(start.get(n) != v for n, v in space.mutate(schedule, rng).values) for _ in range(50)
    ]
    assert max(changed) <= 2
    assert any(changed)


def test_size_counts_assignments() -> None:
    space = ScheduleSpace(MAPPINGS[0])
    assert space.size == prod(len(domain) for domain in space.variables.values())
    tiny = Operator.parse("out[i] += a[k] * weight[i,k]", extents=dict(i=16, k=4))
    assert ScheduleSpace(amos.enumerate_mappings(tiny, VNNI)[0]).size == 1


def test_a_space_without_variables_draws_its_only_schedule() -> None:
    tiny = Operator.parse("out[i] += a[k] * weight[i,k]", extents=dict(i=16, k=4))
    space, rng = ScheduleSpace(amos.enumerate_mappings(tiny, VNNI)[0]), np.random.default_rng(0)
    only = space.sample(rng)
    assert only == space.smallest() == Schedule.of({})
    assert space.mutate(only, rng) == only


def test_each_number_of_steps_has_one_tile() -> None:
    """The smallest one: a larger tile with as many steps would only pad more."""
    for mapping in MAPPINGS:
        space = ScheduleSpace(mapping)
        extents = {loop.name: loop.extent for loop in space.nest.loops}
        for name, domain in space.variables.items():
            if name.startswith("tile."):
                loop = extents[name.removeprefix("tile.")]
                steps = [-(-loop // int(tile)) for tile in domain]
                assert len(set(steps)) == len(steps)
                assert set(steps) == {-(-loop // t) for t in range(1, min(loop, 32) + 1)}
                assert {t for t in range(1, min(loop, 32) + 1) if loop % t == 0} <= set(domain)


def test_divisors_only() -> None:
    for mapping in MAPPINGS:
        space, rng = ScheduleSpace(mapping, tiling="divisors"), np.random.default_rng(0)
        for schedule in space.draw(20, rng):
            assert not plan_of(mapping, schedule).padded
            assert ScheduleSpace(mapping).is_feasible(schedule)


def _gemm(size: int) -> ScheduleSpace:
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=size, j=64, k=64))
    return ScheduleSpace(amos.enumerate_mappings(op, VNNI)[0], XEON)


def test_a_prime_extent_has_as_good_a_space() -> None:
    """2039 is prime: with divisors alone nothing but 1 could be a register tile."""
    prime, even = _gemm(2039), _gemm(2048)
    assert prime.variables["tile.i"] == even.variables["tile.i"] == tuple(range(1, 33))
    assert prime.size == even.size
    alone = ScheduleSpace(prime.mapping, XEON, tiling="divisors")
    assert alone.variables["tile.i"] == (1,)
    best = []
    for space in (prime, even, alone):
        structure = Structure(space.mapping)
        batch = batch_of(structure, space.draw(300, np.random.default_rng(0)))
        best.append(evaluate(structure, XEON, batch).seconds.min())
    assert best[0] == pytest.approx(best[1], rel=0.05)
    assert best[0] <= best[2]


def test_the_space_does_not_grow_with_factors() -> None:
    sizes = {extent: _gemm(extent).size for extent in (2039, 2048, 2520, 55440, 720720)}
    assert len(set(sizes.values())) == 1


def test_constants_are_packed_ahead_and_others_staged() -> None:
    assert {op.name for op in ScheduleSpace(MAPPINGS[0]).context.gathered} == {"Src1"}
    assert ScheduleSpace(MAPPINGS[0]).variables["stage.Src1"] == ("whole", "tile")


def _changed(space: ScheduleSpace, **changes: int | str) -> Schedule:
    names = {name.replace(".", "_"): name for name in space.variables}
    values = {names.get(n, n): value for n, value in changes.items()}
    return Schedule.of(space.smallest().as_dict() | values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(unroll=3), ["unroll = 3 is not one of"]),
        (dict(tile_p=6), ["tile.p = 6 is not one of"]),
        (dict(tile_p=14, block_p=2), ["a block of p is longer than the loop"]),
        (dict(order="p p p"), ["order = 'p p p' is not one of"]),
        (dict(tile_p=14, tile_q=12), ["fragments live at once, but 32 registers"]),
        (dict(unroll=3, split=2), ["unroll = 3 is not one of", "split = 2"]),
    ],
)
def test_violations_say_what_is_broken(changes: dict[str, int | str], words: list[str]) -> None:
    space = ScheduleSpace(MAPPINGS[0])
    schedule = _changed(space, **changes)
    violations = space.violations(schedule)
    assert len(violations) == len(words)
    assert all(word in text for word, text in zip(words, violations, strict=True))
    with pytest.raises(ScheduleError, match=f"schedule of {MAPPINGS[0].name}: "):
        space.check(schedule)


def test_a_missing_variable_is_a_violation() -> None:
    space = ScheduleSpace(MAPPINGS[0])
    values = space.smallest().as_dict()
    del values["tile.p"]
    assert space.violations(Schedule.of(values)) == ("tile.p has no value",)
    wrong = Schedule.of(values | {"tile.p": 1, "tile.zz": 1})
    assert space.violations(wrong) == ("unknown variable 'tile.zz'",)


def test_what_has_a_default_may_be_left_out() -> None:
    """Assignments that were written down before there were blocks stay feasible."""
    space = ScheduleSpace(MAPPINGS[0])
    smallest = space.smallest()
    assert not any(name.startswith(("block.", "vector")) for name, _ in smallest.values)
    assert space.violations(smallest) == ()
    assert space.values(smallest)["block.p"] == 1


def test_candidates_are_told_apart_by_mapping_and_schedule() -> None:
    a, b = (ScheduleSpace(m).smallest() for m in MAPPINGS[:2])
    keys = {Candidate(MAPPINGS[0], a).key, Candidate(MAPPINGS[1], b).key}
    keys.add(Candidate(MAPPINGS[0], Schedule.of(a.as_dict())).key)
    assert len(keys) == 2
    assert MAPPINGS[0].name in repr(Candidate(MAPPINGS[0], a))


def test_registers_that_no_description_tells_are_no_property_of_the_hardware() -> None:
    gemm = amos.operators.resolve("gemm")
    roles = {}
    for unit in (amos.intrinsics.get("mali_arm_dot_m1k4_s8_s32"), VNNI):
        (mapping,) = amos.enumerate_mappings(gemm, unit)
        roles[unit.registers] = ScheduleSpace(mapping).csp.variables["registers"].role
    assert roles == {0: "other", VNNI.registers: "architecture"}
