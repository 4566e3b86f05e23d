"""Predicted seconds of a chain's kernel.

Products are predicted by the model of operators, for one core. Assignments take as long as their
vector operations, or as moving what they read and write at the level that holds a tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

from amos.chains.boxes import load_box
from amos.chains.candidate import count_first_tiles, packable, runs_of
from amos.chains.loops import LANES
from amos.chains.rolling import RollingRows
from amos.chains.tiling import TiledStep, Tiling
from amos.ir import Assignment, Operator, dtype
from amos.ir.chain import loads_of, result_of
from amos.ir.expression import Node
from amos.ir.transforms import Transform
from amos.machine import Level, Machine

#: Elements that a copy moves in a cycle where it transposes.
_COPIED_PER_CYCLE = 2.0


@dataclass(frozen=True)
class StepSeconds:
    """What a step takes in all of its runs.

    Attributes:
        tensor: that it writes.
        runs: how often a kernel computes it.
        seconds: of one core, or of all cores if they compute each tile together.
    """

    tensor: str
    runs: int
    seconds: float


@dataclass(frozen=True)
class ChainPrediction:
    """Predicted seconds of a kernel.

    Attributes:
        steps: what each step takes.
        seconds: of the kernel on all cores.
        temporary_bytes: of what a core keeps between statements.
        level: the name of the memory level that holds them.
    """

    steps: tuple[StepSeconds, ...]
    seconds: float
    temporary_bytes: int
    level: str


def predict_chain(
    tiling: Tiling,
    products: Mapping[str, float],
    packs: bool,
    machine: Machine,
    cooperative: bool = False,
) -> ChainPrediction:
    """Predict a kernel.

    Args:
        products: seconds of one run of each product that an instruction computes, on one core.
        packs: whether sources that tiles share are packed once for all of these.
        cooperative: whether all cores compute each tile together; products are of all cores then.
    """
    core = machine.core
    temporary = temporary_bytes(tiling)
    level = _shared_level(machine, temporary) if cooperative else holding_level(core, temporary)
    steps = []
    for tiled in tiling.steps:
        name, runs = tiled.step.output.tensor.name, runs_of(tiling, tiled)
        seconds = products.get(name)
        if seconds is None:
            vectors = _points(tiled) / LANES * count_operations(tiled.step)
            seconds = max(vectors / core.clock, _nbytes(tiled) / level.read_bandwidth)
            if cooperative and isinstance(tiled.step, Transform):
                seconds = seconds / machine.cores + machine.launch
        total = runs * seconds + _moving_seconds(tiling, tiled, level)
        if packs and isinstance(tiled.step, Operator):
            for source, depth in packable(tiling, tiled).items():
                count = prod(loop.count for loop in tiling.loops[:depth])
                total += count * prod(tiled.size(source)) / _COPIED_PER_CYCLE / core.clock
        steps.append(StepSeconds(name, runs, total))
    share = 1.0 if cooperative else -(-tiling.count // machine.cores) / tiling.count
    seconds = machine.launch + share * sum(each.seconds for each in steps)
    return ChainPrediction(tuple(steps), seconds, temporary, level.name)


def holding_level(machine: Machine, size: int) -> Level:
    """Return the nearest level of memory that holds the bytes."""
    fitting = (each for each in machine.levels if not each.capacity or each.capacity >= size)
    return next(fitting, machine.levels[-1])


def _shared_level(machine: Machine, size: int) -> Level:
    """Return a core's view of the nearest level that cores share and that holds so many bytes."""
    pairs = zip(machine.levels, machine.core.levels, strict=True)
    shared = (own for each, own in pairs if each.units < max(machine.cores, 2))
    fitting = (own for own in shared if not own.capacity or own.capacity >= size)
    return next(fitting, machine.core.levels[-1])


