"""The hierarchical model over many schedules of one mapping at once.

Every quantity is an array with one row a schedule; there is no loop over
schedules. :mod:`amos.perfmodel.model` says what the terms mean.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from amos.errors import MachineError
from amos.perfmodel.machine import Costs, Level, Machine
from amos.perfmodel.structure import LoopBatch, Operand, Structure

__all__ = ["MODELS", "BatchPrediction", "evaluate"]

#: Rows that are evaluated at once.
_CHUNK = 4096

#: ``amos`` is the equation of the paper alone, ``amos+`` adds what it leaves out.
MODELS = ("amos", "amos+")


@dataclass(frozen=True)
class BatchPrediction:
    """Predicted times, one row a schedule, in seconds.

    Attributes:
        seconds: the whole operator.
        compute: the intrinsic alone.
        read: level name → bringing sources in through it.
        write: level name → taking the destination out through it.
        bytes_in: level name → bytes read through it by one group of cores.
        bytes_out: level name → bytes written through it by one group.
        trips: level name → executions of the loops inside it.
        source: level name → index of the source with the most traffic.
        overhead: steps of the reduction and tiles begun, beyond the calls.
        staging: copies of operands into and out of their staged form.
        launch: starting parallel regions.
    """

    seconds: np.ndarray
    compute: np.ndarray
    read: dict[str, np.ndarray]
    write: dict[str, np.ndarray]
    bytes_in: dict[str, np.ndarray]
    bytes_out: dict[str, np.ndarray]
    trips: dict[str, np.ndarray]
    source: dict[str, np.ndarray]
    overhead: np.ndarray
    staging: np.ndarray
    launch: np.ndarray


class _Part:
    """The nest of one group of cores, after the parallel loops were shared out.

    Positions run from the outermost spatial loop to the innermost reduction, with
    the blocks of the spatial loops between the two if there are any; depth ``d``
    means: inside are the loops from position ``d`` on, and always the register
    tiles. At the last depth only these are inside. Tiles that do not divide a loop
    are padded, hence the rounding up.
    """

    def __init__(self, structure: Structure, batch: LoopBatch, groups: np.ndarray) -> None:
        rows, spatial = len(batch), len(structure.spatial)
        tile = np.concatenate(
            [batch.tile, np.ones((rows, len(structure.reduce)), dtype=int)], axis=1
        )
        extents = np.broadcast_to(structure.extents, tile.shape)
        span = np.concatenate([batch.span, tile[:, spatial:]], axis=1)
        outer = -(-extents // np.maximum(span, 1))
        levels = [(batch.order, outer), (batch.reduce, outer)]
        if batch.block is not None:
            levels.insert(1, (batch.order, batch.block))
        self.loop = np.concatenate([loops for loops, _ in levels], axis=1)
        #: Position of the outermost reduction.
        self.begin = self.loop.shape[1] - len(structure.reduce)
        self.count = self.loop.shape[1]
        steps = [np.take_along_axis(values, loops, axis=1) for loops, values in levels]
        outer = np.concatenate(steps, axis=1).astype(float)
        parts = groups.astype(float)
        for position in range(spatial):
            ways = np.where(batch.parallel > position, np.minimum(outer[:, position], parts), 1.0)
            outer[:, position] = np.ceil(outer[:, position] / ways)
            parts = np.ceil(parts / ways)
        self.outer, self.tile = outer, tile.astype(float)
        #: trips[:, d]: how often what is at depth d runs.
        self.trips = np.concatenate([np.ones((rows, 1)), np.cumprod(outer, axis=1)], axis=1)
        self._cover: dict[int, np.ndarray] = {}
        self._footprint: dict[str, np.ndarray] = {}
        self._traffic: dict[tuple[str, bool], np.ndarray] = {}

    def cover(self, loop: int) -> np.ndarray:
        """Steps of a loop that are inside each depth: rows × depths."""
        if loop not in self._cover:
            steps = np.where(self.loop == loop, self.outer, 1.0)
            inside = np.ones((len(steps), self.count + 1))
            inside[:, :-1] = np.cumprod(steps[:, ::-1], axis=1)[:, ::-1]
            self._cover[loop] = inside * self.tile[:, loop, None]
        return self._cover[loop]

    def footprint(self, operand: Operand) -> np.ndarray:
        """Bytes that one execution of each depth touches: rows × depths."""
        if operand.name not in self._footprint:
            self._footprint[operand.name] = self._touched(operand)
        return self._footprint[operand.name]

    def _touched(self, operand: Operand) -> np.ndarray:
        total = np.full((len(self.outer), self.count + 1), operand.size)
        for dim in operand.dims:
            if not dim.terms:
                total *= min(dim.reach + 1, dim.points, dim.extent)
                continue
            reach: np.ndarray | float = float(dim.reach + 1)
            points: np.ndarray | float = float(dim.points)
            for loop, c in dim.terms:
                steps = self.cover(loop)
                reach = reach + c * (steps - 1)
                points = points * steps
            total *= np.minimum(np.minimum(reach, points), dim.extent)
        return total

    def traffic(self, operand: Operand, *, windows: bool) -> np.ndarray:
        """Bytes to move so that each depth always finds the operand inside.

        A loop that does not index the operand finds it where it is. With
        ``windows``, the steps of the nearest loop that does index it share what
        their windows have in common.
        """
        key = operand.name, windows
        if key not in self._traffic:
            self._traffic[key] = self._moved(operand, windows)
        return self._traffic[key]

    def _moved(self, operand: Operand, windows: bool) -> np.ndarray:
        footprint = self.footprint(operand)
        total = np.empty_like(footprint)
        total[:, 0] = footprint[:, 0]
        indexed = np.zeros(self.count, dtype=bool)
        indexed[list(operand.indexed)] = True
        before = np.full(len(footprint), -1)
        for position in range(self.count):
            moves = indexed[self.loop[:, position]] & (self.outer[:, position] > 1)
            before = np.where(moves, position, before)
            at = np.maximum(before, 0)
            if windows:
                whole = _at(footprint, at)
                times = _at(self.trips, at)
            else:
                whole = footprint[:, position + 1]
                times = _at(self.trips, at + 1)
            once = footprint[:, position + 1]
            total[:, position + 1] = np.where(before < 0, once, whole * times)
        return total


def evaluate(
    structure: Structure, machine: Machine, batch: LoopBatch, model: str = "amos+"
) -> BatchPrediction:
    """Predict every schedule of a batch.

    Args:
        structure: the mapping.
        machine: levels and rates.
        batch: the schedules.
        model: one of :data:`MODELS`.

    Raises:
        MachineError: no rate for the intrinsic, or no such model.
    """
    if model not in MODELS:
        raise MachineError(f"model {model!r}: expected one of {', '.join(MODELS)}")
    if len(batch) <= _CHUNK:
        return _evaluate(structure, machine, batch, model == "amos+")
    # In pieces whose arrays stay in the cache.
    starts = range(0, len(batch), _CHUNK)
    parts = [
        _evaluate(structure, machine, batch.rows(slice(n, n + _CHUNK)), model == "amos+")
        for n in starts
    ]
    return _joined(parts)


def _joined(parts: list[BatchPrediction]) -> BatchPrediction:
    def join(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: np.concatenate([v[key] for v in values]) for key in values[0]}
        return np.concatenate(values)

    names = [field.name for field in fields(BatchPrediction)]
    return BatchPrediction(**{name: join([getattr(x, name) for x in parts]) for name in names})


def _evaluate(
    structure: Structure, machine: Machine, batch: LoopBatch, refined: bool
) -> BatchPrediction:
    peak = machine.peak(structure.mapping.intrinsic.name)
    rows = len(batch)
    parallel = _parallel(structure, batch)
    cores = np.minimum(machine.cores, parallel)
    part = _Part(structure, batch, cores)
    shared = {1: _Part(structure, batch, np.ones(rows, int))}
    operands = (*structure.sources, structure.destination)
    calls = part.trips[:, -1] * part.tile.prod(axis=1)
    balanced = calls if not refined else _balanced(structure, batch, parallel, cores)
    chains = _chains(structure, part)
    spacing = np.maximum(peak.interval, peak.latency / chains) if refined else peak.latency
    compute = balanced * spacing
    result = BatchPrediction(
        np.zeros(rows),
        compute,
        {},
        {},
        {},
        {},
        {},
        {},
        np.zeros(rows),
        np.zeros(rows),
        np.zeros(rows),
    )
    bound = compute.copy()
    for number, level in enumerate(machine.levels):
        units = machine.cores if number == 0 else machine.levels[number - 1].units
        view = part if units >= machine.cores else shared.get(units)
        groups = np.minimum(cores, units)
        if view is None:
            view = shared.setdefault(units, _Part(structure, batch, groups))
        _level(result, structure, view, machine, number, level, groups, cores, operands, refined)
        bound = np.maximum(bound, np.maximum(result.read[level.name], result.write[level.name]))
    seconds = bound
    if refined:
        _overheads(result, structure, machine, batch, part, cores)
        seconds = bound + result.overhead + result.staging + result.launch
    result.seconds[:] = seconds
    return result


def _parallel(structure: Structure, batch: LoopBatch) -> np.ndarray:
    """Steps that are shared out to cores."""
    extents = structure.extents[: len(structure.spatial)]
    outer = np.take_along_axis(-(-extents // np.maximum(batch.span, 1)), batch.order, axis=1)
    live = np.arange(outer.shape[1]) < batch.parallel[:, None]
    steps: np.ndarray = np.where(live, outer, 1).prod(axis=1)
    return steps


def _balanced(
    structure: Structure, batch: LoopBatch, parallel: np.ndarray, cores: np.ndarray
) -> np.ndarray:
    """Calls of the busiest core: fused parallel steps are dealt out as evenly as they go."""
    extents, spatial = structure.extents, len(structure.spatial)
    span = np.maximum(batch.span, 1)
    padded = (-(-extents[:spatial] // span) * span).prod(axis=1).astype(float)
    total = padded * float(extents[spatial:].prod())
    calls: np.ndarray = total / parallel * np.ceil(parallel / cores)
    return calls


def _chains(structure: Structure, part: _Part) -> np.ndarray:
    """Independent accumulators in flight."""
    chains = np.ones(len(part.tile))
    for loop in structure.destination.indexed:
        chains = chains * part.tile[:, loop]
    return chains


def _level(
    result: BatchPrediction,
    structure: Structure,
    part: _Part,
    machine: Machine,
    number: int,
    level: Level,
    groups: np.ndarray,
    cores: np.ndarray,
    operands: tuple[Operand, ...],
    refined: bool,
) -> None:
    """Traffic of one level and the time it takes; adds a column to the result."""
    if number == 0:
        depth = np.full(len(part.outer), part.count)
        moved = [_register_traffic(op, part) for op in operands]
    else:
        inner = machine.levels[number - 1]
        fits = np.sum([part.footprint(op) for op in operands], axis=0) <= inner.capacity
        depth = np.where(fits.any(axis=1), fits.argmax(axis=1), part.count)
        moved = [_at(part.traffic(op, windows=refined), depth) for op in operands]
        # All of it stays in the memory inside from one run to the next.
        moved = [np.where(depth == 0, 0.0, amount) for amount in moved]
    name = level.name
    reads = np.stack(moved[:-1])
    together = np.ceil(cores / groups)
    result.bytes_in[name], result.bytes_out[name] = reads.sum(axis=0), moved[-1]
    result.source[name] = reads.argmax(axis=0)
    result.trips[name] = _at(part.trips, depth)
    result.read[name] = result.bytes_in[name] / level.rate(groups, together, write=False)
    result.write[name] = result.bytes_out[name] / level.rate(groups, together, write=True)


def _at(values: np.ndarray, column: np.ndarray) -> np.ndarray:
    """One column of each row."""
    picked: np.ndarray = values[np.arange(len(values)), column]
    return picked


def _register_traffic(operand: Operand, part: _Part) -> np.ndarray:
    """Bytes loaded into registers: each distinct fragment once a step."""
    fragments = np.ones(len(part.tile))
    for loop in operand.indexed:
        fragments = fragments * part.tile[:, loop]
    steps = np.ones(len(part.tile))
    inside = np.ones(len(part.tile), dtype=bool)
    for position in reversed(range(part.count)):
        moves = np.isin(part.loop[:, position], list(operand.indexed))
        inside = inside & ~(moves & (part.outer[:, position] > 1))
        steps = steps * np.where(inside, 1.0, part.outer[:, position])
    return fragments * steps * operand.loads


def _overheads(
    result: BatchPrediction,
    structure: Structure,
    machine: Machine,
    batch: LoopBatch,
    part: _Part,
    cores: np.ndarray,
) -> None:
    """What the equation leaves out: loop steps, tiles begun, copies, regions."""
    costs, cycle = machine.costs, 1.0 / machine.clock
    tiles = part.trips[:, part.begin]
    steps = part.trips[:, -1]
    unrolled = np.maximum(batch.unroll, 1)
    chains = _chains(structure, part)
    result.overhead[:] = cycle * (
        costs.step * steps / unrolled + tiles * (costs.tile + costs.fragment * chains)
    )
    regions = np.ones(len(batch))
    ahead = dict(zip(structure.choices, batch.ahead.T, strict=True))
    for op in (*structure.sources, structure.destination):
        if not op.copied:
            continue
        whole = _copy_seconds(op, np.full(len(batch), float(op.copied)), machine, costs, cores)
        if op.choice:
            once = _at(part.footprint(op), batch.parallel) / op.size
            times = _at(part.trips, batch.parallel)
            tiled = _copy_seconds(op, once * times * cores, machine, costs, cores)
            result.staging[:] += np.where(ahead[op.name], whole, tiled)
            regions += ahead[op.name]
        else:
            result.staging[:] += whole
            regions += 1
    result.launch[:] = machine.launch * regions


def _copy_seconds(
    op: Operand, elements: np.ndarray, machine: Machine, costs: Costs, cores: np.ndarray
) -> np.ndarray:
    """Copies shared out to all cores: bound by the copying instructions or the memory."""
    size = (elements + op.origin) * op.size
    home = next((x for x in machine.levels if x.capacity >= size.max()), machine.levels[-1])
    slowest = np.minimum(
        home.rate(np.minimum(cores, home.units), np.ones(len(size)), write=False),
        home.rate(np.minimum(cores, home.units), np.ones(len(size)), write=True),
    )
    streaming = size / (slowest * np.minimum(cores, home.units))
    cost = {"run": costs.run * op.size / 64, "stride": costs.stride, "digits": costs.digits}
    copying: np.ndarray = elements * cost[op.copy] / machine.clock / cores
    seconds: np.ndarray = np.maximum(streaming, copying)
    return seconds
