"""Products of many loops pass 64 bits; limits on them are met or broken as before."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.errors import ScheduleError
from amos.schedule import CSP, In, Le, Prod, ScheduleSpace, Sum, Variable, solver

_LOOPS = tuple(f"x{number}" for number in range(9))


def _many_loops(limit: int, largest: int = 2**12) -> CSP:
    """The product of nine loops of 1 or many steps, beside a sum, within a limit."""
    variables = [
        *(Variable(name, "tunable", (1, 2, 3, largest)) for name in _LOOPS),
        Variable("one", "architecture", (1,)),
        Variable("limit", "architecture", (limit,)),
        *(Variable(name, "length") for name in ("product", "twice", "sum")),
    ]
    constraints = (
        Prod("product", _LOOPS),
        Prod("twice", ("product", "product")),
        Sum("sum", ("twice", "one")),
        Le("sum", "limit"),
    )
    return CSP({v.name: v for v in variables}, constraints)


def test_the_solver_counts_as_propagation_does() -> None:
    csp = _many_loops(10)
    all_values = solver.sample(csp, 1_000, np.random.default_rng(0))
    # All are 1, or one is 2 or 3.
    assert len(all_values) == 1 + 2 * len(_LOOPS)
    for values in ({"x0": 2}, {"x0": 3}, {"x8": 3}):
        solved = solver.solve(csp, values)
        assert solved is not None
        assert not csp.find_violated({name: (at,) for name, at in solved.items()})
    for values in ({"x0": 4096}, {"x0": 2, "x8": 2}, dict.fromkeys(_LOOPS, 4096)):
        assert solver.solve(csp, values) is None


def test_conflicts_are_named() -> None:
    many = [In(name, (4096,), "given") for name in _LOOPS]
    core = solver.explain(_many_loops(10), many)
    assert Le("sum", "limit") in core
    assert len(core) == 2


def test_a_limit_that_is_too_large_is_refused_by_its_name() -> None:
    with pytest.raises(ScheduleError, match="schedule variable 'limit': expected 0 to 268,435,455"):
        solver.solve(_many_loops(2**30))


@pytest.mark.parametrize("machine", ["vta_pynq", "gemmini"])
def test_convolutions_in_three_dimensions_have_schedules_on_streams(machine: str) -> None:
    unit = amos.machines.get(machine)
    (name,) = [each for each in amos.intrinsics.names() if each.startswith(machine.split("_")[0])]
    op = amos.operators.resolve("conv3d", dtype="s8")
    mapping = amos.enumerate_mappings(op, name).find("pq-k-cs")
    space = ScheduleSpace(mapping, unit)
    (drawn,) = solver.sample(space.csp, 1, np.random.default_rng(0))
    solved = solver.solve(space.csp, rng=np.random.default_rng(0))
    assert solved is not None
    for assignment in (drawn, solved):
        assert space.violations(space.schedule(assignment)) == ()
