"""Lower bounds of all schedules of some mappings, and certificates of optimality."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from amos.plan import Candidate


@dataclass(frozen=True)
class Bound:
    """Lower bounds of all schedules of some mappings.

    Attributes:
        traffic_bytes: from and to DRAM.
        seconds: of the calls, or of that traffic through the port, whichever takes longer.
        energy_joules: ``None`` where the machine lacks an energy.
        reached: whether a schedule has that traffic; otherwise the search ended at a floor.
    """

    traffic_bytes: float
    seconds: float
    energy_joules: float | None
    reached: bool

    def of(self, objective: str) -> float | None:
        """Return the least value of an objective, one of those of a search."""
        if objective in ("time", "time,memory"):  # the memory has no bound but nothing
            return self.seconds
        if self.energy_joules is None:
            return None
        return self.energy_joules * (self.seconds if objective == "edp" else 1.0)


@dataclass(frozen=True)
class Certificate:
    """Proof that a candidate is the model's best, or a bound of its distance to it.

    Attributes:
        value: of the candidate, in units of the objective.
        least: lower bound of all candidates of the space.
        scored: schedules that the model scored.
        mappings: of the space.
        pruned_mappings: whose floor is not below the value.
        tilings: of all other mappings; 0 where none were listed.
        overfull_tilings: that overflow buffers or registers.
        pruned_tilings: whose floor is not below the value.
    """

    value: float
    least: float
    scored: int
    mappings: int
    pruned_mappings: int
    tilings: int = 0
    overfull_tilings: int = 0
    pruned_tilings: int = 0

    @property
    def is_optimal(self) -> bool:
        """Whether nothing is better by the model."""
        return self.value <= self.least

    @property
    def gap(self) -> float:
        """Upper bound of the candidate's value relative to the least."""
        return 1.0 if self.is_optimal else self.value / self.least

    def to_dict(self) -> dict[str, float | int | bool]:
        """Return plain values for JSON."""
        return asdict(self) | {"is_optimal": self.is_optimal, "gap": self.gap}

    def __str__(self) -> str:
        proven = (
            "the model's optimum" if self.is_optimal else f"at most {self.gap:.4f} of the optimum"
        )
        line = (
            f"{proven}: {self.scored:,} schedules scored; floors exclude "
            f"{self.pruned_mappings:,} of {self.mappings:,} mappings"
        )
        if not self.tilings:
            return line
        return (
            f"{line} and {self.pruned_tilings:,} of {self.tilings:,} tilings; "
            f"{self.overfull_tilings:,} more do not fit"
        )


@dataclass(frozen=True)
class Optimum:
    """The model's best candidates, the best first, with a certificate of that one."""

    candidates: tuple[Candidate, ...] = field(repr=False)
    certificate: Certificate
