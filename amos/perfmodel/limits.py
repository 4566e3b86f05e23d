"""Whether a schedule fits the memories that it places data in by itself."""

from __future__ import annotations

import numpy as np

from amos.machine.machine import Machine
from amos.perfmodel.traffic import CoreNest, pick
from amos.plan.blocks import Blocks, runs_warps
from amos.plan.cpu_plan import live_fragments as live
from amos.plan.structure import LoopBatch, Operand, Structure

__all__ = ["demands", "fragments", "live_fragments"]


def fragments(operand: Operand, nest: CoreNest) -> np.ndarray:
    """Distinct fragments of an operand in one step of the reduction."""
    return nest.steps.fragments(operand)


def live_fragments(structure: Structure, nest: CoreNest) -> np.ndarray:
    """Fragments that one step of the reduction holds in registers."""
    sources = [fragments(op, nest) for op in structure.sources]
    return np.asarray(live(fragments(structure.destination, nest), sources))


def demands(
    structure: Structure, machine: Machine, batch: LoopBatch, nest: CoreNest
) -> dict[str, tuple[np.ndarray, int]]:
    """What a schedule places in registers and scratchpads, and what there is.

    Registers are counted in fragments: the accumulators of a register tile, the
    fragments of the source that changes least, and one of another source. A
    scratchpad holds the sources that are staged tile by tile, in bytes; on a CUDA
    machine what a thread block has of them in all its stages.

    Returns:
        memory → (need of each schedule, capacity); unlimited memories are left out.
    """
    found: dict[str, tuple[np.ndarray, int]] = {}
    if registers := structure.mapping.intrinsic.registers:
        found["registers"] = live_fragments(structure, nest), registers
    if runs_warps(structure, machine):
        blocks = Blocks(structure, machine.multiprocessor, batch)
        return found | {machine.levels[0].name: (blocks.shared_bytes, blocks.unit.block_shared)}
    pads = [level for level in machine.levels if level.scratchpad]
    if pads:
        ahead = dict(zip(structure.choices, batch.ahead.T, strict=True))
        depth = np.full(len(batch), nest.count) if machine.architecture else nest.steps.region
        need = np.zeros(len(batch))
        for op in structure.sources:
            if op.choice:
                size = pick(nest.elements(op), depth) * op.size
                need = need + np.where(ahead[op.name], 0.0, size)
        found[pads[0].name] = need, pads[0].capacity
    return found
