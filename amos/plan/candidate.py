"""A candidate: one mapping under one schedule."""

from __future__ import annotations

from dataclasses import dataclass

from amos._display import Shown
from amos.mapping.mapping import Mapping
from amos.plan.schedule import Schedule

__all__ = ["Candidate"]


@dataclass(frozen=True)
class Candidate(Shown):
    """What a search proposes, the model predicts, and a worker measures."""

    mapping: Mapping
    schedule: Schedule

    @property
    def key(self) -> tuple[str, Schedule]:
        """Identity within one exploration."""
        return self.mapping.name, self.schedule

    def __str__(self) -> str:
        return f"{self.mapping}  {self.schedule}"
