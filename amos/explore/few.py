"""The search of ``tiling="few"``: at most 200 listed schedules a task, ranked by the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from amos.explore.method import Search
from amos.explore.objective import Problem
from amos.mapping import Mapping
from amos.plan import Candidate
from amos.plan.target import target_of
from amos.schedule.few import MOST, Template, list_schedules, templates

#: Share of the schedules on which every mapping is screened.
_SCREENING = 0.25
#: Largest share of templates; the other candidates vary the best.
_TEMPLATES = 0.6
#: Mappings that all other templates are tried on.
FINALISTS = 2


class Few(Search):
    """Every listed schedule, the best by the model first, as measurements correct it."""

    inner: ClassVar[int] = 0

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        self._proposed: set[object] = set()

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The candidates of the task."""
        return list_candidates(self.problem, templates(target_of(self.problem.machine)))

    @property
    def size(self) -> int:
        """Number of listed candidates."""
        return len(self.candidates)

    def ask(self, count: int) -> list[Candidate]:
        """Return up to ``count`` listed candidates not proposed before; none when all were.

        First those that the model cannot tell from the best so far, such as other orders of its
        loops, then one of each prediction.
        """
        open_ = [each for each in self.candidates if each.key not in self._proposed]
        scores = dict(zip(open_, self.problem.scores(open_).tolist(), strict=True))
        tried = {self._prediction(trial.candidate) for trial in self.problem.trials}
        best = {self._prediction(trial.candidate) for trial in self.problem.best(1)}
        ranks: dict[Candidate, tuple[bool, bool, float]] = {}
        for candidate in sorted(open_, key=scores.__getitem__):
            prediction = self._prediction(candidate)
            ranks[candidate] = (prediction not in best, prediction in tried, scores[candidate])
            tried.add(prediction)
        chosen = sorted(open_, key=ranks.__getitem__)[:count]
        self._proposed.update(each.key for each in chosen)
        return chosen

    def _prediction(self, candidate: Candidate) -> tuple[str, float]:
        """Predict a candidate, to the digits in which kernels differ."""
        (seconds,) = self.problem.seconds([candidate]).tolist()
        return candidate.mapping.name, float(f"{seconds:.5g}")


def list_candidates(
    problem: Problem, choices: Sequence[Template], most: int = MOST
) -> list[Candidate]:
    """List at most ``most`` candidates of a task.

    Every mapping gets the first templates; the best mappings, by the model, get the others.
    """
    mappings = problem.mappings[:most]
    screening = max(1, int(most * _SCREENING) // len(mappings))
    listed = dict.fromkeys(_list(problem, mappings, choices, slice(0, screening)))
    finalists = rank_mappings(problem, [*listed])[:FINALISTS]
    ahead = max(1, int(most * _TEMPLATES) - len(listed)) // max(1, len(finalists))
    more = _list(problem, finalists, choices, slice(screening, screening + ahead))
    listed |= dict.fromkeys(more)
    return [*_vary_best(problem, listed, most)][:most]


def _vary_best(problem: Problem, listed: dict[Candidate, None], most: int) -> dict[Candidate, None]:
    """Add variants of the best candidates: one variable moved to the next value."""
    varied: set[object] = set()
    while listed and len(listed) < most:
        order = np.argsort(problem.scores([*listed]), kind="stable")
        best = next((c for n in order if (c := [*listed][n]).key not in varied), None)
        if best is None:
            break
        varied.add(best.key)
        listed |= dict.fromkeys(_variants(problem, best))
    return listed


def _variants(problem: Problem, candidate: Candidate) -> Iterator[Candidate]:
    space = problem.space(candidate.mapping)
    positions = space.csp.positions(candidate.schedule.as_dict())
    for name, allowed in space.csp.allowed.items():
        for position in (positions[name] - 1, positions[name] + 1):
            moved = positions | {name: position}
            if position in allowed and space.csp.is_possible({n: (at,) for n, at in moved.items()}):
                yield Candidate(candidate.mapping, space.schedule(moved))


def _list(
    problem: Problem, mappings: Iterable[Mapping], choices: Sequence[Template], which: slice
) -> list[Candidate]:
    listed = []
    for mapping in mappings:
        space = problem.space(mapping)
        if choices:
            schedules = list_schedules(space, choices[which])
        else:
            schedules = space.draw(which.stop - which.start, np.random.default_rng(which.start))
        listed += [Candidate(mapping, schedule) for schedule in schedules]
    return listed


def rank_mappings(problem: Problem, candidates: Sequence[Candidate]) -> list[Mapping]:
    """Rank mappings by their best candidates, the fastest first."""
    best: dict[str, float] = {}
    for candidate, score in zip(candidates, problem.scores(candidates), strict=True):
        best[candidate.mapping.name] = min(score, best.get(candidate.mapping.name, np.inf))
    named = {mapping.name: mapping for mapping in problem.mappings}
    return [named[name] for name in sorted(best, key=lambda name: best[name])]
