"""The model of units with queues: transfers overlap products as far as buffers allow.

A source whose next tile has a buffer of its own is loaded while products continue; otherwise
products wait for it, also where both buffers hold tiles that are used in turn. Products also
wait for results that are stored from the only buffer. The costs of instructions are those of
:class:`amos.machine.stream_unit.StreamUnit`.
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
        sizes.append(loads * tiles.dram_fragments(op) * op.moved_bytes)
        instructions = loads * tiles.transfers(op)
        times.append(instructions * float(unit.issue + unit.latency) + sizes[-1] / port)
    stalls = _stall_cycles(tiles, times, compute)
    waiting = np.sum(stalls, axis=0)
    *sources, stored = np.array(times) - stalls
    # Stores and loads share the port.
    loading = np.sum(sources, axis=0) + sizes[-1] / port
    total = np.maximum.reduce([compute, loading, stored]) + waiting
    transfer = np.sum(sizes, axis=0) / port
    result.compute[:] = compute * cycle
    result.read[level.name] = np.sum(times[:-1], axis=0) * cycle
    result.write[level.name] = times[-1] * cycle
    result.bytes_in[level.name] = np.sum(sizes[:-1], axis=0)
    result.bytes_out[level.name] = sizes[-1]
    result.trips[level.name] = tiles.computes.astype(float)
    result.source[level.name] = np.argmax(np.stack(sizes[:-1]), axis=0)
    result.staging[:] = waiting * cycle
    fits = ~np.any(list(tiles.find_overfull(machine).values()), axis=0)
    result.seconds[:] = np.where(fits, np.maximum(total, transfer) * cycle, np.inf)
    return replace(result, accesses=count_accesses(tiles, machine, sizes))


def _stall_cycles(
    tiles: StreamTiles, times: Sequence[np.ndarray], compute: np.ndarray
) -> list[np.ndarray]:
    """Predict the cycles of each operand's transfers during which products wait.

    The first tile, or the last one of the output, overlaps nothing, nor does any tile whose only
    buffer is in use until then. Loads are serial: a source that is not loaded at each step overlaps
    only the time that the other loads of a step leave, once for each tile, or once for all tiles
    that alternate in its buffers.
    """
    visits = [tiles.visits(number) for number in range(len(times))]
    steps = np.maximum.reduce([loads for loads, _ in visits[:-1]])
    stalls = []
    for number, (time, (loads, staying)) in enumerate(zip(times, visits, strict=True)):
        per_load, source = time / loads, number < len(times) - 1
        room = np.clip((compute - np.sum(times[:-1], axis=0) + time) / steps, 0.0, per_load)
        passes = np.where(loads < steps, room, per_load) if source else per_load
        full = tiles.buffers(number) == staying
        passes = np.where(full, np.where(staying > 1, room / staying, 0.0), passes)
        stalls.append(time - (loads - 1) * passes)
    return stalls
