"""The operators of the genetic search, registered in a DEAP toolbox.

Operators may break constraints. As usual in DEAP, a decorator handles them: the solver repairs
the individuals that an operator returns.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from operator import attrgetter
from typing import Any

import numpy as np
from deap import base

from amos.errors import ExploreError, quote
from amos.explore.individual import Individual, positions_of
from amos.explore.method import goes_elsewhere
from amos.explore.objective import Problem
from amos.mapping import Mapping as LoopMapping

Function = Callable[..., Any]
_TOURNAMENT = 3


def build_toolbox(
    problem: Problem, rng: np.random.Generator, exchanged: Mapping[str, Function]
) -> base.Toolbox:
    """Build a toolbox with the operators of the search, or those that a user exchanged for them."""
    toolbox = base.Toolbox()
    toolbox.register("clone", Individual.clone)
    toolbox.register("individual", draw_individual, problem=problem, rng=rng)
    own: dict[str, Function] = {"mate": mate, "mutate": mutate, "select": select}
    for name, function in own.items():
        chosen = exchanged.get(name, function)
        supplied = {"problem": problem, "rng": rng}
        accepted = _parameters(chosen)
        toolbox.register(name, chosen, **{key: x for key, x in supplied.items() if key in accepted})
        if "rng" not in accepted:
            toolbox.decorate(name, seed_global(rng))
    if "mate" in exchanged:
        toolbox.decorate("mate", align)
    toolbox.decorate("mate", repair("mate", rng))
    toolbox.decorate("mutate", repair("mutate", rng))
    toolbox.decorate("select", check("select"))
    return toolbox


def draw_individual(
    mapping: LoopMapping, *, problem: Problem, rng: np.random.Generator
) -> Individual:
    """Draw a feasible individual of a mapping."""
    return Individual.of(problem.space(mapping), problem.sample(mapping, rng))


def mate(
    first: Individual, second: Individual, *, rng: np.random.Generator
) -> tuple[Individual, Individual]:
    """Return a child on the first parent's mapping, and the second parent unchanged.

    For each value in the second parent's schedule, a coin decides between both.
    """
    values, space = second.values, first.space
    positions = positions_of(space, values)
    child = Individual(
        space,
        [
            positions[n] if name in values and not rng.integers(2) else first[n]
            for n, name in enumerate(space.variables)
        ],
    )
    return child, second


def mutate(
    individual: Individual, *, problem: Problem, rng: np.random.Generator
) -> tuple[Individual]:
    """Change one or two variables, or the mapping and variables that depend on it."""
    if goes_elsewhere(problem, rng):
        individual.move(problem.space(problem.draw_promising_mapping(rng)))
    else:
        individual.vary(rng)
    return (individual,)


def select(
    individuals: Sequence[Individual], k: int, *, rng: np.random.Generator
) -> list[Individual]:
    """Return the winners of ``k`` tournaments."""
    return [
        max(
            (individuals[n] for n in rng.integers(len(individuals), size=_TOURNAMENT)),
            key=attrgetter("fitness"),
        )
        for _ in range(k)
    ]


def align(function: Function) -> Function:
    """Decorate a crossover of positions: the second parent is moved to the first one's mapping.

    Values that only the second parent has are dropped; those that it lacks are the first one's.
    """

    @wraps(function)
    def cross(first: Individual, second: Individual, **keywords: Any) -> Any:
        if second.space is not first.space:
            second.move(first.space)
            second[:] = [b if b is not None else a for a, b in zip(first, second, strict=True)]
        return function(first, second, **keywords)

    return cross


def repair(name: str, rng: np.random.Generator) -> Callable[[Function], Function]:
    """Return a decorator: the solver repairs the result of an operator."""

    def decorate(function: Function) -> Function:
        checked = check(name)(function)

        @wraps(function)
        def call_and_repair(*individuals: Individual, **keywords: Any) -> Any:
            children = checked(*individuals, **keywords)
            for child in children:
                child.repair(rng)
            return children

        return call_and_repair

    return decorate


def check(name: str) -> Callable[[Function], Function]:
    """Return a decorator that refuses an operator which returns no individuals."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call_and_check(*arguments: Any, **keywords: Any) -> Any:
            children = function(*arguments, **keywords)
            if (
                not isinstance(children, Sequence)
                or not children
                or not all(isinstance(child, Individual) for child in children)
            ):
                raise ExploreError(
                    f"toolbox: {name}: expected a tuple of individuals, got {quote(children)}"
                )
            return children

        return call_and_check

    return decorate


def seed_global(rng: np.random.Generator) -> Callable[[Function], Function]:
    """Return a decorator for operators that draw from :mod:`random`, as DEAP's own do."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call_seeded(*arguments: Any, **keywords: Any) -> Any:
            state = random.getstate()
            random.seed(int(rng.integers(2**63)))
            try:
                return function(*arguments, **keywords)
            finally:
                random.setstate(state)

        return call_seeded

    return decorate


def _parameters(function: Function) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except ValueError:  # written in C
        return frozenset()
