"""Accesses of a streamed unit at each level.

Each access is counted where the model of its time counts it: a call reads a fragment of each
source and writes one of the results, a tile passes its buffer once more on its way from or to
DRAM. Padding that a call computes counts, as the unit computes it. Waiting, epilogues and
instructions take no energy here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from amos.machine.machine import Level, Machine
from amos.perfmodel.energy import OPERATIONS, Accesses, level_of
from amos.streams.tiles import StreamTiles

_PICO = 1e-12


def count_accesses(
    tiles: StreamTiles, machine: Machine, moved_bytes: Sequence[np.ndarray]
) -> tuple[Accesses, ...]:
    """Count accesses by a batch that moves these bytes from or to DRAM, the destination last."""
    structure, unit = tiles.structure, machine.stream
    assert unit is not None
    calls, dram = float(structure.nest.calls), machine.levels[-1]
    sums, nothing = float(prod(x.extent for x in structure.spatial)), np.zeros(len(tiles.batch))
    products = calls * prod(structure.mapping.intrinsic.shape)
    joules = None if machine.operation_pj is None else nothing + products * machine.operation_pj
    rows = [Accesses(OPERATIONS, "", nothing, nothing, _scale(joules))]
    for number, (op, moved) in enumerate(zip(tiles.operands, moved_bytes, strict=True)):
        tensor, used = op.staged.load.tensor.name, nothing + calls * op.bytes
        level = level_of(op.pad, machine)
        if number < len(tiles.operands) - 1:
            rows.append(_accesses(op.pad.name, level, tensor, used, moved))
            rows.append(_accesses(dram.name, dram, tensor, moved, nothing))
            continue
        drained = tiles.loads(number) * tiles.fragments(op, mean=True) * op.bytes
        # The first product of an accumulator adds to zeros, which some units write before.
        added = used if unit.clears else used - sums * op.bytes
        written = used + sums * op.bytes if unit.clears else used
        rows.append(_accesses(op.pad.name, level, tensor, added + drained, written))
        rows.append(_accesses(dram.name, dram, tensor, nothing, moved))
    return tuple(rows)


def _accesses(
    name: str, level: Level | None, tensor: str, read: np.ndarray, written: np.ndarray
) -> Accesses:
    joules = None
    if level and level.read_pj_per_byte is not None and level.write_pj_per_byte is not None:
        joules = read * level.read_pj_per_byte + written * level.write_pj_per_byte
    return Accesses(name, tensor, read, written, _scale(joules))


def _scale(picojoules: np.ndarray | None) -> np.ndarray | None:
    return None if picojoules is None else picojoules * _PICO
