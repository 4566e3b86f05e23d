"""Constraints: propagation, enumeration and CP-SAT agree on what is feasible."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import amos
from amos.errors import ScheduleError, UnknownNameError
from amos.ir import Operator
from amos.plan.strided import destination_form, source_forms
from amos.schedule import (
    CSP,
    RULES,
    Constraint,
    Draft,
    Eq,
    In,
    Le,
    Prod,
    Rule,
    ScheduleSpace,
    Select,
    Sum,
    Variable,
    solver,
    spaces_of,
)
from amos.schedule.sampler import decode, descend, enumerate_assignments

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
WMMA = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
A100, XEON = amos.machines.get("a100"), amos.machines.get("xeon_6240")
CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=14, q=12, k=64, c=20, r=3, s=3),
    shapes=dict(image=(1, 14, 12, 20)),
)
SPACES = [ScheduleSpace(m, XEON) for m in amos.enumerate_mappings(CONV, VNNI, rule="gather")]
seeds = st.integers(0, 2**32 - 1)


def _toy(*extra: Prod | Sum | Eq | Le | In | Select) -> CSP:
    """x * y <= 8, and z is the x-th of three numbers."""
    variables = [
        Variable("x", "tunable", (1, 2, 3)),
        Variable("y", "tunable", (1, 2, 4, 8)),
        Variable("w", "tunable", ("a", "b")),
        Variable("limit", "architecture", (8,)),
        Variable("xy", "length"),
        Variable("z", "length"),
        Variable("s", "length"),
    ]
    constraints = (
        Prod("xy", ("x", "y"), "toy"),
        Le("xy", "limit", "toy"),
        Select("z", "x", (5, 7, "y"), "toy"),
        Sum("s", ("xy", "z"), "toy"),
        *extra,
    )
    return CSP({v.name: v for v in variables}, constraints)


def _brute(csp: CSP) -> list[dict[str, int]]:
    domains = [range(len(v.domain)) for v in csp.tunables]
    names = [v.name for v in csp.tunables]
    solutions = []
    for point in itertools.product(*domains):
        at = dict(zip(names, point, strict=True))
        if not csp.find_violated({name: (position,) for name, position in at.items()}):
            solutions.append(at)
    return solutions


TOYS = [
    _toy(),
    _toy(In("s", (6, 9, 12))),
    _toy(Le("limit", "s")),
    _toy(Eq("z", "y")),
    _toy(In("w", ("b",)), In("x", (2, 3))),
    _toy(Le("s", "x")),
]


@pytest.mark.parametrize("csp", TOYS)
@pytest.mark.parametrize("largest", [2**40, 1])
def test_all_ways_agree_on_small_problems(
    csp: CSP, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where values saturate, as those of large problems do."""
    monkeypatch.setattr(solver, "_LARGEST", largest)
    expected = _brute(csp)
    assert enumerate_assignments(csp, 10_000) == expected
    assert solver.count(csp) == len(expected)
    assert (solver.solve(csp) is not None) == bool(expected)
    drawn = solver.sample(csp, 100, np.random.default_rng(0))
    assert sorted(map(str, drawn)) == sorted(map(str, expected))
    for at in itertools.product(range(3), range(4), ("a", "b")):
        partial = dict(x=csp.variables["x"].domain[at[0]], y=(1, 2, 4, 8)[at[1]], w=at[2])
        point = {"x": at[0], "y": at[1], "w": "ab".index(at[2])}
        assert (solver.solve(csp, partial) is not None) == (point in expected)


@settings(max_examples=25)
@given(st.sampled_from(SPACES), seeds)
def test_propagation_and_the_solver_agree(space: ScheduleSpace, seed: int) -> None:
    """On random assignments of real spaces, feasible or not."""
    rng = np.random.default_rng(seed)
    for _ in range(3):
        values = {n: d[int(rng.integers(len(d)))] for n, d in space.variables.items()}
        schedule = space.schedule(space.csp.positions(values))
        assert space.is_feasible(schedule) == (space.violations(schedule) == ())
        assert space.is_feasible(schedule) == (solver.solve(space.csp, values) is not None)
    drawn = descend(space.csp, rng)
    assert drawn is not None
    assignment = {name: domain[drawn[name]] for name, domain in space.variables.items()}
    assert solver.solve(space.csp, assignment) == drawn
    assert space.csp.positions(space.schedule(drawn).as_dict()) == drawn
    solved = solver.solve(space.csp, rng=rng)
    assert solved is not None
    assert space.violations(space.schedule(solved)) == ()


