"""Rank the candidates of a space by the model alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

import numpy as np

from amos.explore.genetic import GeneticSearch
from amos.explore.guided import Guided
from amos.explore.method import Key
from amos.explore.objective import Problem
from amos.mapping import Mapping
from amos.plan import Candidate

#: Schedules that a descent draws at first, its rounds, and how many schedules each of them varies.
_DRAWN, _ROUNDS, _PARENTS = 64, 3, 2
#: Mappings of fewest calls that a descent starts from, and schedules that it draws of each at
#: least. With all mappings it takes a quarter longer, and predicts 0.4 % more time.
_MAPPINGS, _LEAST = 4, 4
#: Steps to either side that a variable takes, and values of one that takes all of them.
_NEAR, _FEW = 2, 6


class Thorough(GeneticSearch):
    """The search for several candidates; twice as long it predicts 0.4 % less time."""

    inner = 256


def rank_candidates(
    problem: Problem, count: int, search: type[GeneticSearch] = Thorough
) -> Sequence[Candidate]:
    """Return the best candidates of a space by predicted time, the fastest first.

    They differ in their register tiles and outermost loops as far as that is possible.
    """
    return Guided(problem, np.random.default_rng(0), search, epsilon=0.0).ask(count)


def find_best(problem: Problem) -> Candidate:
    """Return the best candidate that a descent finds by predicted time.

    Some schedules of each mapping are drawn. Then one variable of the best changes at a time. In
    half of the time it finds what the genetic search finds, which gives several candidates.

    Raises:
        ScheduleError: no schedule fits any mapping.
    """
    rng, predicted = np.random.default_rng(0), dict[Key, tuple[float, Candidate]]()

    def add(candidates: Iterable[Candidate]) -> None:
        fresh = [*{x.key: x for x in candidates if x.key not in predicted}.values()]
        timed = zip(problem.seconds(fresh).tolist(), fresh, strict=True)
        predicted.update((each.key, (seconds, each)) for seconds, each in timed)

    mappings = _select_promising(problem)
    share = max(_LEAST, -(-_DRAWN // len(mappings)))
    add(Candidate(m, x) for m in mappings for x in problem.space(m).draw(share, rng))
    if not predicted:
        return problem.sample(problem.mappings[0], rng)
    varied: set[Key] = set()
    for _ in range(_ROUNDS):
        best = (x for _, x in sorted(predicted.values(), key=itemgetter(0)) if x.key not in varied)
        parents = [*islice(best, _PARENTS)]
        varied.update(parent.key for parent in parents)
        add(variant for parent in parents for variant in _vary(problem, parent))
    return min(predicted.values(), key=itemgetter(0))[1]


def _select_promising(problem: Problem) -> list[Mapping]:
    """Select mappings of few calls, none with scalar stores if one with vectors has no more."""
    calls = {mapping: mapping.physical().calls for mapping in problem.mappings}
    vectors = [m for m in calls if not problem.space(m).context.destination.scalar_instructions]
    least = min((calls[m] for m in vectors), default=math.inf)
    promising = [m for m in calls if m in vectors or calls[m] < least]
    return sorted(promising, key=calls.__getitem__)[:_MAPPINGS]


def _vary(problem: Problem, candidate: Candidate) -> Iterator[Candidate]:
    """Yield a candidate with another value of one variable, near its own or among a few."""
    space = problem.space(candidate.mapping)
    positions = space.csp.positions(candidate.schedule.as_dict())
    for name, allowed in space.csp.allowed.items():
        here = allowed.index(positions[name])
        near = slice(max(0, here - _NEAR), here + _NEAR + 1)
        for position in allowed if len(allowed) <= _FEW else allowed[near]:
            moved = positions | {name: position}
            if position != positions[name] and space.csp.is_possible(
                {name: (at,) for name, at in moved.items()}
            ):
                yield Candidate(candidate.mapping, space.schedule(moved))
