"""Predicted seconds of a chain whose loops run on work-groups and work-items.

Each access costs its operations and reads, at each point of its loops. Work-items count by what
the device does with them: a core of a CPU computes those of a group one after another, as vectors
where neighbours touch neighbours in memory; a GPU computes as many at a time as a unit has lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from amos.chains.group_limits import has_items
from amos.chains.loop_nest import Allocation, Loop, LoopPath, Node
from amos.chains.model import ChainPrediction, StepSeconds, count_operations, holding_level
from amos.ir import BufferLoad
from amos.ir.chain import loads_of
from amos.machine import Machine
from amos.opencl.chains.candidate import ParallelCandidate
from amos.opencl.chains.product import VectorProduct
from amos.opencl.plan import unit_of
from amos.perfmodel.terms import smooth_maximum

#: PoCL makes one vector of the work-items of a group along one dimension, if there are so few. It
#: gives up where some skip an access, and behind a step whose neighbours are scattered.
_MOST_LANES = 16
#: Elements of a vector of a loop, operations of a cycle, and how much longer it takes a GPU's
#: neighbours to access memory that is scattered.
_LANES, _ISSUED, _SCATTERED = 8, 2.0, 8.0
#: How calls and reads of an instruction share a core.
_OVERLAP = 3.0


def predict_parallel(candidate: ParallelCandidate, machine: Machine) -> ChainPrediction:
    """Predict a valid kernel; seconds of steps are those of a core that does all of it."""
    unit, model = unit_of(machine), _Model(candidate, machine)
    cycles, vectors = dict[str, float](), True
    for path in candidate.nest.paths:
        if (product := candidate.products.get(path.access.name)) is not None:
            cost = step_cycles(candidate, product, machine)
            cycles[path.access.name] = cost * model.points(path, scattered=False, vectors=False)
            continue
        cost, scattered = model.point(path)
        vectors &= not any(loop.extent % candidate.stride_of(loop) for loop in path.loops)
        cycles[path.access.name] = cost * model.points(path, scattered, vectors)
        vectors &= not scattered or path.access.name.endswith(".copy")
    waiting = sum(model.barriers(candidate.nest.body, ())) * unit.barrier
    waves = -(-candidate.groups // unit.units)
    work = waves * (sum(cycles.values()) + waiting + unit.start) / machine.clock
    temporary = sum(each.nbytes for each in candidate.nest.allocations)
    level = holding_level(machine.core, temporary)
    tensors = (*candidate.chain.inputs, candidate.chain.result)
    moved = sum(tensor.nbytes for tensor in tensors)
    memory = moved / holding_level(machine, moved).read_bandwidth
    steps = tuple(
        StepSeconds(name, candidate.groups, candidate.groups * each / machine.clock)
        for name, each in cycles.items()
    )
    seconds = machine.launch + work + memory
    return ChainPrediction(steps, seconds, temporary, level.name)


def step_cycles(candidate: ParallelCandidate, product: VectorProduct, machine: Machine) -> float:
    """Predict the cycles of a step of a product's reduction, for all fragments of a work-item."""
    unit, count = unit_of(machine), product.accumulators
    peak = machine.peak(product.mapping.intrinsic.name)
    resident = 1 if unit.serial else unit.threads
    calls = count * max(peak.interval, peak.latency / (count * resident)) * machine.clock
    reads = unit.issue * count
    for operand in product.operands[:-1]:
        is_gathered = (
            operand.elements > 1 and candidate.stride_between(operand.load, operand.loop) != 1
        )
        reads += product.own(operand) * (operand.elements * unit.copy if is_gathered else unit.read)
    return float(smooth_maximum([np.array(calls), np.array(reads)], _OVERLAP))


@dataclass(frozen=True)
class _Model:
    """Costs of a group."""

    candidate: ParallelCandidate
    machine: Machine

    def points(self, path: LoopPath, scattered: bool, vectors: bool) -> float:
        """Count the points that a group computes one after another.

        Args:
            path: the access and its loops.
            scattered: whether neighbours touch what is no neighbour in memory.
            vectors: whether all that stands before has left work-items together.
        """
        unit, items = unit_of(self.machine), self.candidate.group_items
        if not unit.serial:
            waves = -(-items // max(1, self.machine.cores // unit.units))
            return self._trips(path.loops) * waves * (_SCATTERED if scattered else 1.0)
        lanes = 1
        if vectors and not scattered and len(self.candidate.group_shape) < 2:
            lanes = _LANES if items == 1 else items if items <= _MOST_LANES else 1
        return self._trips(path.loops) * items / lanes

    def barriers(self, nodes: Sequence[Node], loops: tuple[Loop, ...]) -> Iterator[float]:
        """Yield how often work-items wait, for each place where they do."""
        items = self.candidate.group_items if unit_of(self.machine).serial else 1
        shares = any(isinstance(x, Allocation) and x.memory == "local" for x in nodes)
        for node in nodes:
            if shares and not isinstance(node, Allocation):
                yield self._trips(loops) * items
            if isinstance(node, Loop):
                yield from self.barriers(node.body, (*loops, node))

    def _trips(self, loops: Sequence[Loop]) -> int:
        """Count trips of a work-item, those that guards skip included."""
        return prod(-(-loop.extent // self.candidate.stride_of(loop)) for loop in loops)

    def point(self, path: LoopPath) -> tuple[float, bool]:
        """Return cycles of a point, and whether neighbours access elements far apart."""
        unit, name = unit_of(self.machine), path.access.name
        moving = self._moving_loop(path)
        if name.endswith(".copy"):
            tensor = name.removesuffix(".copy")
            dimensions = len(self.candidate.tiling.size(tensor))
            last = "" if moving is None else f"{name}.{dimensions - 1}"
            return unit.copy, moving is None or moving.name != last
        tiled = self.candidate.step_of(name)
        loads = (*loads_of(tiled.step), tiled.step.output)
        cost = count_operations(tiled.step) / _ISSUED + unit.read * (len(loads) - 1)
        scattered = moving is None or any(self._stride(moving, name, x) > 1 for x in loads)
        return cost, scattered

    def _moving_loop(self, path: LoopPath) -> Loop | None:
        """Return the loop whose values neighbours of a vector have; ``None`` without vectors."""
        choices = {loop.name: self.candidate.choices[loop.name] for loop in path.loops}
        own = [loop for loop in path.loops if has_items(choices[loop.name])]
        if own:
            return min(own, key=lambda loop: choices[loop.name].rpartition(" ")[2])
        # Compilers make vectors of the innermost loop, unless it is a sum.
        innermost = path.loops[-1] if path.loops else None
        return None if innermost is None or innermost.is_reduce else innermost

    def _stride(self, loop: Loop, access: str, load: BufferLoad) -> int:
        """Return the elements between those that two neighbours access."""
        candidate, name = self.candidate, load.tensor.name
        shared = {each.name: each.tile for each in candidate.tiling.loops}
        copied = f"{name}.copy" if name in candidate.copies else name
        if loop.name in shared and copied in {each.buffer for each in candidate.nest.allocations}:
            return 2  # each has a tile of its own
        iteration = loop.name.removeprefix(f"{access}.")
        return shared.get(loop.name, 1) * abs(candidate.stride_between(load, iteration))
