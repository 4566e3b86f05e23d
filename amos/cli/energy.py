"""The energy of a prediction, as commands print it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amos.cli.output import print_line, print_table

if TYPE_CHECKING:
    from amos.machine import Machine
    from amos.perfmodel import Prediction


def microjoules(joules: float | None) -> float | None:
    """Convert joules for a table; ``None`` stays."""
    return None if joules is None else joules * 1e6


def print_energy(prediction: Prediction, machine: Machine) -> None:
    """Print accesses by level and operand, with their energy where the machine says it."""
    if not prediction.energy:
        return
    print_table(
        ["level", "operand", "read KiB", "written KiB", "uJ"],
        [
            [row.level, row.operand or "-", row.read_bytes / 1024, row.written_bytes / 1024]
            + [microjoules(row.joules)]
            for row in prediction.energy
        ],
    )
    if prediction.energy_joules is not None:
        print_line(f"energy     {prediction.energy_joules * 1e6:.4g} uJ ({machine.energy_source})")
