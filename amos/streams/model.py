"""The model of units with queues: transfers beside products, as far as buffers allow.

A source whose next tile has a buffer of its own is loaded while products go on; otherwise
products wait for it, as where both buffers hold tiles that are used in turn, and so they do
for results that leave from the only buffer. What
each instruction costs is that of :class:`amos.machine.stream_unit.StreamUnit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from amos.machine.machine import Machine
from amos.perfmodel.terms import BatchPrediction
from amos.plan.structure import LoopBatch, Structure
from amos.streams.accesses import count_accesses
from amos.streams.tiles import StreamTiles, call_cycles


def predict_streams(structure: Structure, machine: Machine, batch: LoopBatch) -> BatchPrediction:
    """Predict every schedule of a batch on a machine with a stream unit."""
    unit, tiles = machine.stream, StreamTiles(structure, batch)
    assert unit is not None
    result = BatchPrediction.empty(len(batch), machine.levels)
    level, cycle = machine.levels[-1], 1 / machine.clock
    port = level.read_bandwidth * cycle
    spatial = len(structure.spatial)
    starts, work = tiles.computes, float(structure.nest.calls * call_cycles(structure, machine))
    if unit.clears:  # Each output tile before its first sum.
        work += float(prod(x.extent for x in structure.spatial))
        starts = starts + tiles.counts[:spatial].prod(axis=0)
    compute = work + starts * float(unit.issue + unit.drain)
    sizes, times = [], []
    for number, op in enumerate(tiles.operands):
        loads = tiles.loads(number)
        sizes.append(loads * tiles.moved(op) * op.moved_bytes)
        instructions = loads * tiles.transfers(op)
        times.append(instructions * float(unit.issue + unit.latency) + sizes[-1] / port)
    exposed = _exposed(tiles, times, compute)
    waiting = np.sum(exposed, axis=0)
    *sources, stored = np.array(times) - exposed
    # Stores and loads share the port.
    loading = np.sum(sources, axis=0) + sizes[-1] / port
    total = np.maximum.reduce([compute, loading, stored]) + waiting
    moved = np.sum(sizes, axis=0) / port
    result.compute[:] = compute * cycle
    result.read[level.name] = np.sum(times[:-1], axis=0) * cycle
    result.write[level.name] = times[-1] * cycle
    result.bytes_in[level.name] = np.sum(sizes[:-1], axis=0)
    result.bytes_out[level.name] = sizes[-1]
    result.trips[level.name] = tiles.computes.astype(float)
    result.source[level.name] = np.argmax(np.stack(sizes[:-1]), axis=0)
    result.staging[:] = waiting * cycle
    fits = ~np.any(list(tiles.overfull(machine).values()), axis=0)
    result.seconds[:] = np.where(fits, np.maximum(total, moved) * cycle, np.inf)
    return replace(result, accesses=count_accesses(tiles, machine, sizes))


def _exposed(
    tiles: StreamTiles, times: Sequence[np.ndarray], compute: np.ndarray
) -> list[np.ndarray]:
    """Cycles of the transfers of each operand in which products wait.

    The first tile, or the last one of the output, has nothing to go on beside, and no tile
    has where one buffer stays in use until then. Loads follow one another, so that of what is
    not loaded at each step only as much passes as the other loads of a step leave room for:
    once for each tile, or for all that take turns in every buffer.

    Args:
        times: of all transfers of each operand.
        compute: of all products.
    """
    visits = [tiles.visits(number) for number in range(len(times))]
    steps = np.maximum.reduce([loads for loads, _ in visits[:-1]])
    exposed = []
    for number, (time, (loads, staying)) in enumerate(zip(times, visits, strict=True)):
        per_load, source = time / loads, number < len(times) - 1
        room = np.clip((compute - np.sum(times[:-1], axis=0) + time) / steps, 0.0, per_load)
        passes = np.where(loads < steps, room, per_load) if source else per_load
        full = tiles.buffers(number) == staying
        passes = np.where(full, np.where(staying > 1, room / staying, 0.0), passes)
        exposed.append(time - (loads - 1) * passes)
    return exposed
