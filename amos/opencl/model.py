"""The model of OpenCL devices: work-groups on compute units, copies, barriers, caches.

A compute unit runs the work-items of its groups on lanes. Between two barriers a group either
copies or multiplies, so that copies come on top; calls, reads of fragments and caches overlap.
A serial unit, a core, computes the work-items of a group one after another: it keeps their
accumulators in memory across barriers.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np

from amos.machine.machine import Machine
from amos.opencl.groups import VectorFragment, WorkGroups, fragments_of
from amos.opencl.plan import unit_of
from amos.perfmodel.terms import BatchPrediction, smooth_maximum
from amos.plan.structure import LoopBatch, Structure

#: Bytes of a cache line; how calls and reads share a core; share of a cache that is there for
#: local memory.
_LINE, _OVERLAP, _USABLE = 64, 3.0, 0.75
#: Bytes of a page, and pages whose addresses a core translates at once.
_PAGE, _PAGES = 4096, 64


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
        self.unit, self.groups = unit_of(machine), WorkGroups(structure, batch, machine)
        *self.sources, self.destination = fragments_of(structure)
        self.lanes = max(1.0, machine.cores / self.unit.units)
        self.busiest = np.ceil(self.groups.grid / self.unit.units)
        self.turns = np.ceil(self.busiest * self.groups.items / self.lanes)
        self.resident = np.minimum(self.turns, self.unit.threads)
        self.steps = self.groups.sequence * self.groups.staged
        self.cycle = 1 / machine.clock

    def prediction(self) -> BatchPrediction:
        groups, machine = self.groups, self.machine
        result = BatchPrediction.empty(len(self.batch), machine.levels)
        result.compute[:] = self._compute()
        inner = machine.levels[0].name
        result.read[inner] = self._reads()
        near = smooth_maximum([result.compute, result.read[inner]], _OVERLAP)
        terms = [near, *self._outer(result)]
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
        """Count calls of a lane; those of one accumulator wait for each other.

        The accumulators of a work-item and the work-items that a lane holds fill that time.
        """
        peak, accumulators = self.machine.peak(self._name), self.groups.accumulators
        spacing = np.maximum(peak.interval, peak.latency / (accumulators * self.resident))
        return np.asarray(self.turns * accumulators * self.steps * spacing)

    @property
    def _name(self) -> str:
        return self.structure.mapping.intrinsic.name

    def _reads(self) -> np.ndarray:
        """Count fragments that work-items read in each step, and calls that are issued beside.

        Accumulators beyond the registers are stored and read again in each step.
        """
        groups, unit = self.groups, self.unit
        cycles = unit.issue * groups.accumulators
        divisions = unit.guard * self._divisions()
        for number, source in enumerate(self.sources):
            guards = bool(self._checks(number)) + self._conditions(number) * self.unit.serial
            direct = unit.read + unit.guard * guards * self._border_share(number)
            if source.pieces > 1 or source.computed:
                direct = source.pieces * (self._piece(number) + unit.line * self._lines(number))
            fragments = groups.own(number) * direct + source.reduced * divisions
            fragments = fragments + unit.row * self._entered_pages(number)
            local = groups.own(number) * self._local_read(source)
            cycles = cycles + np.where(groups.local[number], local, fragments)
        spilled = np.maximum(groups.register_bytes - unit.item_bytes, 0.0)
        cycles += 2 * unit.read * spilled / self.destination.bytes
        return np.asarray(self.turns * self.steps * cycles * self.cycle)

    def _entered_pages(self, number: int) -> np.ndarray:
        """Count pages that a core enters in a step, where the innermost loop has too many.

        Fragments that lie side by side in a row share its page.
        """
        source, structure = self.sources[number], self.structure
        nothing = np.zeros(len(self.batch))
        if not (self.unit.serial and structure.reduce) or source.pieces > 1:
            return nothing
        strides = self._inner_strides(number) * source.size
        extents = structure.extents[self.batch.reduce[:, -1]]
        rows = self.groups.own(number)
        side = f"{source.staged.fragment[-1]}.tile" if source.staged.fragment else ""
        if side in source.loops:
            names = [loop.name for loop in structure.spatial]
            rows = rows / self.groups.tile[names.index(side)]
        share = np.minimum(strides / _PAGE, 1.0)
        return np.where(strides * extents > _PAGE * _PAGES, rows * share, nothing)

    def _inner_strides(self, number: int) -> np.ndarray:
        """Return a source's elements between steps of the innermost reduction loop."""
        inner = self.batch.reduce[:, -1] - len(self.structure.spatial)
        return np.asarray(self._strides(number)[inner])

    def _strides(self, number: int) -> np.ndarray:
        flat = self.sources[number].staged.load.flat
        return np.array([abs(flat.coefficient(loop.name)) for loop in self.structure.reduce])

    @cached_property
    def _is_even(self) -> np.ndarray:
        """Whether each stage ends where a reduction loop does."""
        extents = self.structure.extents[self.batch.reduce].astype(float)
        inner = np.cumprod(extents[:, ::-1], axis=1)
        staged = self.groups.staged[:, None]
        return np.asarray(((inner % staged == 0) | (staged % inner == 0)).all(axis=1))

    def _divisions(self) -> np.ndarray:
        """Count divisions of a step's number, where stages do not end with a reduction loop."""
        return np.where(self._is_even, 0.0, max(0.0, self.batch.reduce.shape[1] - 1.0))

    def _checks(self, number: int) -> int:
        """Count conditions that a piece of a source is in its tensor."""
        load, extents = self.sources[number].staged.load, self.structure.mapping.operator.extents
        bounds = [index.bounds(extents) for index in load.indices]
        return sum(
            low < 0 or high >= size
            for (low, high), size in zip(bounds, load.tensor.shape, strict=True)
        )

    def _border_share(self, number: int) -> np.ndarray:
        """Return the share of work-items that evaluate conditions: those at a border."""
        load, extents = self.sources[number].staged.load, self.structure.mapping.operator.extents
        loops = [loop.name for loop in self.structure.spatial]
        interior = np.ones(len(self.batch))
        for index, size in zip(load.indices, load.tensor.shape, strict=True):
            low, high = index.bounds(extents)
            along = [loops.index(name) for name in index.names if name in loops]
            if ends := (low < 0) + (high >= size):
                tiles = np.prod(self.structure.extents[along] / self.groups.tile[along].T, axis=1)
                interior *= np.maximum(0.0, 1.0 - ends / tiles) if along else 0.0
        return np.asarray(1.0 - interior)

    def _conditions(self, number: int) -> np.ndarray:
        """Count conditions of a piece; a core evaluates them outside its innermost loop."""
        checks = np.full(len(self.batch), float(self._checks(number)))
        if not (self.unit.serial and self.structure.reduce):
            return checks
        inner = self.structure.extents[self.batch.reduce[:, -1]]
        return np.asarray(checks / np.minimum(inner, self.groups.staged))

    def _piece(self, number: int) -> np.ndarray:
        """Count cycles to move a piece of a source: address, conditions, and the move."""
        unit, divisions = self.unit, self.sources[number].divisions
        wider = self.structure.sources[number].wider
        return np.asarray(unit.copy * wider + unit.guard * (self._conditions(number) + divisions))

    def _staging(self) -> np.ndarray:
        """Count cycles of copies into local memory, and of barriers."""
        groups, unit, total = self.groups, self.unit, np.zeros(len(self.batch))
        for number, source in enumerate(self.sources):
            pieces = groups.fragments(number) * source.pieces
            if unit.serial:
                cycles = self._copy_in_rows(number, pieces)
            else:
                pieces = np.ceil(pieces / groups.items) * groups.items / self.lanes
                cycles = pieces * (self._piece(number) + unit.line * self._lines(number))
            total += groups.local[number] * cycles * self.busiest
        # A single stage has one barrier, before there are accumulators.
        waits = 2 * unit.barrier + (self._save() if unit.save else 0.0)
        waits = np.where(groups.sequence > 1, waits, unit.barrier)
        waits = groups.local.any(axis=0) * self.turns * waits * (groups.items > 1)
        return np.asarray(groups.sequence * (total + waits) * self.cycle)

    def _copy_in_rows(self, number: int, pieces: np.ndarray) -> np.ndarray:
        """Count cycles in which a core copies pieces of a source along its rows in memory.

        Scalars of a row are copied as vectors, unless a step's number has to be divided. Lines
        come from the level that holds what the group reads in all its stages.
        """
        source, unit, groups = self.sources[number], self.unit, self.groups
        share = groups.fragments(number) * source.bytes
        share = share * (groups.sequence if source.reduced else 1.0)
        stride, run = self._row(number)
        lines = np.minimum(np.maximum(stride, source.width) * source.size / _LINE, 1.0)
        line = np.maximum(unit.line, _LINE * self._beyond(share))
        vectors = source.elements == 1 and not source.computed
        width = np.where((stride == 1) & vectors, np.minimum(run, unit.copy_lanes), 1.0)
        moves = self._piece(number) / width + lines * line + unit.row / run
        if not source.reduced:
            return np.asarray(pieces * moves)
        divided = unit.copy + unit.guard * (self._divisions() + self._checks(number))
        return np.asarray(pieces * np.where(self._is_even, moves, divided + lines * line))

    def _row(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return elements between neighbours in a row that a stage copies, and their number.

        A row follows the reduction loop of the stage that moves least in the tensor.
        """
        ones, source = np.ones(len(self.batch)), self.sources[number]
        if not (source.reduced and self.structure.reduce):
            return ones * source.width, ones
        strides, order = self._strides(number), self.batch.reduce - len(self.structure.spatial)
        extents = self.structure.extents[self.batch.reduce].astype(float)
        outer = np.cumprod(extents[:, ::-1], axis=1)[:, ::-1] / extents
        steps = np.clip(self.groups.staged[:, None] / outer, 1.0, extents)
        moved = np.where((steps > 1) & (strides[order] > 0), strides[order], np.inf)
        best, rows = moved.argmin(axis=1), np.arange(len(self.batch))
        stride = moved[rows, best]
        is_row = np.isfinite(stride)
        return np.where(is_row, stride, source.width), np.where(is_row, steps[rows, best], 1.0)

    def _lines(self, number: int) -> np.ndarray:
        """Count cache lines of a piece, some shared by neighbours along the reduction."""
        source, structure = self.sources[number], self.structure
        if not structure.reduce:
            return np.ones(len(self.batch))
        inner = self._inner_strides(number)
        share = np.maximum(inner, source.width) * source.size / _LINE
        return np.where(inner > 0, np.minimum(share, 1.0), 1.0)

    def _local_read(self, source: VectorFragment) -> np.ndarray:
        """Count cycles to read a fragment from local memory, which a core has in its caches."""
        beyond = source.bytes * self._beyond(self.groups.local_bytes)
        return np.asarray(np.maximum(self.unit.read, beyond))

    def _save(self) -> np.ndarray:
        """Count cycles in which a core spills and reloads the accumulators of a work-item."""
        groups, size = self.groups, self.destination.bytes
        saved = groups.items * groups.accumulators * size
        beyond = 2 * size * self._beyond(saved + groups.local_bytes)
        return np.asarray(groups.accumulators * np.maximum(self.unit.save, beyond))

    def _beyond(self, footprint: np.ndarray) -> np.ndarray:
        """Count cycles of a byte that one core reads repeatedly from memory of a footprint."""
        cycles = np.zeros(len(self.batch))
        if not self.unit.serial:
            return cycles
        for inner, level in pairwise(self.machine.levels):
            share = level.read_bandwidth / (1 if level.units > 1 else self.unit.units)
            fits = footprint <= _USABLE * inner.capacity
            cycles = np.where(fits, cycles, 1 / share / self.cycle)
        return cycles

    def _outer(self, result: BatchPrediction) -> list[np.ndarray]:
        """Predict seconds of the outer levels, by the capacity of their inner neighbours."""
        terms, machine, groups = [], self.machine, self.groups
        last = self.structure.destination
        written = last.origin * last.size * self._gaps()
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

    def _gaps(self) -> np.ndarray:
        """Return the factor of the traffic of results whose rows a group fills with gaps.

        A core fetches the lines that it is to write, and those beside them, which another group
        writes later.
        """
        store = self.structure.mapping.operator.output
        row, run = float(store.tensor.shape[-1]), np.ones(len(self.batch))
        names = store.indices[-1].names
        for number, loop in enumerate(self.structure.spatial):
            group = self.destination.nest.groups.get(loop.name.removesuffix(".tile"))
            lanes = 1 if group is None else group.lanes
            members = (loop.name,) if group is None else group.members
            if set(members) & set(names):
                run = run * lanes * self.groups.span[number]
        return np.asarray(np.minimum(2.0, row / np.minimum(run, row)))

    def _crossing(self, capacity: int) -> list[np.ndarray]:
        """Count bytes of each source that all groups bring into memories of a capacity.

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
