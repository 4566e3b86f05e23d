"""Whether a schedule fits the memories that it places data in by itself."""

from __future__ import annotations

import numpy as np

from amos.perfmodel.machine import Machine
from amos.perfmodel.part import Part, column
from amos.perfmodel.structure import LoopBatch, Structure

__all__ = ["demands"]


def demands(
    structure: Structure, machine: Machine, batch: LoopBatch, part: Part
) -> dict[str, tuple[np.ndarray, int]]:
    """What a schedule places in registers and scratchpads, and what there is.

    Registers are counted in fragments: the accumulators of a register tile, the
    fragments of the source that changes least, and one of another source. A
    scratchpad holds the sources that are staged tile by tile, in bytes.

    Returns:
        memory → (need of each schedule, capacity); unlimited memories are left out.
    """
    found: dict[str, tuple[np.ndarray, int]] = {}
    unit = structure.mapping.intrinsic
    if unit.registers:

        def fragments(indexed: frozenset[int]) -> np.ndarray:
            count = np.ones(len(batch))
            for loop in indexed:
                count = count * part.tile[:, loop]
            return count

        sources = [fragments(op.indexed) for op in structure.sources]
        need = fragments(structure.destination.indexed) + (len(sources) > 1)
        if sources:
            need = need + np.min(sources, axis=0)
        found["registers"] = need, unit.registers
    pads = [level for level in machine.levels if level.scratchpad]
    if pads:
        ahead = dict(zip(structure.choices, batch.ahead.T, strict=True))
        need = np.zeros(len(batch))
        for op in structure.sources:
            if op.choice:
                size = column(part.elements(op), batch.parallel) * op.size
                need = need + np.where(ahead[op.name], 0.0, size)
        found[pads[0].name] = need, pads[0].capacity
    return found
