"""Run a search method on the model, and propose its best candidates for measuring.

Model first, measured for the promising: between two batches of measurements the
method searches on the model, corrected by the measurements. A batch holds its most
promising candidates, variants of the best measured ones, which the model cannot tell
apart, and some random ones (ε-greedy), so that no mapping is abandoned.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator

import numpy as np

from amos.explore.method import Key, Search, niche
from amos.explore.objective import Problem
from amos.explore.retention import select_retained
from amos.plan import Candidate

#: Candidates proposed at a time; the model is corrected between batches.
BATCH = 8
#: Share of random candidates in a batch.
EPSILON = 0.1
#: Share of a batch of variants of the best measured candidates, and how many are varied.
_LOCAL, _VARIED = 0.5, 4
#: Factor below the best within which a candidate of another outermost loop is tried.
_CLOSE = 1.5
#: Scores that the method is told at a time.
_ROUND = 64
_ATTEMPTS = 50


class Guided:
    """Runs a method on the model, and proposes its best candidates for measuring.

    Args:
        epsilon: share of random candidates in each batch, 0 to 1.
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
        excluded, tried = self._problem.trial_keys(), len(self._problem.trials)

        def quota(share: float, first: int = 0) -> int:
            """Return this batch's share of all trials, the same for batches of any size.

            The first ``first`` trials do not count.
            """
            ends = [max(0, done - first) for done in (tried, tried + count)]
            return round(ends[1] * share) - round(ends[0] * share)

        searched = self._select_mappings()
        neighbours = (c for c in self._vary_best() if c.mapping.name in searched)
        promising = (c for c in self._select_promising() if c.mapping.name in searched)
        random_count = quota(self._epsilon)
        # At first the model's choices are more diverse than variants of a measured candidate.
        varied_count = quota(_LOCAL, BATCH)
        chosen = _take_fresh(neighbours, min(varied_count, count - random_count), excluded)
        chosen += _take_fresh(self._random(), random_count, excluded)
        for source in (promising, self._random(), (c for c, _ in self.search.results)):
            chosen += _take_fresh(source, count - len(chosen), excluded)
        return chosen

    def _select_mappings(self) -> frozenset[str]:
        """Name the mappings to search on, at least the best two.

        The mappings of all instructions of a contest are ranked together (GTA's sub-tasks).
        """
        if self._retain == 1:
            return frozenset(mapping.name for mapping in self._problem.mappings)
        figures = [each._mapping_seconds() for each in self.rivals]
        seconds = {(n, x): t for n, (best, _) in enumerate(figures) for x, t in best.items()}
        measured = {(n, x): k for n, (_, counts) in enumerate(figures) for x, k in counts.items()}
        own, survivors = self.rivals.index(self), select_retained(seconds, measured, self._retain)
        return frozenset(name for number, name in survivors if number == own) or select_retained(
            *figures[own], 1 / len(figures[own][0])
        )

    def _mapping_seconds(self) -> tuple[dict[str, float], Counter[str]]:
        """Return the seconds of each mapping, and how many of its candidates were measured.

        A mapping's time is that of its best kernel, or before any measurement the corrected model's
        prediction, which replaces the paper's warm-up.
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

    def _select_promising(self) -> Iterator[Candidate]:
        """Yield candidates by score, the best of each register tile and mapping first.

        Before these come candidates with close scores, one for each outermost loop not tried yet:
        an error of the model, such as cache conflicts, hits all candidates of an outermost loop
        alike.
        """
        seen: set[Hashable] = set()
        later, leaders = [], self.search.leaders(len(self.search.results))
        tried = {_outermost_loop(trial.candidate) for trial in self._problem.trials}
        for candidate, score in leaders:
            if score > _CLOSE * leaders[0][1]:
                break
            if _outermost_loop(candidate) not in tried:
                tried.add(_outermost_loop(candidate))
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

    def _vary_best(self) -> Iterator[Candidate]:
        """Yield variants of the best measured candidates, most often of the very best."""
        best = self._problem.best(_VARIED)
        for attempt in range(_ATTEMPTS if best else 0):
            trial = best[(attempt // 2) % len(best)] if attempt % 2 else best[0]
            space = self._problem.space(trial.mapping)
            yield Candidate(trial.mapping, space.mutate(trial.schedule, self._rng))

    def _random(self) -> Iterator[Candidate]:
        for _ in range(_ATTEMPTS * 4):
            yield self.search.random()


def _take_fresh(source: Iterator[Candidate], count: int, excluded: set[Key]) -> list[Candidate]:
    """Take up to ``count`` candidates that are not excluded, and exclude them."""
    fresh: list[Candidate] = []
    for candidate in source:
        if len(fresh) >= count:
            break
        if candidate.key not in excluded:
            excluded.add(candidate.key)
            fresh.append(candidate)
    return fresh


def _outermost_loop(candidate: Candidate) -> str:
    return next(iter(candidate.schedule.order or ()), "")
