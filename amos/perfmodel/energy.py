"""Accesses of each level, and their energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amos.errors import MachineError
from amos.intrinsics.scratchpad import Scratchpad
from amos.machine.machine import Level, Machine
from amos.plan.target import target_of

#: Level of the products, beside those of the machine.
OPERATIONS = "operations"


@dataclass(frozen=True, eq=False)
class Accesses:
    """Accesses of one operand at one level, one row a schedule.

    Attributes:
        level: name of the level or of the buffer in it; :data:`OPERATIONS` for products.
        operand: name of the tensor; empty for products.
        joules: of all of them; ``None`` where the machine lacks the energy.
    """

    level: str
    operand: str
    read_bytes: np.ndarray
    written_bytes: np.ndarray
    joules: np.ndarray | None


@dataclass(frozen=True)
class EnergyRow:
    """Accesses of one operand at one level by one schedule; fields of :class:`Accesses`."""

    level: str
    operand: str
    read_bytes: float
    written_bytes: float
    joules: float | None


def level_of(pad: Scratchpad, machine: Machine) -> Level | None:
    """Return the level of a machine that a buffer is in: that of its name, or the first one."""
    levels = [level for level in machine.levels if level.scratchpad]
    return next((level for level in levels if level.name == pad.name), next(iter(levels), None))


def total_joules(rows: Sequence[Accesses]) -> np.ndarray | None:
    """Return the joules of every schedule; ``None`` where the machine lacks an energy."""
    joules = [row.joules for row in rows]
    stated = [each for each in joules if each is not None]
    return np.sum(stated, axis=0) if stated and len(stated) == len(joules) else None


def missing_energies(machine: Machine, pads: Sequence[Scratchpad]) -> list[str]:
    """Return the keys that a machine file lacks for the energy of a unit with some buffers."""
    missing = ["operation_pj"] if machine.operation_pj is None else []
    levels: dict[str, Level | None] = {pad.name: level_of(pad, machine) for pad in pads}
    levels |= {machine.levels[-1].name: machine.levels[-1]}
    for name, level in levels.items():
        if level is None:
            missing.append(f"a scratchpad level for buffer {name}")
            continue
        for key in ("read_pj_per_byte", "write_pj_per_byte"):
            if getattr(level, key) is None:
                missing.append(f"{key} of level {level.name}")
    return list(dict.fromkeys(missing))


def check_energies(machine: Machine, pads: Sequence[Scratchpad]) -> None:
    """Raise MachineError where energies are unknown: without streams, or without a value."""
    if not target_of(machine).counts_accesses:
        raise MachineError(
            f"machine {machine.name!r}: energy: expected a unit that streams drive, got none"
        )
    if missing := missing_energies(machine, pads):
        raise MachineError(f"machine {machine.name!r}: energy: expected {', '.join(missing)}")
