"""A candidate with what was predicted and measured of it."""

from __future__ import annotations

from dataclasses import dataclass

from amos._display import Shown
from amos.mapping import Mapping
from amos.plan.candidate import Candidate
from amos.plan.schedule import Schedule
from amos.records.measurement import Measurement

__all__ = ["Trial"]


@dataclass(frozen=True)
class Trial(Shown):
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
