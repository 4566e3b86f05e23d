"""What public functions take for a kernel, as a candidate."""

from __future__ import annotations

from typing import Any

from amos.errors import MappingError
from amos.mapping import Mapping
from amos.plan import Candidate, Schedule
from amos.schedule.space import ScheduleSpace

__all__ = ["candidate_of"]


def candidate_of(kernel: Any, schedule: Schedule | None = None) -> Candidate:
    """The candidate that a mapping, a trial of an exploration, or a candidate stands for.

    Args:
        kernel: what a user named.
        schedule: of a bare mapping; by default the simplest of its space.

    Raises:
        MappingError: it is nothing of the kind.
    """
    if isinstance(kernel, Mapping):
        return Candidate(kernel, schedule or ScheduleSpace(kernel).smallest())
    candidate = getattr(kernel, "candidate", kernel)
    if not isinstance(candidate, Candidate):
        raise MappingError(
            f"expected a mapping, a candidate or a trial, got {type(kernel).__name__}"
        )
    return candidate
