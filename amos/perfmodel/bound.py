"""The least that any schedule of some mappings can have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """The least that any schedule of some mappings can have.

    Attributes:
        traffic_bytes: from and to DRAM.
        seconds: of the calls, or of that traffic through the port, whichever takes longer.
        energy_joules: ``None`` where the machine does not say all energies.
        reached: whether a schedule has that traffic; otherwise the search ended at a floor.
    """

    traffic_bytes: float
    seconds: float
    energy_joules: float | None
    reached: bool

    def of(self, objective: str) -> float | None:
        """Return the least value of an objective, one of those of a search."""
        if objective == "time":
            return self.seconds
        if self.energy_joules is None:
            return None
        return self.energy_joules * (self.seconds if objective == "edp" else 1.0)