def _moving_seconds(tiling: Tiling, tiled: TiledStep, level: Level) -> float:
    """Predict seconds of moving the rows that tiles keep, which are read and written."""
    if (rows := tiled.rows) is None or not rows.halo:
        return 0.0
    tensor, loop = result_of(tiled.step), tiling.loops[-1]
    size = tiling.nbytes(tensor) * rows.halo // (rows.halo + rows.fresh)
    moves = tiling.count // loop.count * (loop.count - count_first_tiles(loop))
    return moves * 2 * size / level.read_bandwidth


def temporary_bytes(tiling: Tiling) -> int:
    """Count bytes that a core keeps between statements."""
    return sum(map(tiling.nbytes, tiling.temporaries))


def rough_seconds(tiling: Tiling, machine: Machine) -> float:
    """Predict the least time of a tiling with any kernels of its products, to select tilings.

    All points at two vectors a cycle, and what tiles read of inputs from where the inputs are.
    """
    core = machine.core
    near = holding_level(core, temporary_bytes(tiling))
    work = sum(_moving_seconds(tiling, tiled, near) for tiled in tiling.steps)
    for tiled in tiling.steps:
        cost = 0.5 if isinstance(tiled.step, Operator) else count_operations(tiled.step)
        work += runs_of(tiling, tiled) * _points(tiled) / LANES * cost / core.clock
    inputs = {tensor.name: tensor for tensor in tiling.chain.inputs}
    size = sum(tensor.nbytes for tensor in inputs.values())
    level = holding_level(machine, size)
    depth = {loop.name: n for n, loop in enumerate(tiling.loops, 1)}
    moved = 0.0
    for name, tensor in inputs.items():
        if name in tiling.boxes:
            used = [depth.get(n, 0) for place in tiling.boxes[name] for n in place.start.names]
            times = prod(loop.count for loop in tiling.loops[: max(used, default=0)])
            moved += times * tiling.nbytes(tensor)
    for tiled in tiling.steps:
        if tiled.rows is not None:  # whatever does not move with units stays near a core
            own = {load.tensor for load in loads_of(tiled.step) if load.tensor.name in inputs}
            counter = RollingRows.counter(tiled.step.output.tensor.name)
            moving = [x for x in own if any(counter in r.start.names for r in tiled.boxes[x.name])]
            moved += runs_of(tiling, tiled) * sum(map(tiled.nbytes_of, moving))
    share = -(-tiling.count // machine.cores) / tiling.count
    return share * (work + moved / (level.read_bandwidth / machine.cores))


def _points(tiled: TiledStep) -> int:
    if isinstance(tiled.step, Transform):  # whose operations are counted for all of a tile
        sizes = {n: x.size for n, x in tiled.ranges.items() if n not in tiled.step.unrolled}
        (lane,) = tiled.step.output.indices[-1].names
        return prod(sizes.values()) * LANES // gcd(sizes[lane], LANES)
    return prod(run.size for run in tiled.ranges.values())


def _nbytes(tiled: TiledStep) -> int:
    """Count the bytes that a step reads and writes; of tensors that a transform tiles, a tile."""
    if not isinstance(tiled.step, Transform):
        return tiled.nbytes
    total = 0
    for load in (*tiled.step.loads, tiled.step.output):
        box = zip(load_box(load, tiled.ranges), load.tensor.shape, strict=True)
        count = prod(min(place.size, size) for place, size in box)
        total += count * dtype(str(load.tensor.dtype)).numpy.itemsize
    return total


def count_operations(step: object) -> float:
    """Count vector operations of an element, at least one; two of a product, with its load."""
    if not isinstance(step, Assignment):
        return 2.0
    if isinstance(step, Transform):
        return float(step.operation_count)
    narrow = dtype(str(step.output.tensor.dtype)).bits < 32
    return max(1.0, _count(step.expression) + bool(step.combiner) + 6 * narrow)


def _count(node: Node) -> float:
    inner = sum(map(_count, node.arguments))
    if node.function is not None:
        return inner + _count(node.function.body)
    return inner + (1 if node.arguments else 0)
