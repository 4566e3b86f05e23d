"""The objective of a search: the model, corrected by measurements."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from amos.machine import Machine
from amos.mapping import Mapping as LoopMapping
from amos.perfmodel import Prediction, check_energies, evaluate, prediction_of, total_joules
from amos.plan import Candidate, Schedule, Value, batch_of
from amos.plan.target import target_of
from amos.records import Trial
from amos.schedule import ScheduleSpace, Tiling, spaces_of

#: Seconds and bytes of workspace: the search looks for the Pareto front.
TIME_AND_MEMORY = "time,memory"
#: Objectives of a search: seconds, joules, their product, or seconds and bytes of workspace.
OBJECTIVES = ("time", "energy", "edp", TIME_AND_MEMORY)
#: Weights of the workspace as a share of the operator's tensors, and trials of each in turn.
_WEIGHTS, _TURN = (0.0, 1e6, 10.0, 1.0), 8
#: Mappings drawn, of which the one of the least floor is taken.
_DRAWN = 8
#: A correction counts as much as this many measurements that agree with the model.
_PRIOR = 2.0


class Problem:
    """The joint space of mappings and schedules, and the score of a candidate.

    Args:
        mappings: the mappings to search.
        machine: the machine that the model predicts for.
        fixes: values that schedule variables must take.
        tiling: whether register tiles must divide their loops.
        objective: one of :data:`OBJECTIVES`.

    Raises:
        BuildError: memory counts, and the target does not say what kernels need.
        MachineError: energies count, and the machine does not say all of them.
        UnknownNameError: a fixed variable does not exist.
        ScheduleError: the fixed values leave nothing.
    """

    def __init__(
        self,
        mappings: Sequence[LoopMapping],
        machine: Machine,
        *,
        fixes: Iterable[tuple[str, Value]] = (),
        tiling: Tiling = "hardware",
        objective: str = "time",
    ) -> None:
        if objective in ("energy", "edp"):
            check_energies(machine, mappings[0].intrinsic.scratchpads)
        self.objective = objective
        self.spaces = spaces_of(mappings, machine, fixes, tiling)
        self.mappings = tuple(mapping for mapping in mappings if mapping.name in self.spaces)
        self.machine = machine
        self.trials: list[Trial] = []
        self._predicted: dict[tuple[str, Schedule], float] = {}
        self._joules: dict[tuple[str, Schedule], float] = {}
        self._workspaces: dict[tuple[str, Schedule], float] = {}
        self._ratios: defaultdict[str, list[float]] = defaultdict(list)

    @property
    def size(self) -> int:
        """Number of assignments over all mappings, feasible or not."""
        return sum(space.size for space in self.spaces.values())

    def space(self, mapping: LoopMapping) -> ScheduleSpace:
        """Return the schedule space of a mapping."""
        return self.spaces[mapping.name]

    def predict(self, candidate: Candidate) -> Prediction:
        """Predict a candidate's time level by level.

        Raises:
            MachineError: loops replace the intrinsic; the model predicts no time for them.
        """
        structure = self.space(candidate.mapping).context
        batch = evaluate(structure, self.machine, candidate.schedule.batch(structure))
        return prediction_of(structure, self.machine, batch)

    def seconds(self, candidates: Sequence[Candidate]) -> np.ndarray:
        """Predict seconds of many candidates, in one batch per mapping."""
        fresh: defaultdict[str, list[Candidate]] = defaultdict(list)
        for candidate in candidates:
            if candidate.key not in self._predicted:
                fresh[candidate.mapping.name].append(candidate)
        for name, group in fresh.items():
            structure = self.spaces[name].context
            batch = batch_of(structure, [candidate.schedule for candidate in group])
            predicted = evaluate(structure, self.machine, batch)
            times, joules = predicted.seconds.tolist(), total_joules(predicted.accesses)
            self._predicted.update((c.key, t) for c, t in zip(group, times, strict=True))
            if joules is not None:
                pairs = zip(group, joules.tolist(), strict=True)
                self._joules.update((c.key, energy) for c, energy in pairs)
            if self.objective == TIME_AND_MEMORY:
                target = target_of(self.machine, structure)
                sizes = target.workspace_bytes(structure, self.machine, batch).tolist()
                self._workspaces.update((c.key, x) for c, x in zip(group, sizes, strict=True))
        return np.array([self._predicted[candidate.key] for candidate in candidates])

    def joules(self, candidate: Candidate) -> float | None:
        """Predict joules of a candidate; ``None`` where the machine's energies are incomplete."""
        self.seconds([candidate])
        return self._joules.get(candidate.key)

    def value(self, trial: Trial) -> float:
        """Return the objective of a trial; infinite if it failed."""
        return value_of(trial, self.objective)

    def scores(self, candidates: Sequence[Candidate]) -> np.ndarray:
        """Predict seconds, corrected by the model's error for each mapping so far.

        Or joules, which no measurement corrects, or the product of both. Where memory counts,
        seconds grow with the workspace, by a weight that changes during the search.
        """
        correction = corrections({name: self._ratios[name] for name in self.spaces})
        factors = np.array([correction[candidate.mapping.name] for candidate in candidates])
        scores: np.ndarray = self.seconds(candidates) * factors
        if self.objective == "time":
            return scores
        if self.objective == TIME_AND_MEMORY:
            sizes = np.array([self._workspaces[candidate.key] for candidate in candidates])
            weighted: np.ndarray = scores * (1 + self._weight * sizes)
            return weighted
        joules = np.array([self._joules[candidate.key] for candidate in candidates])
        energy: np.ndarray = joules * scores if self.objective == "edp" else joules
        return np.where(np.isfinite(scores), energy, np.inf)

    @property
    def _weight(self) -> float:
        """Weight of a byte of workspace in this turn."""
        operator = self.mappings[0].operator
        tensors = sum(tensor.nbytes for tensor in (*operator.inputs, operator.output.tensor))
        return _WEIGHTS[len(self.trials) // _TURN % len(_WEIGHTS)] / tensors

    def tell(self, trial: Trial) -> None:
        """Take note of a finished trial."""
        self.trials.append(trial)
        if trial.measurement is not None and trial.measurement.ok:
            ratio = math.log(trial.measurement.seconds / trial.predicted)
            self._ratios[trial.mapping.name].append(ratio)

    def trial_keys(self) -> set[tuple[str, Schedule]]:
        """Return the keys of tried candidates, failures included."""
        return {trial.candidate.key for trial in self.trials}

    def best(self, count: int) -> list[Trial]:
        """Return the best trials so far, best first, without failures."""
        done = [trial for trial in self.trials if math.isfinite(trial.seconds)]
        return sorted(done, key=self.value)[:count]

    @cached_property
    def floors(self) -> np.ndarray:
        """Seconds that no schedule of each mapping falls below by the model; 0 if unknown."""
        contexts = [self.space(mapping).context for mapping in self.mappings]
        floors = [target_of(self.machine, x).floor_seconds(x, self.machine) for x in contexts]
        return np.array(floors)

    def draw_mapping(self, rng: np.random.Generator) -> LoopMapping:
        """Draw a mapping."""
        return self.mappings[int(rng.integers(len(self.mappings)))]

    def draw_promising_mapping(self, rng: np.random.Generator) -> LoopMapping:
        """Draw a few mappings and return the one of the least floor; draw one without floors."""
        drawn = rng.integers(len(self.mappings), size=_DRAWN if self.floors.any() else 1)
        return self.mappings[int(drawn[np.argmin(self.floors[drawn])])]

    def sample(self, mapping: LoopMapping, rng: np.random.Generator) -> Candidate:
        """Draw a feasible schedule for a mapping."""
        return Candidate(mapping, self.space(mapping).sample(rng))


def value_of(trial: Trial, objective: str) -> float:
    """Return the quantity of a trial that an objective minimizes; infinite if the trial failed."""
    if objective in ("time", TIME_AND_MEMORY) or not math.isfinite(trial.seconds):
        return trial.seconds
    assert trial.joules is not None
    return trial.joules * trial.seconds if objective == "edp" else trial.joules


def corrections(ratios: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the model's error for each mapping, measured over predicted, as a factor.

    A geometric mean, shrunk towards that of all mappings; 1 before any measurement.
    """
    everything = [ratio for each in ratios.values() for ratio in each]
    overall = float(np.mean(everything)) if everything else 0.0
    return {
        name: math.exp((sum(own) + _PRIOR * overall) / (len(own) + _PRIOR))
        for name, own in ratios.items()
    }
