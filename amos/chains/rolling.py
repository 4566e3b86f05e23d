"""Rows of a temporary that a tile keeps for the next one, in place of computing a halo anew.

Where the innermost shared loop *rolls*, its tiles follow one another in order. The last rows of a
temporary that a tile needs are then the first ones of the next tile: they are moved to the front,
and only the rows behind them are computed (Alwani et al., *Fused-layer CNN accelerators*, MICRO
2016). Rows may be padded: a row beyond the tensor is filled with the padding that its readers see.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from amos.chains.boxes import Box, Range, user_name
from amos.errors import ScheduleError
from amos.ir import Affine, BufferLoad
from amos.ir.chain import Step


@dataclass(frozen=True)
class RollingRows:
    """How the rows of a temporary roll.

    Attributes:
        dimension: of the temporary, along which rows lie one behind the other.
        iteration: of its step that counts rows.
        halo: rows that a tile has of the one before.
        fresh: rows that each tile computes.
        unit: rows that are computed together; divides both.
        rows: of the temporary.
        padding: value of rows beyond the temporary; ``None`` if no tile needs any.
    """

    dimension: int
    iteration: str
    halo: int
    fresh: int
    unit: int
    rows: int
    padding: int | float | None = None

    @property
    def count(self) -> int:
        """How many units a tile has."""
        return (self.halo + self.fresh) // self.unit

    @staticmethod
    def counter(tensor: str) -> str:
        """Return the name of a unit's number in the indices of a tile."""
        return f"{tensor}.unit"

    def unit_of(self, place: Range, tensor: str) -> Range:
        """Return the rows of a unit, by its number, from those of a tile."""
        return Range(place.start + Affine(((self.counter(tensor), self.unit),)), self.unit)


def roll_rows(
    step: Step, box: Box, loop: str, extent: int, tile: int, reads: Iterable[BufferLoad]
) -> RollingRows | None:
    """Return how the rows of a step's tensor roll; ``None`` if tiles of the loop share none.

    Args:
        step: writes the tensor.
        box: of the tensor in a tile.
        loop: the shared loop that rolls.
        extent: of it.
        tile: of it.
        reads: of the tensor.

    Raises:
        ScheduleError: tiles need rows beyond the tensor that cannot be filled.
    """
    name, shape = step.output.tensor.name, step.output.tensor.shape
    moving = [d for d, place in enumerate(box) if loop in place.start.names]
    if not moving:
        return None
    dimension, place = moving[0], box[moving[0]]
    factor, first = place.start.coefficient(loop), place.start.constant
    rows = shape[dimension]
    beyond = first < 0 or factor * (extent - tile) + first + place.size > rows
    halo = place.size - factor * tile
    is_plain = len(moving) == 1 and factor > 0 and place.start.names == (loop,) and halo >= 0
    is_outermost = all(each.size == 1 for each in box[:dimension])
    if not is_plain or not is_outermost:
        if beyond:
            raise ScheduleError(f"tile.{loop}: rows of {user_name(name)!r} do not roll along it")
        return None
    if not halo and not beyond:
        return None
    unit = gcd(halo, factor * tile)
    padding: int | float | None = None
    if beyond:
        # Nothing within its tensor reads rows beyond another one without padding.
        padding, *more = {load.padding for load in reads if load.padded} or {0}
        if more:
            raise ScheduleError(
                f"tile.{loop}: {user_name(name)!r} is padded with {padding} and {more[0]}"
            )
        unit = gcd(unit, first, rows, factor * extent)  # a unit is within the tensor, or beyond
    iteration = step.output.indices[dimension].names[0]
    return RollingRows(dimension, iteration, halo, factor * tile, unit, rows, padding)