@settings(max_examples=25)
@given(st.sampled_from(SPACES), seeds)
def test_bounds_hold_for_every_completion(space: ScheduleSpace, seed: int) -> None:
    """What a partial assignment leaves possible contains what its completions are."""
    rng = np.random.default_rng(seed)
    whole = descend(space.csp, rng)
    assert whole is not None
    for name in space.variables:
        domains = {
            n: (at,) if rng.integers(2) or n == name else space.csp.allowed[n]
            for n, at in whole.items()
        }
        low, high = space.csp.bounds(domains)
        exact, _ = space.csp.bounds({n: (at,) for n, at in whole.items()})
        numbered = zip(space.csp.names, low, exact, high, strict=False)
        assert all(a <= b <= c for n, a, b, c in numbered if n not in ("kept", "held", "fragments"))
        assert space.csp.is_possible(domains)


def _smallest(csp: CSP) -> int:
    """Size of the smallest conflict, by trying every set of limits and candidates."""
    loose = [c for c in csp.constraints if isinstance(c, Le | In)]
    constraints = tuple(c for c in csp.constraints if not isinstance(c, Le | In))
    for size in range(1, len(loose) + 1):
        for some in itertools.combinations(loose, size):
            if not _brute(CSP(csp.variables, constraints + some)):
                return size
    return 0


def _pairs(count: int) -> CSP:
    """Each of the limits leaves out one value, so that all of them are in conflict."""
    variables = [Variable("x", "tunable", tuple(range(1, count + 1)), None, "toy")]
    limits = [
        In("x", tuple(n for n in range(1, count + 1) if n != out), "given")
        for out in range(1, count + 1)
    ]
    return CSP({v.name: v for v in variables}, tuple(limits))


CONFLICTS = [
    _toy(Le("limit", "s"), In("y", (1,)), In("x", (1,)), In("w", ("a",))),
    _toy(In("s", (6,)), In("y", (8,)), In("z", (7,)), Le("limit", "xy")),
    _toy(In("x", (1,)), In("y", (4, 8)), In("z", (7, 8)), In("s", (40,)), Le("limit", "x")),
    *(_pairs(count) for count in (1, 2, 3, 4, 5)),
]


@pytest.mark.parametrize("csp", CONFLICTS)
@pytest.mark.parametrize("largest", [2**40, 1])
def test_a_conflict_of_any_size_is_the_smallest(
    csp: CSP, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver, "_LARGEST", largest)
    core = solver.explain(csp)
    assert core
    assert len(core) == _smallest(csp)
    constraints = tuple(c for c in csp.constraints if not isinstance(c, Le | In))
    assert not _brute(CSP(csp.variables, constraints + core))
    for spare in core:
        reduced = tuple(c for c in core if c is not spare)
        assert _brute(CSP(csp.variables, constraints + reduced))


@settings(max_examples=30)
@given(
    st.lists(
        st.sampled_from(
            [
                *(In("x", v, "given") for v in ((1,), (2, 3), (1, 3))),
                *(In("y", v, "given") for v in ((1, 2), (4,), (8,), (2, 4))),
                *(In("s", v, "given") for v in ((6,), (9, 12), (40,))),
                *(In("z", v, "given") for v in ((5, 7), (7, 8))),
                *(Le(a, b, "given") for a, b in (("limit", "s"), ("x", "y"), ("y", "x"))),
            ]
        ),
        max_size=6,
        unique=True,
    )
)
def test_conflicts_by_brute_force(extra: list[Constraint]) -> None:
    csp = _toy(*extra)
    core = solver.explain(csp)
    assert len(core) == _smallest(csp)
    assert bool(core) == (not _brute(csp))


def test_registers_by_hand() -> None:
    """Accumulators, the narrower source, and one fragment of the other."""
    for space in SPACES[:4]:
        nest = space.nest
        dims = [list(op.dims) for op in (*source_forms(nest), destination_form(nest))]
        loops = [{n for dim in ds for n in dim.index.names} for ds in dims]
        for schedule in space.draw(20, np.random.default_rng(1)):
            counts = []
            for used in loops:
                elements = 1
                for loop in space.context.spatial:
                    elements *= schedule.tile[loop.name] if loop.name in used else 1
                counts.append(elements)
            assert counts[-1] + min(counts[:-1]) + 1 <= 32


def test_the_same_seed_draws_the_same_in_another_process() -> None:
    code = (
        "import json, numpy as np, amos; from amos.schedule import ScheduleSpace;"
        "op = amos.operators.resolve('resnet18:C5');"
        "m = amos.enumerate_mappings(op, amos.intrinsics.get('wmma_m16n16k16_f16_f32'))[0];"
        "s = ScheduleSpace(m, amos.machines.get('a100'));"
        "print(json.dumps([str(x) for x in s.draw(20, np.random.default_rng(7))]))"
    )
    there = json.loads(
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    )
    mapping = amos.enumerate_mappings(amos.operators.resolve("resnet18:C5"), WMMA)[0]
    here = ScheduleSpace(mapping, A100).draw(20, np.random.default_rng(7))
    assert there == [str(schedule) for schedule in here]
    assert len(set(there)) == 20


