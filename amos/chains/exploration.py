"""What a search over kernels of a chain found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amos._display import several
from amos.chains.model import ChainPrediction
from amos.explore.exploration import Outcome
from amos.ir import Chain
from amos.machine import Machine
from amos.records import Measurement

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class ChainTrial:
    """A kernel of a chain that was predicted and, on the host, measured.

    Attributes:
        number: position in the exploration, from 0.
        candidate: the shared tiles, and the mapping and schedule of each product; on a device the
            tiles, and what each loop is.
        prediction: the model's account of it.
        measurement: what happened when it ran; ``None`` on the model alone.
    """

    number: int
    candidate: Any
    prediction: ChainPrediction
    measurement: Measurement | None = None

    @property
    def predicted(self) -> float:
        """Seconds by the model."""
        return self.prediction.seconds

    @property
    def tiles(self) -> dict[str, int]:
        """The tile of each shared loop, the outermost first, and of a row that is cut."""
        tiles: dict[str, int] = self.candidate.tiling.tiles
        return tiles

    @property
    def seconds(self) -> float:
        """Measured seconds; predicted ones if nothing was measured."""
        return self.predicted if self.measurement is None else self.measurement.seconds

    def __str__(self) -> str:
        return f"{self.candidate}  {self.seconds * 1e3:.4g} ms"

    def __repr__(self) -> str:
        return f"<trial {self.number}: {self}>"


@dataclass(frozen=True, repr=False)
class ChainExploration(Outcome):
    """The result of :func:`amos.explore` on a chain.

    Attributes:
        operator: the chain.
        machine: where it runs.
        seed: of the random generator.
        space_size: how many tilings there are.
        trials: every candidate that was tried, in order.
        refused: tilings that cannot be, with the reason: the user's statements in a line each.
        replayed: how many trials were taken from the record of an earlier run.
        notes: what a user may have expected otherwise, in words.
    """

    operator: Chain
    machine: Machine
    seed: int
    space_size: int
    trials: tuple[ChainTrial, ...]
    refused: tuple[str, ...] = field(default=())
    replayed: int = 0
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each trial; times in seconds."""
        import pandas as pd

        return pd.DataFrame([_row(trial) for trial in self.trials])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; times in seconds."""
        best, measured = self.best, self.best.measurement
        return {
            "operator": str(self.operator),
            "statements": [each.text for each in self.operator.statements],
            "machine": self.machine.name,
            **best.candidate.as_dict(),
            "predicted_seconds": best.predicted,
            "measured_seconds": best.seconds if measured else None,
            "temporary_bytes": best.prediction.temporary_bytes,
            "level": best.prediction.level,
            "tops": self.tops,
            "verified_elements": measured.verified_elements if measured else 0,
            "max_difference": measured.max_difference if measured else None,
            "space_size": self.space_size,
            "seed": self.seed,
            "trials": len(self.trials),
            "replayed": self.replayed,
            "failures": self.failures,
            "refused": list(self.refused),
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        tried = several(len(self.trials), "trial")
        return f"<exploration of {self.operator.name} on {self.machine.name}: {tried}>"

    def __str__(self) -> str:
        best = self.best
        lines = [str(best), f"temporaries: {best.prediction.temporary_bytes:,} bytes a core, in "
                 f"{best.prediction.level}"]  # fmt: skip
        return "\n".join([*lines, *self.refused, *self.notes])


def _row(trial: ChainTrial) -> dict[str, Any]:
    measured = trial.measurement
    return {
        "trial": trial.number,
        **{f"tile.{name}": size for name, size in trial.tiles.items()},
        **trial.candidate.row(),
        "predicted_seconds": trial.predicted,
        "measured_seconds": trial.seconds if measured else None,
        "failure": measured.failure if measured else "",
    }
