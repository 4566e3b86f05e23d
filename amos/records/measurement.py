"""A measurement with its uncertainty, and the trial that it was made for."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from amos._display import Shown
from amos.mapping import Mapping
from amos.plan import Candidate, Schedule

#: Failures of a candidate that leave no measurement.
FAILURES = ("build", "wrong", "nan", "crash", "abort", "timeout", "memory", "error")

#: Median absolute deviation to standard deviation, for normally distributed values.
_SIGMA = 1.4826
#: Deviations above the median from which a repeat is an outlier.
_OUTLIER = 5.0
#: Standard error of a median over that of a mean.
_MEDIAN = 1.2533


@dataclass(frozen=True)
class Measurement:
    """Outcome of one candidate.

    Attributes:
        times: seconds of one run, one value a repeat, outliers included; empty
            after a failure.
        verified_elements: output elements compared with NumPy.
        max_difference: largest absolute difference found.
        failure: ``""``, or one of :data:`FAILURES`: refused by the compiler
            (``build``), another result than NumPy's (``wrong``), not a number
            where NumPy has one (``nan``), ended by a signal (``crash``) or by its
            own ``abort``, out of time or memory, or any other exception (``error``).
        work_seconds: seconds that building, checking and timing took.
    """

    times: tuple[float, ...] = ()
    verified_elements: int = 0
    max_difference: float = 0.0
    implementation: str = ""
    failure: str = ""
    message: str = ""
    work_seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if the candidate ran and was right."""
        return not self.failure

    @property
    def seconds(self) -> float:
        """Median time of one run without the outliers; infinite after a failure."""
        return statistics.median(drop_outliers(self.times)) if self.times else float("inf")

    @property
    def least_seconds(self) -> float:
        """The least time of one run, the one least disturbed by other users of the cores."""
        return min(self.times, default=float("inf"))

    @property
    def noise(self) -> float:
        """Standard error of :attr:`seconds`, as a share of it; 0 if there is but one repeat."""
        return noise_of(self.times)

    def is_too_close(self, measurement: Measurement) -> bool:
        """Return whether two medians may differ by chance (within two standard errors)."""
        if not (self.times and measurement.times):
            return False
        difference = abs(self.seconds - measurement.seconds)
        return difference < 2 * math.hypot(
            self.noise * self.seconds, measurement.noise * measurement.seconds
        )


@dataclass(frozen=True)
class Trial(Shown):
    """A candidate that was predicted and, on the host, measured.

    Attributes:
        number: position in the exploration, from 0.
        predicted: seconds by the model.
        measurement: result of running it; ``None`` on the model alone.
        joules: by the model; ``None`` where the machine does not say all energies.
    """

    number: int
    candidate: Candidate
    predicted: float
    measurement: Measurement | None = None
    joules: float | None = field(default=None, compare=False)

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


def drop_outliers(times: Sequence[float]) -> tuple[float, ...]:
    """Return the repeats without outliers: interruptions only ever make a repeat slower."""
    if len(times) < 4:
        return tuple(times)
    middle = statistics.median(times)
    spread = _SIGMA * statistics.median(abs(t - middle) for t in times)
    # No clock and no branch predictor is better than a thousandth.
    limit = middle + _OUTLIER * max(spread, 1e-3 * middle)
    return tuple(t for t in times if t <= limit)


def noise_of(times: Sequence[float]) -> float:
    """Return the relative standard error of the median without outliers."""
    steady_times = drop_outliers(times)
    if len(steady_times) < 2:
        return 0.0
    middle = statistics.median(steady_times)
    spread = _SIGMA * statistics.median(abs(t - middle) for t in steady_times)
    return _MEDIAN * spread / math.sqrt(len(steady_times)) / middle if middle > 0 else 0.0
