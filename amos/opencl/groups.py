"""Work-groups: their number, what each stages, and the registers of a work-item."""

from __future__ import annotations

from functools import cached_property
from math import prod

import numpy as np

from amos.machine.machine import Machine
from amos.opencl.schedule import OpenClBatch
from amos.plan.fragment import Fragment
from amos.plan.groups import Groups
from amos.plan.nest import Group, Nest
from amos.plan.staging import staged_destination, staged_sources
from amos.plan.structure import LoopBatch, Structure

#: Elements that vectors of OpenCL C have; one of three takes the place of four.
VECTORS = (1, 2, 4, 8, 16)


class VectorFragment(Fragment):
    """A fragment that a work-item holds as one vector."""

    @property
    def elements(self) -> int:
        """Elements of the vector."""
        return prod(self.nest.groups[target].lanes for target in self.staged.fragment)

    @property
    def bytes(self) -> int:
        """Bytes of the vector."""
        return self.elements * self.bits // 8

    @cached_property
    def width(self) -> int:
        """Elements that are moved as one between the tensor and the vector."""
        if not self.staged.fragment or self.computed:
            return 1
        group = self.nest.groups[self.staged.fragment[-1]]
        if not set(group.members) & self.staged.load.names:
            return 1
        return group.lanes if self.is_cut else self.run(group, self._most(group), aligned=False)

    @cached_property
    def is_cut(self) -> bool:
        """Whether only a vector at the end of the last side has fewer elements than others."""
        if not self.staged.fragment or self.computed:
            return False
        group, load = self.nest.groups[self.staged.fragment[-1]], self.staged.load
        if self._most(group) != group.lanes or not group.is_padded or group.size < group.lanes:
            return False
        extents = self.nest.mapping.operator.extents
        bounds = [
            (index.bounds(extents), size)
            for index, size in zip(load.indices, load.tensor.shape, strict=True)
            if set(group.members) & set(index.names)
        ]
        is_inside = all(low >= 0 and high < size for (low, high), size in bounds)
        return bool(bounds) and is_inside and self.length(group) == group.size

    def _most(self, group: Group) -> int:
        return min(group.lanes, max(VECTORS))

    @property
    def pieces(self) -> int:
        """Moves of one fragment."""
        return self.elements // self.width


def fragments(nest: Nest) -> tuple[VectorFragment, ...]:
    """Return fragments of the sources in the intrinsic's order, then of the destination."""
    return tuple(map(VectorFragment, (*staged_sources(nest), staged_destination(nest))))


def fragments_of(structure: Structure) -> tuple[VectorFragment, ...]:
    """Return fragments of a mapping, which are derived once."""
    return structure.derive(fragments)


def is_serial(machine: Machine) -> bool:
    """Return whether a core computes a group's work-items one after another, as CPUs do."""
    return machine.opencl is not None and machine.opencl.serial


def register_sizes(structure: Structure, machine: Machine) -> list[int]:
    """Return the register bytes of a fragment of each operand.

    A core replicates a scalar to a vector before it multiplies.
    """
    sizes = [fragment.bytes for fragment in fragments_of(structure)]
    return [max(size, sizes[-1]) for size in sizes] if is_serial(machine) else sizes


class WorkGroups(Groups):
    """The work-groups of each schedule; arrays with one column a schedule."""

    def __init__(self, structure: Structure, loops: LoopBatch, machine: Machine) -> None:
        batch, own = OpenClBatch.of(loops), fragments_of(structure)
        ones = np.ones(len(batch))
        steps = ones if batch.steps is None else batch.steps
        sizes = register_sizes(structure, machine)
        super().__init__(structure, batch, batch.items, steps, own, sizes)
        direct = np.zeros((len(own) - 1, len(batch)), dtype=np.bool_)
        self.local = direct if batch.local is None else batch.local.T

    @property
    def items(self) -> np.ndarray:
        """Work-items of a group."""
        return np.asarray(self.workers)

    @cached_property
    def grid(self) -> np.ndarray:
        """Groups of the launch."""
        return np.asarray(self.blocks.prod(axis=0))

    @cached_property
    def local_bytes(self) -> np.ndarray:
        """Local memory of a group."""
        sizes = [x.bytes for x in fragments_of(self.structure)[:-1]]
        staged = [self.fragments(n) * size * self.local[n] for n, size in enumerate(sizes)]
        return np.asarray(np.sum(staged, axis=0))

    @property
    def register_bytes(self) -> np.ndarray:
        """Registers of a work-item."""
        return self.footprint
