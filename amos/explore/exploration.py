"""The result of an exploration, and its history."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from amos._display import Shown
from amos.errors import ExploreError, UnknownNameError
from amos.explore.contenders import Contender
from amos.explore.objective import TIME_AND_MEMORY, value_of
from amos.intrinsics import Intrinsic, implementations
from amos.ir import Chain, Operator
from amos.machine import Machine
from amos.perfmodel import Prediction
from amos.perfmodel.bound import Bound, Certificate
from amos.records import Trial

if TYPE_CHECKING:
    import pandas as pd

#: Times are suspect if at least so many trials all took this many times their prediction.
_SEVERAL, _FAR = 4, 4.0


class Outcome(Shown):
    """Figures of a search over kernels, of an operator or a chain, with trials in order."""

    operator: Operator | Chain
    trials: tuple[Any, ...]

    @property
    def best(self) -> Any:
        """The fastest trial that was right; raise ExploreError if every trial failed."""
        best = min(self.trials, key=lambda trial: trial.seconds, default=None)
        if best is None or math.isinf(best.seconds):
            raise ExploreError(explain_failures(self.trials))
        return best

    @property
    def history(self) -> list[float]:
        """Best seconds after each trial; infinite while none has succeeded."""
        return list(accumulate((trial.seconds for trial in self.trials), min))

    @property
    def failures(self) -> dict[str, int]:
        """Number of failed trials, by kind."""
        return _failures(self.trials)

    @property
    def tops(self) -> float:
        """10^12 operations per second of the best trial, all products counted."""
        seconds: float = self.best.seconds
        return self.operator.operations / seconds / 1e12


@dataclass(frozen=True)
class Exploration(Outcome):
    """The result of :func:`amos.explore`.

    Attributes:
        operator: the operator, with its dtypes filled in.
        counts: number of mappings under each rule.
        searched: number of mappings that were searched.
        space_size: number of mapping and schedule assignments among them.
        method: name of the search method; ``"few"`` of listed schedules.
        objective: what was minimized; one of :data:`amos.explore.objective.OBJECTIVES`.
        least: lower bound of the searched mappings' schedules; of streamed units only.
        certificate: what the method ``optimal`` has proven of the model's best candidate.
        trials: every candidate that was tried, in order.
        prediction: the model's account of the best trial.
        replayed: how many trials were taken from the record of an earlier run.
        intrinsics: outcome of every requested instruction, fastest first.
        generations: the rows of :attr:`logbook`.
        is_peak_measured: whether ``machine`` has the instruction's rate as measured in this run.
        load: runnable processes on this machine when the run began; 0 if unknown.
    """

    operator: Operator
    intrinsic: Intrinsic
    machine: Machine
    counts: dict[str, int]
    searched: int
    space_size: int
    method: str
    seed: int
    trials: tuple[Trial, ...]
    prediction: Prediction | None = field(default=None, compare=False)
    replayed: int = field(default=0, compare=False)
    intrinsics: tuple[Contender, ...] = ()
    generations: tuple[dict[str, Any], ...] = field(default=(), compare=False)
    load: float = field(default=0.0, compare=False)
    is_peak_measured: bool = field(default=False, compare=False)
    objective: str = "time"
    least: Bound | None = field(default=None, compare=False)
    certificate: Certificate | None = field(default=None, compare=False)

    @property
    def best(self) -> Trial:
        """The best trial that was right: by medians, or by least times if others used the cores.

        Raises:
            ExploreError: every trial failed.
        """
        value = _least if self._crowded else partial(value_of, objective=self.objective)
        best = min(self.trials, key=value, default=None)
        if best is None or math.isinf(best.seconds):
            raise ExploreError(explain_failures(self.trials))
        return best

    @property
    def simulated(self) -> bool:
        """Whether seconds are those of a simulator."""
        best = self.best.measurement
        return best is not None and best.implementation == "simulated"

    @property
    def emulated(self) -> str:
        """Why the best kernel has loops instead of the instruction; empty if it has it."""
        best = self.best.measurement
        if best is None or best.implementation != "generic":
            return ""
        source = implementations(self.intrinsic.name).get("llvm")
        needed = {*self.intrinsic.requires, *(source.requires if source else ())}
        if lacking := needed - set(self.machine.features):
            return f"this CPU lacks {', '.join(sorted(lacking))}"
        if source is None or not source.runs_here:
            return f"{self.intrinsic.name} has no LLVM implementation for this CPU"
        return "as asked"

    @property
    def peak_tops(self) -> float | None:
        """10^12 operations per second that the machine can issue with the intrinsic.

        ``None`` where loops replace the intrinsic: they have no peak.
        """
        if self.emulated or (peak := self.machine.peak(self.intrinsic.name)).generic:
            return None
        return self.intrinsic.operations / peak.interval * self.machine.cores / 1e12

    @property
    def peak_fraction(self) -> float | None:
        """Share of the machine's measured peak that the best trial reaches; None without one.

        Padding counts as work, also where a kernel skips it, so it may be above 1.
        """
        peak = self.peak_tops
        return None if peak is None else self.tops / peak

    @property
    def speed(self) -> str:
        """The speed of the best trial in words, with its share of the peak if there is one."""
        peak, rate = self.peak_tops, f"{self.tops:.3f} Top/s"
        if peak is None:
            return rate
        cores = "1 core" if self.machine.cores == 1 else f"{self.machine.cores} cores"
        how = "measured " if self.is_peak_measured else ""
        share = f"{self.tops / peak:.1%} of the {peak:.3f} Top/s"
        return f"{rate}, {share} {how}peak of {cores}"

    @property
    def bound(self) -> float | None:
        """Least value of the objective that any schedule can have; seconds, joules, or both."""
        return None if self.least is None else self.least.of(self.objective)

    @property
    def bound_ratio(self) -> float | None:
        """The objective of the best trial over the bound; ``None`` without one."""
        return None if self.bound is None else value_of(self.best, self.objective) / self.bound

    @property
    def front(self) -> tuple[Trial, ...]:
        """Trials that are faster than every one with as little workspace, the fastest first.

        None, unless the objective is ``"time,memory"``.
        """
        if self.objective != TIME_AND_MEMORY:
            return ()
        ran = [trial for trial in self.trials if math.isfinite(trial.seconds)]
        front: list[Trial] = []
        for trial in sorted(ran, key=lambda x: (x.seconds, self.memory_bytes(x))):
            if not front or self.memory_bytes(trial) < self.memory_bytes(front[-1]):
                front.append(trial)
        return tuple(front)

    def memory_bytes(self, trial: Trial) -> int:
        """Return the bytes that a trial's kernel needs besides inputs and results."""
        return trial.candidate.memory_on(self.machine)

    @property
    def note(self) -> str:
        """Why the best kernel has loops instead of the instruction; empty if it has it."""
        why = self.emulated
        return f"compiled through the intrinsic's generic implementation: {why}" if why else ""

    @property
    def disturbance(self) -> str:
        """Why times of this machine are suspect; empty if they are not.

        Other processes used the cores when the run began, or every candidate took far longer
        than predicted.
        """
        best = self.best.measurement
        if best is None or not (why := self._crowded):
            return ""
        return f"{why}; least time {best.least_seconds * 1e3:.4f} ms"

    @property
    def _crowded(self) -> str:
        """Evidence that other processes use the cores; empty if none."""
        right = [trial for trial in self.trials if math.isfinite(trial.seconds)]
        timed = any(trial.measurement and trial.measurement.times for trial in right)
        unit = self.machine.opencl
        if not timed or not (self.machine.name == "host" or (unit is not None and unit.serial)):
            return ""
        if self.load > self.machine.cores:
            return f"others used the cores when the run began (load {self.load:.1f})"
        ratios = [
            trial.seconds / expected for trial in right if (expected := self.model_seconds(trial))
        ]
        if len(ratios) >= _SEVERAL and min(ratios) > _FAR:
            return (
                f"all candidates took at least {min(ratios):.0f} times as long as predicted: "
                "others may use the cores"
            )
        return ""

    def model_seconds(self, trial: Trial) -> float | None:
        """Return the seconds that the model predicted for a trial.

        ``None`` where loops replace the intrinsic: the model then ranks, but predicts no time.
        """
        peak = self.machine.peak(trial.mapping.intrinsic.name)
        return None if peak.generic else trial.predicted

    def to_frame(self, rows: Literal["trials", "intrinsics"] = "trials") -> pd.DataFrame:
        """Return a table of one row a trial, or one a requested instruction; times in seconds.

        Raises:
            UnknownNameError: there are no rows of that kind.
        """
        import pandas as pd

        if rows == "intrinsics":
            return pd.DataFrame([each.to_dict() for each in self.intrinsics])
        if rows != "trials":
            raise UnknownNameError("rows", rows, ("trials", "intrinsics"))
        return pd.DataFrame(
            [
                {
                    "trial": trial.number,
                    "intrinsic": trial.mapping.intrinsic.name,
                    "mapping": trial.mapping.name,
                    "predicted_seconds": self.model_seconds(trial),
                    "measured_seconds": trial.seconds if trial.measurement else None,
                    "failure": trial.measurement.failure if trial.measurement else "",
                    **trial.schedule.as_dict(),
                }
                for trial in self.trials
            ]
        )

    @property
    def logbook(self) -> pd.DataFrame:
        """Scores of the population, one row a generation of the method ``ga``.

        The search asks the model for many generations between two batches of measurements:
        ``trials`` says how many there were before. ``evaluations`` are scores of this generation;
        ``mappings``, ``min``, ``median`` and ``max`` are of the population after it, in seconds by
        the model as it was corrected by then. Other methods leave it empty.
        """
        import pandas as pd

        columns = ("generation", "trials", "evaluations", "mappings", "min", "median", "max")
        return pd.DataFrame(list(self.generations), columns=["intrinsic", *columns])

    def _point(self, trial: Trial) -> dict[str, Any]:
        return {
            "seconds": trial.seconds,
            "memory_bytes": self.memory_bytes(trial),
            "mapping_name": trial.mapping.name,
            "schedule": trial.schedule.as_dict(),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; seconds, and 10^12 operations per second."""
        best = self.best
        measured = best.measurement
        return {
            "operator": str(self.operator),
            "intrinsic": self.intrinsic.name,
            "machine": self.machine.name,
            "mapping": str(best.mapping),
            "mapping_name": best.mapping.name,
            "groups": {k: list(v) for k, v in best.mapping.groups.items()},
            "schedule": best.schedule.as_dict(),
            "predicted_seconds": self.model_seconds(best),
            "measured_seconds": best.seconds if measured else None,
            "simulated": self.simulated,
            "tops": self.tops,
            "peak_tops": self.peak_tops,
            "peak_fraction": self.peak_fraction,
            "verified_elements": measured.verified_elements if measured else 0,
            "max_difference": measured.max_difference if measured else None,
            "implementation": measured.implementation if measured else None,
            "bound_by": self.prediction.bound if self.prediction else None,
            "bound": self.bound,
            "bound_ratio": self.bound_ratio,
            "bounds": None if self.least is None else asdict(self.least),
            "certificate": None if self.certificate is None else self.certificate.to_dict(),
            "objective": self.objective,
            "front": [self._point(trial) for trial in self.front],
            "energy_joules": best.joules,
            "energy": [asdict(row) for row in self.prediction.energy] if self.prediction else [],
            "mappings": dict(self.counts),
            "searched": self.searched,
            "space_size": self.space_size,
            "method": self.method,
            "seed": self.seed,
            "trials": len(self.trials),
            "failures": self.failures,
            "replayed": self.replayed,
            "intrinsics": [each.to_dict() for each in self.intrinsics],
            "noise": measured.noise if measured else None,
            "least_seconds": measured.least_seconds if measured else None,
            "disturbance": self.disturbance,
        }

    def __str__(self) -> str:
        best = self.best
        lines = [f"{best.mapping}  {best.schedule}  {best.seconds * 1e3:.4g} ms"]
        lines += [text for text in (self.note, self.disturbance) if text]
        if len(self.intrinsics) > 1:
            compared = [each for each in self.intrinsics if each.compared]
            width = max(len(each.intrinsic.name) for each in compared)
            lines.append(f"chosen: {self.intrinsic.name}, of {len(compared)} compared")
            lines += [
                f"  {each.intrinsic.name:{width}}  {_describe_outcome(each)}" for each in compared
            ]
        return "\n".join(lines)


def explain_failures(trials: Sequence[Any]) -> str:
    """Say in a line why no trial ran."""
    first = next((trial.measurement for trial in trials if trial.measurement), None)
    detail = f"; the first says: {first.message}" if first else ""
    return f"none of {len(trials)} candidates ran ({', '.join(sorted(_failures(trials)))}){detail}"


def _least(trial: Trial) -> float:
    return trial.measurement.least_seconds if trial.measurement else trial.seconds


def _failures(trials: Sequence[Any]) -> dict[str, int]:
    measured = (trial.measurement for trial in trials)
    return dict(Counter(each.failure for each in measured if each and each.failure))


def _describe_outcome(contender: Contender) -> str:
    best = f"{contender.seconds * 1e3:.4g} ms" if math.isfinite(contender.seconds) else ""
    return f"{contender.trials:4} trials  {best:>11}  {contender.reason}".rstrip()
