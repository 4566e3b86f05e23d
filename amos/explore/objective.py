"""What a search minimizes: the model, corrected by what was measured."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amos.mapping import Mapping
from amos.measure import Measurement
from amos.perfmodel import Machine, Prediction, predict
from amos.schedule import Candidate, Schedule, ScheduleSpace

__all__ = ["Problem", "Trial"]

#: A correction counts as much as this many measurements that agree with the model.
_PRIOR = 2.0


@dataclass(frozen=True)
class Trial:
    """A candidate that was predicted and, on the host, measured.

    Attributes:
        number: position in the exploration, from 0.
        candidate: mapping and schedule.
        predicted: seconds by the model.
        measurement: what happened when it ran; ``None`` on the model alone.
    """

    number: int
    candidate: Candidate
    predicted: float
    measurement: Measurement | None = None

    @property
    def mapping(self) -> Mapping:
        """The candidate's mapping."""
        return self.candidate.mapping

    @property
    def schedule(self) -> Schedule:
        """The candidate's schedule."""
        return self.candidate.schedule

    @property
    def seconds(self) -> float:
        """Measured seconds; predicted ones if nothing was measured."""
        return self.predicted if self.measurement is None else self.measurement.seconds


class Problem:
    """The joint space of mappings and schedules, and the score of a candidate.

    Args:
        mappings: the mappings to search.
        machine: the machine that the model predicts for.
    """

    def __init__(self, mappings: Sequence[Mapping], machine: Machine) -> None:
        self.mappings, self.machine = tuple(mappings), machine
        self.spaces = {mapping.name: ScheduleSpace(mapping) for mapping in self.mappings}
        self.trials: list[Trial] = []
        self._predicted: dict[tuple[str, Schedule], Prediction] = {}
        self._ratios: defaultdict[str, list[float]] = defaultdict(list)

    @property
    def size(self) -> int:
        """Number of assignments over all mappings, feasible or not."""
        return sum(space.size for space in self.spaces.values())

    def space(self, mapping: Mapping) -> ScheduleSpace:
        """Schedule space of one of the mappings."""
        return self.spaces[mapping.name]

    def predict(self, candidate: Candidate) -> Prediction:
        """What the model says, remembered."""
        if candidate.key not in self._predicted:
            self._predicted[candidate.key] = predict(
                candidate.mapping, self.machine, candidate.schedule
            )
        return self._predicted[candidate.key]

    def score(self, candidate: Candidate) -> float:
        """Predicted seconds, scaled by how wrong the model was for this mapping so far."""
        return self.predict(candidate).seconds * self._correction(candidate.mapping.name)

    def tell(self, trial: Trial) -> None:
        """Take note of a finished trial."""
        self.trials.append(trial)
        if trial.measurement is not None and trial.measurement.ok:
            ratio = math.log(trial.measurement.seconds / trial.predicted)
            self._ratios[trial.mapping.name].append(ratio)

    def measured(self) -> set[tuple[str, Schedule]]:
        """Candidates that have been tried, in whatever way it ended."""
        return {trial.candidate.key for trial in self.trials}

    def best(self, count: int) -> list[Trial]:
        """The best trials so far, best first; failures are left out."""
        done = [trial for trial in self.trials if math.isfinite(trial.seconds)]
        return sorted(done, key=lambda trial: trial.seconds)[:count]

    def sample(self, mapping: Mapping, rng: np.random.Generator) -> Candidate:
        """A random feasible schedule for a mapping."""
        return Candidate(mapping, self.space(mapping).sample(rng))

    def _correction(self, name: str) -> float:
        """Shrunk geometric mean of measured over predicted; 1 before any measurement."""
        everything = [r for ratios in self._ratios.values() for r in ratios]
        if not everything:
            return 1.0
        overall = float(np.mean(everything))
        own = self._ratios.get(name, [])
        return math.exp((sum(own) + _PRIOR * overall) / (len(own) + _PRIOR))
