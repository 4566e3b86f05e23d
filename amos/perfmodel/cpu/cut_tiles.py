"""Register tiles at the end of a loop that they do not divide, in kernels for CPUs.

Such a tile is written out with as many steps as are left, and those beyond the end are
not run at all (:mod:`amos.codegen.tir.edges`). The time is that of the busiest core, which
has none of the end of the outermost loop that is shared out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from amos.plan.structure import Operand, Structure

if TYPE_CHECKING:
    from amos.perfmodel.traffic import LoopNestBatch

__all__ = ["Edges", "parts_tiles"]


def parts_tiles(structure: Structure) -> bool:
    """Whether kernels write cut tiles apart: those whose results go straight to the output.

    Tile registers are computed whole, and cropped when they are moved.
    """
    rows = structure.mapping.intrinsic.tile_registers
    return not structure.destination.copied and not rows


class Edges:
    """How much is run of the steps that a schedule counts: spatial loops × schedules.

    Attributes:
        tiles: float: share of the register tiles in whole blocks.
        steps: float: share of the steps in those tiles.
    """

    def __init__(self, steps: LoopNestBatch, cores: int) -> None:
        end = ~_outermost(steps) if cores > 1 else np.ones_like(steps.shared)
        whole = np.ceil(steps.extents / steps.tile) * steps.tile
        self.tiles = np.where(end, whole / (steps.stretch * steps.extents), 1.0)
        self.steps = np.where(end, steps.extents / whole, 1.0)

    def fragments(self, operand: Operand) -> np.ndarray:
        """Share of an operand's fragments that the register tiles ask for."""
        loops = [loop for loop in operand.indexed if loop < len(self.steps)]
        return np.asarray(self.steps[loops].prod(axis=0))


def _outermost(steps: LoopNestBatch) -> np.ndarray:
    """Which loop is the outermost of those shared out: spatial loops × schedules."""
    found = np.zeros_like(steps.shared)
    first = np.argmax(steps.shared, axis=0)
    loop = np.take_along_axis(steps.order, first[None], axis=0)
    np.put_along_axis(found, loop, steps.shared.any(axis=0, keepdims=True), axis=0)
    return found
