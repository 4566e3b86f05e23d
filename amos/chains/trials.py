"""Trials of a search over chains: the most promising kernels first, each corrected by those before.

Each measurement corrects the predictions of kernels with the same tiles or the same products.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amos.chains.exploration import ChainTrial
from amos.chains.measuring import ChainTask
from amos.chains.model import ChainPrediction
from amos.chains.records import ChainLog
from amos.explore.options import MeasureOptions, SearchOptions
from amos.measure.executor import LocalExecutor
from amos.measure.runner import measurement_of
from amos.records import Measurement

#: A correction has the weight of this many measurements that agree with the model.
_PRIOR = 1.0


@dataclass(frozen=True)
class ChainOption:
    """A candidate, and what the model says of it.

    Attributes:
        candidate: the kernel.
        prediction: its time.
        mappings: number of combinations of mappings of its products, or of its loops.
        keys: what it has in common with others.
    """

    candidate: Any
    prediction: ChainPrediction
    mappings: int
    keys: tuple[object, ...]


@dataclass(frozen=True)
class ListedOptions:
    """What a search chooses between.

    Attributes:
        options: the candidates.
        tilings: number of tilings that fit.
        refused: tilings and the like that cannot be, with the reason.
    """

    options: Sequence[ChainOption]
    tilings: int
    refused: tuple[str, ...]


@dataclass
class _Corrections:
    """By how much measurements were off, for what candidates have in common."""

    logs: defaultdict[object, list[float]] = field(default_factory=lambda: defaultdict(list))

    def correct(self, option: ChainOption) -> float:
        """Scale predicted seconds by what was measured of its tiling and products."""
        total = 0.0
        for key in option.keys:
            logs = self.logs.get(key, [])
            total += sum(logs) / (len(logs) + _PRIOR)
        return option.prediction.seconds * math.exp(total / len(option.keys))

    def learn(self, option: ChainOption, seconds: float) -> None:
        """Take a measurement up."""
        off = math.log(seconds / option.prediction.seconds) if math.isfinite(seconds) else 2.0
        for key in option.keys:
            self.logs[key].append(off)


@dataclass(frozen=True)
class Measuring:
    """What a search measures with.

    Attributes:
        executor: runs kernels; ``None`` where the model decides.
        options: within which limits.
        log: finds earlier measurements, and keeps new ones.
    """

    executor: LocalExecutor | None
    options: MeasureOptions
    log: ChainLog | None = None

    def measure(self, option: ChainOption) -> Measurement | None:
        """Measure a kernel, or find it in the log; ``None`` without any."""
        if self.executor is None:
            return None
        if self.log and (earlier := self.log.find(option.candidate)) is not None:
            return earlier
        how = self.options
        task = ChainTask(option.candidate, implementation=how.implementation, flush=how.flush)
        limit = self.executor.runner.limit(option.prediction.seconds)
        return measurement_of(self.executor.runner.request(self.executor.place(task), limit))


def run_trials(
    options: Sequence[ChainOption],
    measuring: Measuring,
    trials: int,
    rng: np.random.Generator,
    search: SearchOptions,
    progress: Callable[[ChainTrial, int], None] | None,
) -> Iterator[ChainTrial]:
    """Yield trials, the most promising first by what is measured so far.

    Args:
        measuring: what they are measured with.
        rng: draws some of them by chance.
        search: how often it does, and for how long.
        progress: called after each trial, with it and the number of trials.
    """
    corrections, pending = _Corrections(), list(options)
    end = math.inf if search.time_limit is None else time.monotonic() + search.time_limit
    is_measured = measuring.executor is not None
    for number in range(min(trials, len(options))):
        if number and time.monotonic() >= end:
            return
        by_chance = is_measured and number > 0 and rng.random() < search.epsilon
        place = int(rng.integers(len(pending))) if by_chance else None
        if place is None:
            place = min(range(len(pending)), key=lambda n: corrections.correct(pending[n]))
        option = pending.pop(place)
        measurement = measuring.measure(option)
        if measurement is not None:
            corrections.learn(option, measurement.seconds)
        trial = ChainTrial(number, option.candidate, option.prediction, measurement)
        if measuring.log:
            measuring.log.add(trial)
        if progress is not None:
            progress(trial, trials)
        yield trial
