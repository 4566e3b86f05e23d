"""The cost model that Heron learns while it searches: boosted trees over variables.

Its features are the values of every variable of the constraint problem, so that
nothing has to be compiled to predict (Heron, section 3). A variable that a mapping
does not have is a missing value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from amos.errors import ExploreError
from amos.explore.method import Key
from amos.explore.objective import Problem
from amos.plan import Candidate
from amos.schedule import ScheduleSpace

#: Name of the feature that numbers the mappings.
MAPPING = "mapping"
#: Most scores to learn from: the best half and the latest.
_LEARNED = 1024
#: Trees, and how they are grown.
_ROUNDS = 60
_SETTINGS = dict(max_depth=3, eta=0.3, gamma=1e-4, nthread=1, verbosity=0, tree_method="hist")
#: Least predicted performance, as a share of the best: trees may predict less than 0.
_LEAST = 1e-3


class CostModel:
    """Gradient-boosted trees that predict performance: the least seconds known, over seconds.

    Attributes:
        names: of the features, in order.
        ranked: variables by the gain of the splits on them, the most important first.
    """

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem, self._seed = problem, seed
        spaces = problem.spaces.values()
        variables = [n for s in spaces for n in (*s.csp.names, *_elements_copied(s))]
        self.names = list(dict.fromkeys([MAPPING, *variables]))
        self._number = {name: n for n, name in enumerate(self.names)}
        self._mapping = {mapping.name: n for n, mapping in enumerate(problem.mappings)}
        self._rows: dict[Key, np.ndarray] = {}
        self._trees: object | None = None
        self._best = 1.0
        self.ranked: list[str] = []

    @property
    def ready(self) -> bool:
        """Whether it has learned anything."""
        return self._trees is not None

    def features(self, candidate: Candidate) -> np.ndarray:
        """Return the value of each variable, float32; NaN for those that the mapping lacks."""
        key = candidate.key
        if key not in self._rows:
            row = np.full(len(self.names), np.nan, dtype=np.float32)
            row[0] = self._mapping[candidate.mapping.name]
            space = self._problem.space(candidate.mapping)
            for name, value in (space.values(candidate.schedule) | _elements_copied(space)).items():
                row[self._number[name]] = value
            self._rows[key] = row
        return self._rows[key]

    def fit(self, results: Sequence[tuple[Candidate, float]]) -> None:
        """Learn from finite scores in seconds."""
        try:
            import xgboost
        except ImportError as error:
            raise ExploreError(
                "this search method learns a cost model with xgboost: "
                "pip install 'amos-mapper[learned]'"
            ) from error
        done = [(c, s) for c, s in results if np.isfinite(s)]
        if len(done) > _LEARNED:
            best = sorted(done[: -_LEARNED // 2], key=lambda entry: entry[1])[: _LEARNED // 2]
            done = best + done[-_LEARNED // 2 :]
        if len(done) < 2:
            return
        table = np.stack([self.features(candidate) for candidate, _ in done])
        seconds = np.array([seconds for _, seconds in done])
        self._best = float(seconds.min())
        data = xgboost.DMatrix(table, label=self._best / seconds, nthread=1)
        self._trees = trees = xgboost.train(_SETTINGS | {"seed": self._seed}, data, _ROUNDS)
        gain = trees.get_score(importance_type="total_gain")
        ranked = sorted(gain.items(), key=lambda entry: (-_number(entry[1]), entry[0]))
        names = [self.names[int(feature[1:])] for feature, _ in ranked]
        self.ranked = [name for name in names if name in self.tunables]

    def predict(self, candidates: Sequence[Candidate]) -> np.ndarray:
        """Predict seconds; all equal before anything was learned."""
        if self._trees is None:
            return np.ones(len(candidates))
        import xgboost

        assert isinstance(self._trees, xgboost.Booster)
        table = np.stack([self.features(candidate) for candidate in candidates])
        performance = self._trees.predict(xgboost.DMatrix(table, nthread=1)).astype(float)
        seconds: np.ndarray = self._best / np.maximum(performance, _LEAST)
        return seconds

    @cached_property
    def tunables(self) -> frozenset[str]:
        """Tunable variables: other features follow from them."""
        return frozenset(
            variable.name
            for space in self._problem.spaces.values()
            for variable in space.csp.variables.values()
            if variable.role == "tunable"
        )


def _elements_copied(space: ScheduleSpace) -> dict[str, int]:
    """Return the elements of each operand that the kernel copies: they tell mappings apart."""
    return {f"copied.{op.name}": op.copied for op in space.context.operands}


def _number(gain: object) -> float:
    return float(gain[0]) if isinstance(gain, list) else float(str(gain))
