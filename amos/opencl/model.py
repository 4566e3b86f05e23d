"""The model of OpenCL devices: work-groups on compute units, copies, barriers, caches.

A compute unit runs the work-items of its groups on lanes. Between two barriers a group either
copies or multiplies, so that copies come on top; calls, reads of fragments and caches overlap.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from amos.machine.machine import Machine
from amos.opencl.groups import WorkGroups, fragments_of
from amos.opencl.plan import unit_of
from amos.perfmodel.terms import BatchPrediction
from amos.plan.structure import LoopBatch, Structure


def predict_groups(structure: Structure, machine: Machine, batch: LoopBatch) -> BatchPrediction:
    """Predict every schedule of a batch on an OpenCL machine."""
    return _Kernels(structure, machine, batch).prediction()


class _Kernels:
    """Kernels of one mapping on an OpenCL machine; arrays with one column a schedule.

    Attributes:
        groups: their work-groups.
        turns: work-items that a lane of the busiest unit computes, one after another.
        steps: steps of the reduction, those beyond its end included.
    """

    def __init__(self, structure: Structure, machine: Machine, batch: LoopBatch) -> None:
        self.structure, self.machine, self.batch = structure, machine, batch
        self.unit, self.groups = unit_of(machine), WorkGroups(structure, batch)
        *self.sources, self.destination = fragments_of(structure)
        lanes = max(1.0, machine.cores / self.unit.units)
        self.busiest = np.ceil(self.groups.grid / self.unit.units)
        self.turns = np.ceil(self.busiest * self.groups.items / lanes)
        self.resident = np.minimum(self.turns, self.unit.threads)
        self.steps = self.groups.sequence * self.groups.staged
        self.cycle = 1 / machine.clock

    def prediction(self) -> BatchPrediction:
        """All terms, and what they come to."""
        groups, machine = self.groups, self.machine
        result = BatchPrediction.empty(len(self.batch), machine.levels)
        result.compute[:] = self._compute()
        inner = machine.levels[0].name
        result.read[inner] = self._reads()
        terms = [result.compute, result.read[inner], *self._outer(result)]
        result.staging[:] = self._staging()
        result.launch[:] = machine.launch
        starts = self.busiest * self.unit.start * self.cycle
        seconds = np.maximum.reduce(terms) + result.staging + result.launch + starts
        fits = (groups.local_bytes <= self.unit.local_bytes) & (
            groups.items <= self.unit.group_items
        )
        result.seconds[:] = np.where(fits, seconds, np.inf)
        result.notes.update(local_bytes=groups.local_bytes, barriers=groups.sequence * 2.0)
        return result

    def _compute(self) -> np.ndarray:
        """Calls of a lane; one of the same accumulator waits for the one before.

        The accumulators of a work-item and the work-items that a lane holds fill that time.
        """
        peak, accumulators = self.machine.peak(self._name), self.groups.accumulators
        spacing = np.maximum(peak.interval, peak.latency / (accumulators * self.resident))
        return np.asarray(self.turns * accumulators * self.steps * spacing)

    @property
    def _name(self) -> str:
        return self.structure.mapping.intrinsic.name

    def _reads(self) -> np.ndarray:
        """Fragments that work-items read in each step: vectors, or pieces that they gather.

        Accumulators beyond the registers are stored and read again in each step.
        """
        groups, unit = self.groups, self.unit
        cycles = np.zeros(len(self.batch))
        for number, source in enumerate(self.sources):
            gathered = source.pieces * self._piece(number)
            direct = unit.read if source.pieces == 1 and not source.computed else gathered
            cycles += groups.own(number) * np.where(groups.local[number], unit.read, direct)
        spilled = np.maximum(groups.register_bytes - unit.item_bytes, 0.0)
        cycles += 2 * unit.read * spilled / self.destination.bytes
        return np.asarray(self.turns * self.steps * cycles * self.cycle)

    def _piece(self, number: int) -> float:
        """Cycles of moving a piece of a source: its address, its conditions, itself."""
        source, unit = self.sources[number], self.unit
        checks = sum(
            low < 0 or high >= size
            for index, size in zip(
                source.staged.load.indices, source.staged.load.tensor.shape, strict=True
            )
            for low, high in [index.bounds(self.structure.mapping.operator.extents)]
        )
        return unit.copy * self.structure.sources[number].wider + unit.guard * (
            checks + source.divisions
        )

    def _staging(self) -> np.ndarray:
        """Copies into local memory, and barriers."""
        groups, unit, total = self.groups, self.unit, np.zeros(len(self.batch))
        lanes = max(1.0, self.machine.cores / unit.units)
        for number, source in enumerate(self.sources):
            pieces = groups.fragments(number) * source.pieces
            shared = np.ceil(pieces / groups.items) * groups.items / lanes
            total += groups.local[number] * shared * self._piece(number) * self.busiest
        waits = groups.local.any(axis=0) * 2 * self.turns * unit.barrier * (groups.items > 1)
        return np.asarray(groups.sequence * (total + waits) * self.cycle)

    def _outer(self, result: BatchPrediction) -> list[np.ndarray]:
        """Seconds of the levels beyond the innermost, by what their inner neighbour keeps."""
        terms, machine, groups = [], self.machine, self.groups
        last = self.structure.destination
        written = np.full(len(self.batch), last.origin * last.size)
        for inner, level in pairwise(machine.levels):
            sizes = self._crossing(inner.capacity)
            total = np.sum(sizes, axis=0)
            active = np.minimum(groups.grid, level.units if level.units > 1 else self.unit.units)
            share = level.rate(active, np.ones(len(self.batch)), write=False) * active
            result.bytes_in[level.name], result.bytes_out[level.name] = total, written
            result.source[level.name] = np.stack(sizes).argmax(axis=0)
            result.read[level.name] = total / share
            result.write[level.name] = written / level.write_bandwidth
            terms.append(result.read[level.name] + result.write[level.name])
        return terms

    def _crossing(self, capacity: int) -> list[np.ndarray]:
        """Bytes of each source that all groups bring into memories of a capacity.

        A source stays if all of it has room; what the innermost loop of the groups does not
        move stays if one group's share of it has.
        """
        groups, structure = self.groups, self.structure
        sizes, spatial = [], len(structure.spatial)
        inner = self.batch.order[:, -1] if spatial else None
        for number, (op, source) in enumerate(zip(structure.sources, self.sources, strict=True)):
            own = groups.span[groups.loops[number]].prod(axis=0) * source.bytes * op.live
            share = own * (self.steps if source.reduced else 1.0)
            whole = op.origin * op.size
            total = np.maximum(share * groups.grid, float(whole))
            if inner is not None:
                moved = np.isin(inner, groups.loops[number])
                runs = groups.blocks[inner, np.arange(len(self.batch))]
                reused = ~moved & (share <= capacity)
                total = np.where(reused, np.maximum(total / runs, whole), total)
            sizes.append(np.where(whole <= capacity, float(whole), total))
        return sizes
