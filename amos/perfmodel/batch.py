"""The hierarchical model over many schedules of one mapping at once.

Every quantity is an array with one row a schedule; there is no loop over
schedules. :mod:`amos.perfmodel.model` says what the terms mean.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from amos.errors import MachineError
from amos.perfmodel.fits import demands, fragments, live_fragments
from amos.perfmodel.machine import Costs, Level, Machine
from amos.perfmodel.part import Part, column
from amos.perfmodel.structure import LoopBatch, Operand, Structure

__all__ = ["MODELS", "BatchPrediction", "evaluate", "overflows", "parallel_steps"]

#: Rows that are evaluated at once.
_CHUNK = 4096

#: ``amos`` is the equation of the paper alone, ``amos+`` adds what it leaves out.
MODELS = ("amos", "amos+")


@dataclass(frozen=True)
class BatchPrediction:
    """Predicted times, one row a schedule, in seconds.

    Attributes:
        seconds: the whole operator; infinite if the schedule does not fit.
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
    parallel = parallel_steps(structure, batch)
    cores = np.minimum(machine.cores, parallel)
    line = machine.line if refined else 1
    part = Part(structure, batch, cores, line)
    shared = {1: Part(structure, batch, np.ones(rows, int), line)}
    operands = (*structure.sources, structure.destination)
    calls = part.trips[:, -1] * part.tile.prod(axis=1)
    balanced = calls if not refined else _balanced(structure, batch, parallel, cores)
    chains = _chains(structure, part)
    if refined:
        # Calls of the next tiles start before those of this one are done.
        length = part.trips[:, -1] / part.trips[:, part.begin]
        ahead = 1.0 + machine.costs.window / (length * chains)
        spacing = np.maximum(peak.interval, peak.latency / (chains * ahead))
        spacing = spacing * _crowding(structure, machine, part)
    else:
        spacing = np.full(rows, peak.latency)
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
    terms = [compute]
    for number, level in enumerate(machine.levels):
        units = machine.cores if number == 0 else machine.levels[number - 1].units
        view = part if units >= machine.cores else shared.get(units)
        groups = np.minimum(cores, units)
        if view is None:
            view = shared.setdefault(units, Part(structure, batch, groups, line))
        _level(result, structure, view, machine, number, level, groups, cores, operands, refined)
        terms += [result.read[level.name], result.write[level.name]]
    seconds = np.max(terms, axis=0)
    if refined:
        bound = _overlapped(terms, seconds, machine.costs.overlap)
        _overheads(result, structure, machine, batch, part, cores)
        seconds = bound + result.overhead + result.staging + result.launch
    if refined:
        for need, capacity in demands(structure, machine, batch, part).values():
            seconds = np.where(need > capacity, np.inf, seconds)
    result.seconds[:] = seconds
    return result


def overflows(structure: Structure, machine: Machine, batch: LoopBatch) -> list[str]:
    """What the first schedule of a batch places beyond the capacity of a memory, in words."""
    cores = np.minimum(machine.cores, parallel_steps(structure, batch))
    part = Part(structure, batch, cores, machine.line)
    said = []
    for name, (need, capacity) in demands(structure, machine, batch, part).items():
        if need[0] > capacity:
            what = "fragments" if name == "registers" else "bytes"
            said.append(
                f"{name} of {machine.name} overflow: {need[0]:.0f} {what} are placed there, "
                f"{capacity} fit, {need[0] - capacity:.0f} too many"
            )
    return said


def parallel_steps(structure: Structure, batch: LoopBatch) -> np.ndarray:
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


def _overlapped(terms: list[np.ndarray], longest: np.ndarray, exponent: float) -> np.ndarray:
    """A smooth maximum: terms of like size get in each other's way."""
    shares = np.stack(terms) / longest
    whole: np.ndarray = longest * (shares**exponent).sum(axis=0) ** (1.0 / exponent)
    return whole


def _crowding(structure: Structure, machine: Machine, part: Part) -> np.ndarray | float:
    """Slower calls when the compiler has hardly a register to spare."""
    registers = structure.mapping.intrinsic.registers
    if not registers:
        return 1.0
    spare = registers / 8
    crowded = (live_fragments(structure, part) - (registers - spare)) / spare
    return 1.0 + machine.costs.spill * np.clip(crowded, 0.0, 1.0)


def _chains(structure: Structure, part: Part) -> np.ndarray:
    """Independent accumulators in flight."""
    return fragments(structure.destination, part)


def _level(
    result: BatchPrediction,
    structure: Structure,
    part: Part,
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
        broadcast = machine.costs.broadcast if refined else 1.0
        moved = [_register_traffic(op, part, broadcast) for op in operands]
    else:
        inner = machine.levels[number - 1]
        fits = np.sum([part.footprint(op) for op in operands], axis=0) <= inner.capacity
        depth = np.where(fits.any(axis=1), fits.argmax(axis=1), part.count)
        moved = [column(part.traffic(op, windows=refined), depth) for op in operands]
        # All of it stays in the memory inside from one run to the next.
        moved = [np.where(depth == 0, 0.0, amount) for amount in moved]
    name = level.name
    reads = np.stack(moved[:-1])
    together = np.ceil(cores / groups)
    result.bytes_in[name], result.bytes_out[name] = reads.sum(axis=0), moved[-1]
    result.source[name] = reads.argmax(axis=0)
    result.trips[name] = column(part.trips, depth)
    result.read[name] = result.bytes_in[name] / level.rate(groups, together, write=False)
    if refined and number > 0:
        # Reads of several streams, between calls, miss more of the bandwidth.
        slower = [1.0 + machine.costs.streams * fragments(op, part) for op in operands[:-1]]
        spread = (reads * np.stack(slower)).sum(axis=0)
        result.read[name] = spread / level.rate(groups, together, write=False)
    result.write[name] = result.bytes_out[name] / level.rate(groups, together, write=True)


def _register_traffic(operand: Operand, part: Part, broadcast: float) -> np.ndarray:
    """Bytes loaded into registers: each distinct fragment once a step.

    A fragment that is replicated into a whole register takes part of the time that
    loading the whole register does.
    """
    steps = np.ones(len(part.tile))
    inside = np.ones(len(part.tile), dtype=bool)
    for position in reversed(range(part.count)):
        moves = np.isin(part.loop[:, position], list(operand.indexed))
        inside = inside & ~(moves & (part.outer[:, position] > 1))
        steps = steps * np.where(inside, 1.0, part.outer[:, position])
    size = operand.fragment
    if operand.copies > 1:
        size = max(size, size * operand.copies * broadcast)
    return fragments(operand, part) * steps * size


def _overheads(
    result: BatchPrediction,
    structure: Structure,
    machine: Machine,
    batch: LoopBatch,
    part: Part,
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
            once = column(part.elements(op), batch.parallel)
            times = column(part.trips, batch.parallel)
            tiled = _copy_seconds(op, once * times * cores * costs.tiled, machine, costs, cores)
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
    cost = {
        "run": costs.run * op.size / 64,
        "stride": costs.stride,
        "digits": costs.digits * op.divisions,
    }
    copying: np.ndarray = elements * cost[op.copy] / machine.clock / cores
    seconds: np.ndarray = np.maximum(streaming, copying)
    return seconds
