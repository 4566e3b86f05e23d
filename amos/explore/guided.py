"""A search method on the model, whose best candidates are proposed for measuring.

Model first, measured for the promising: between two batches of measurements the
method searches on the model, corrected by what was measured. Of what it has found,
the promising are proposed, with variants of the best measured candidates, where the
model can no longer tell candidates apart, and with some drawn by chance
(ε-greedy), so that no mapping is given up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator

import numpy as np

from amos.explore.method import Key, Search, niche
from amos.explore.objective import Problem
from amos.explore.retention import retained
from amos.plan import Candidate

#: Candidates proposed at a time; the model is corrected between batches.
BATCH = 8
#: Share of a batch that is drawn by chance.
EPSILON = 0.1
#: Share of a batch that varies the best measured candidates, and how many of them.
_LOCAL, _VARIED = 0.5, 4
#: Factor below the best within which a candidate of another outermost loop is tried.
_CLOSE = 1.5
#: Scores that the method is told at a time.
_ROUND = 64
_ATTEMPTS = 50


class Guided:
    """Runs a method on the model, and proposes its best candidates for measuring.

    Args:
        problem: holds the model, its correction, and measurements.
        rng: the only source of chance.
        method: makes the search method.
        epsilon: share of each batch that is drawn by chance, 0 to 1.
        retain: share of the mappings that the rest of a batch comes from; see
            :mod:`amos.explore.retention`.

    Attributes:
        search: the method under way.
        rivals: those whose mappings compete with its own, itself among them.
    """

    def __init__(
        self,
        problem: Problem,
        rng: np.random.Generator,
        method: Callable[[Problem, np.random.Generator], Search],
        epsilon: float = EPSILON,
        retain: float = 1.0,
    ) -> None:
        self._problem, self._rng, self._epsilon = problem, rng, epsilon
        self._retain = retain
        self.search = method(problem, rng)
        self.rivals: list[Guided] = [self]

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` candidates that were not measured yet."""
        if not self.search.inner:
            proposals = self.search.ask(count)
            self.search.tell([(candidate, 0.0) for candidate in proposals])
            return proposals
        self._search_model(count)
        excluded, tried = self._problem.measured(), len(self._problem.trials)

        def due(share: float, first: int = 0) -> int:
            """Of this batch, so that it is the share of all trials however they are batched.

            None of the first so many.
            """
            ends = [max(0, done - first) for done in (tried, tried + count)]
            return round(ends[1] * share) - round(ends[0] * share)

        searched = self._retained_mappings()
        neighbours = (c for c in self._neighbours() if c.mapping.name in searched)
        promising = (c for c in self._promising() if c.mapping.name in searched)
        lucky = due(self._epsilon)
        # The model's first choices differ more than variants of the first measured candidate.
        local = due(_LOCAL, BATCH)
        chosen = _fresh(neighbours, min(local, count - lucky), excluded)
        chosen += _fresh(self._random(), lucky, excluded)
        for source in (promising, self._random(), (c for c, _ in self.search.results)):
            chosen += _fresh(source, count - len(chosen), excluded)
        return chosen

    def _retained_mappings(self) -> frozenset[str]:
        """Names of the mappings that are searched on; at least the best two.

        The mappings of all instructions of a contest are ranked together (GTA's sub-tasks).
        """
        if self._retain == 1:
            return frozenset(mapping.name for mapping in self._problem.mappings)
        figures = [each._mapping_seconds() for each in self.rivals]
        seconds = {(n, x): t for n, (best, _) in enumerate(figures) for x, t in best.items()}
        measured = {(n, x): k for n, (_, counts) in enumerate(figures) for x, k in counts.items()}
        own, survivors = self.rivals.index(self), retained(seconds, measured, self._retain)
        return frozenset(name for number, name in survivors if number == own) or retained(
            *figures[own], 1 / len(figures[own][0])
        )

    def _mapping_seconds(self) -> tuple[dict[str, float], Counter[str]]:
        """Seconds of each mapping, and how many of its candidates were measured.

        A mapping is worth its best kernel, or what the corrected model says of it before any
        has been measured: the model stands for the warm-up of the paper.
        """
        seconds = {mapping.name: math.inf for mapping in self._problem.mappings}
        for candidate, score in self.search.results:
            seconds[candidate.mapping.name] = min(seconds[candidate.mapping.name], score)
        value = self._problem.value
        trials = [trial for trial in self._problem.trials if math.isfinite(trial.seconds)]
        measured = Counter(trial.mapping.name for trial in trials)
        # The last one of a mapping counts, the best.
        ranked = sorted(trials, key=value, reverse=True)
        best = {trial.mapping.name: value(trial) for trial in ranked}
        return seconds | best, measured

    def _search_model(self, count: int) -> None:
        """Let the method search on the model for a while, at first as for a whole batch."""
        # The correction may have changed since the scores were computed.
        self.search.rescore(self._problem.scores)
        share = min(1.0, count / BATCH) if self.search.results else 1.0
        scores = math.ceil(self.search.inner * share)
        for done in range(0, scores, _ROUND):
            batch = self.search.ask(min(_ROUND, scores - done))
            if not batch:
                return
            self.search.tell(list(zip(batch, self._problem.scores(batch).tolist(), strict=True)))

    def _promising(self) -> Iterator[Candidate]:
        """Candidates by score, best first, one for each register tile and mapping first.

        Before that one for each outermost loop that was not tried, if its score is close:
        what is wrong with the score of one, such as lines of a cache that get into each
        other's way, is wrong with all that share it, however much else differs.
        """
        seen: set[Hashable] = set()
        later, leaders = [], self.search.leaders(len(self.search.results))
        tried = {_outermost(trial.candidate) for trial in self._problem.trials}
        for candidate, score in leaders:
            if score > _CLOSE * leaders[0][1]:
                break
            if _outermost(candidate) not in tried:
                tried.add(_outermost(candidate))
                seen.add(niche(candidate))
                yield candidate
        for candidate, _ in leaders:
            signature = niche(candidate)
            if signature in seen:
                later.append(candidate)
                continue
            seen.add(signature)
            yield candidate
        yield from later

    def _neighbours(self) -> Iterator[Candidate]:
        """Variants of the best measured candidates, the best one most often."""
        best = self._problem.best(_VARIED)
        for attempt in range(_ATTEMPTS if best else 0):
            trial = best[(attempt // 2) % len(best)] if attempt % 2 else best[0]
            space = self._problem.space(trial.mapping)
            yield Candidate(trial.mapping, space.mutate(trial.schedule, self._rng))

    def _random(self) -> Iterator[Candidate]:
        for _ in range(_ATTEMPTS * 4):
            yield self.search.random()


def _fresh(source: Iterator[Candidate], count: int, excluded: set[Key]) -> list[Candidate]:
    """So many that are not excluded, and then are."""
    fresh: list[Candidate] = []
    for candidate in source:
        if len(fresh) >= count:
            break
        if candidate.key not in excluded:
            excluded.add(candidate.key)
            fresh.append(candidate)
    return fresh


def _outermost(candidate: Candidate) -> str:
    """The outermost spatial loop."""
    return next(iter(candidate.schedule.order or ()), "")