def test_sampling_is_fast() -> None:
    """200 different feasible candidates a second; a fraction of that on a busy machine."""
    mapping = amos.enumerate_mappings(amos.operators.resolve("conv2d"), WMMA)[0]
    space = ScheduleSpace(mapping, A100)
    space.draw(1, np.random.default_rng(0))
    start = time.thread_time()
    drawn = space.draw(200, np.random.default_rng(0))
    assert len(set(drawn)) == 200
    assert time.thread_time() - start < 1.0


def test_a_partial_assignment_is_completed() -> None:
    space, rng = SPACES[0], np.random.default_rng(0)
    for schedule in space.draw(5, rng, solver.fix_values({"parallel": 2, "tile.p": 7})):
        assert (schedule.as_dict().get("parallel"), schedule.tile["p"]) == (2, 7)
        assert space.violations(schedule) == ()
    with pytest.raises(UnknownNameError, match=r"unknown schedule variable 'tile\.zz'"):
        space.draw(1, rng, solver.fix_values({"tile.zz": 1}))
    with pytest.raises(ScheduleError, match=r"infeasible: .*tile\.p in \[14\].*tile\.q in \[12\]"):
        space.fix(solver.fix_values({"tile.p": 14, "tile.q": 12})).sample(rng)


def test_a_conflict_is_as_small_as_it_gets() -> None:
    space = SPACES[0]
    fixed = solver.fix_values({"tile.p": 14, "tile.q": 12, "parallel": 1, "unroll": 2})
    core = solver.explain(space.csp, fixed)
    assert {str(c) for c in core} == {
        "tile.p in [14]",
        "tile.q in [12]",
        "fragments <= registers",
    }
    assert solver.explain(space.csp, solver.fix_values({"tile.p": 7})) == ()
    twice = [In("tile.p", (7,), "given"), In("tile.p", (14,), "given"), In("tile.q", (1,), "given")]
    assert set(solver.explain(space.csp, twice)) == set(twice[:2])


def test_a_wish_is_met_as_far_as_it_goes() -> None:
    space, rng = SPACES[0], np.random.default_rng(0)
    feasible = descend(space.csp, rng)
    assert feasible is not None
    assert decode(space.csp, feasible, rng) == feasible
    too_much = space.repair({"tile.p": 14, "tile.q": 12, "unroll": 4, "colour": 1}, rng)
    assert space.violations(too_much) == ()
    assert too_much.as_dict().get("unroll") == 4


def test_values_of_a_problem_that_makes_no_sense_are_refused() -> None:
    x = {"x": Variable("x", "tunable", (1, 2)), "y": Variable("y", "length")}
    with pytest.raises(ScheduleError, match="no constraint defines y"):
        CSP(x, ())
    with pytest.raises(ScheduleError, match="unknown variable z"):
        CSP(x, (Prod("y", ("x", "z")),))
    with pytest.raises(ScheduleError, match="y is not defined before it"):
        CSP(x, (Le("y", "x"), Prod("y", ("x",))))


def test_a_rule_of_a_plug_in() -> None:
    """Every rule's constraints reach the space; nothing else has to know of it."""

    def even(draft: Draft) -> None:
        if "unroll" in draft.variables:
            draft.require(In("unroll", (2, 4), draft.rule))

    RULES.append(Rule("even", even))
    try:
        space = ScheduleSpace(SPACES[0].mapping, XEON)
        assert space.csp.by_rule()["even"] == 1
        drawn = space.draw(50, np.random.default_rng(0))
        assert {schedule.as_dict().get("unroll") for schedule in drawn} == {2, 4}
    finally:
        RULES.pop()


def test_fixed_values_leave_mappings_that_have_them() -> None:
    mappings = [space.mapping for space in SPACES]
    every_space = spaces_of(mappings, XEON)
    assert every_space.keys() == {mapping.name for mapping in mappings}
    fixed = spaces_of(mappings, XEON, [("tile_p", 7)])
    assert 0 < len(fixed) <= len(mappings)
    for space in fixed.values():
        assert space.sample(np.random.default_rng(0)).tile["p"] == 7
    with pytest.raises(UnknownNameError, match="unknown schedule variable 'tile_zz'"):
        spaces_of(mappings, XEON, [("tile_zz", 1)])
    with pytest.raises(ScheduleError, match=r"tile\.p in \[7\].*tile\.p in \[14\]"):
        spaces_of(mappings, XEON, [("tile_p", 7), ("tile.p", 14)])
