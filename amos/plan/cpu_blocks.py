"""The decisions about kernels for CPUs: arrays with one column a schedule.

A plan is one column of these, which the generator prints; the model reads thousands at once. So no
quantity has a second formula.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import prod

import numpy as np

from amos.intrinsics import Intrinsic, implementations
from amos.ir import dtype
from amos.machine.limits import CpuLimits
from amos.machine.machine import Machine
from amos.plan.cpu_copies import CopyBlocks, divide_width
from amos.plan.cpu_fetches import FetchBlocks
from amos.plan.cpu_forms import CpuForms, SourceForm, cpu_forms
from amos.plan.shared_loops import SharedLoops
from amos.plan.structure import LoopBatch, Structure

#: Most elements that one step of a copy moves where no schedule bounds them.
_WIDTH = 64


def partial_sums(intrinsic: Intrinsic, kind: str = "native") -> int:
    """Count the sums that an implementation of a kind keeps, which are added up in the end."""
    source = implementations(intrinsic.name).get("llvm")
    return source.partial if source is not None and kind == "native" else 1


class CpuBlocks:
    """The kernels of a mapping under many schedules, on CPUs of certain limits.

    Attributes:
        structure, batch: the mapping and the schedules.
        limits: of the CPU.
        implementation: ``"native"``, ``"generic"`` or ``"c"``; see
            :mod:`amos.codegen.tir.tensor_intrin`.
        loops: the loops that are divided among the cores, with their padding.
        tile: spatial loops × schedules: steps of each loop that live in registers.
        block: spatial loops × schedules: register tiles inside the outer loops.
        outer: spatial loops × schedules: steps around blocks and reduction.
    """

    def __init__(
        self,
        structure: Structure,
        limits: CpuLimits,
        batch: LoopBatch,
        implementation: str = "native",
    ) -> None:
        self.structure, self.limits, self.batch = structure, limits, batch
        self.implementation = implementation
        self.loops = SharedLoops.of(structure, batch, batch.split)
        self.tile = batch.tile.T
        self.block = np.ones_like(self.tile) if batch.block is None else batch.block.T
        self.outer = self.loops.extents[: len(structure.spatial)] // batch.span.T

    @staticmethod
    def of(structure: Structure, machine: Machine, batch: LoopBatch) -> CpuBlocks:
        """Describe the kernels on a machine.

        Machines without caches, for which no such kernels are generated, are predicted as if every
        step staged its own copies, and no reduction were divided.
        """
        if not machine.cached:
            limits, batch = CpuLimits(machine.cores, cache=0), replace(batch, split=None)
            return CpuBlocks(structure, limits, batch)
        intrinsic = structure.mapping.intrinsic
        # A structure has the operands of tile registers; loops that emulate these have others.
        generic = machine.peak(intrinsic.name).generic and not intrinsic.tile_registers
        kind = "generic" if generic else "native"
        return CpuBlocks(structure, CpuLimits.of(machine), batch, kind)

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def tiled(self) -> bool:
        """Whether accumulators live in registers that the generator numbers itself."""
        return self.implementation == "native" and self.structure.mapping.intrinsic.tile_registers

    @cached_property
    def forms(self) -> CpuForms:
        """The operands as the kernels read and write them."""
        return cpu_forms(self.structure, self.tiled)

    @property
    def partial(self) -> int:
        """Parts of each sum that the implementation keeps in its lanes."""
        return partial_sums(self.structure.mapping.intrinsic, self.implementation)

    @cached_property
    def splits(self) -> np.ndarray:
        """Whether the outermost reduction is divided: bool, schedules."""
        split = self.batch.split
        return np.zeros(len(self), dtype=bool) if split is None else split > 1

    @cached_property
    def has_outer_loops(self) -> np.ndarray:
        """Whether there is a loop to place copies in: bool, schedules."""
        return np.asarray((self.outer > 1).any(axis=0) | self.splits)

    @cached_property
    def ranges(self) -> np.ndarray:
        """Ranges of consecutive fused steps, equal in length, each of which is run by one core.

        TVM allocates the buffers of a parallel loop's body anew in every step, which costs as much
        as a small tile. So there are only as many ranges as keep the cores evenly busy.
        """
        return self.loops.ranges(self.limits.cores)

    @cached_property
    def share(self) -> np.ndarray:
        """Fused steps of one range: schedules."""
        return np.asarray(self.loops.steps // self.ranges)

    @cached_property
    def unrolled(self) -> np.ndarray:
        """Steps of the innermost reduction that are unrolled into one: schedules."""
        if not self.structure.reduce:
            return np.ones(len(self), dtype=np.int64)
        innermost = self.structure.extents[self.batch.reduce[:, -1]]
        return np.where(innermost % self.batch.unroll == 0, self.batch.unroll, 1)

    @cached_property
    def reduce_steps(self) -> np.ndarray:
        """Steps that stay loops: reductions in the order of the nest × schedules, of one part."""
        order = self.batch.reduce.T
        steps = np.take_along_axis(self.loops.extents, order, axis=0)
        if len(steps):
            steps[-1] //= self.unrolled
        return steps

    @cached_property
    def cuts_tiles(self) -> np.ndarray:
        """Whether tiles at the end of a loop have code of their own: bool, schedules.

        They do where results go straight to the output. Tile registers are computed whole, and
        cropped when they are stored; so are sums of parts, which are added up after all tiles.
        """
        return np.asarray(~self.splits & (self.forms.stores_tiles and not self.tiled))

    @cached_property
    def run_tiles(self) -> np.ndarray:
        """Register tiles along each loop that run: spatial loops × schedules.

        Whole tiles beyond the end of a loop do not run where cut ones have code of their own.
        """
        extents = self.structure.extents[: len(self.tile), None]
        cut: np.ndarray = -(-extents // self.tile)
        return np.where(self.cuts_tiles, cut, self.outer * self.block)

    @cached_property
    def run_steps(self) -> np.ndarray:
        """Steps along each loop that run: spatial loops × schedules."""
        extents = self.structure.extents[: len(self.tile), None]
        return np.where(self.cuts_tiles, extents, self.loops.extents[: len(self.tile)])

    @cached_property
    def skips(self) -> np.ndarray:
        """Where steps that read only padding are skipped: borders of the structure × schedules.

        The position of a reduction loop whose body is skipped in such steps, or -1. Only loops are
        skipped, never single calls: a branch there would cost more than it saves.
        """
        structure, order = self.structure, self.batch.reduce.T
        skips = np.full((len(structure.borders), len(self)), -1)
        if self.tiled or not len(skips):
            return skips
        number = np.arange(len(order))[:, None]
        # A loop of one step moves nothing.
        long = np.take_along_axis(self.loops.extents, order, axis=0) > 1
        rolled = np.where(self.reduce_steps > 1, number, -1).max(axis=0, initial=-1)
        for skip, border in zip(skips, structure.borders, strict=True):
            moves = np.zeros(len(structure.extents), dtype=bool)
            moves[list(border.reduce)] = True
            skip[:] = np.where(moves[order] & long, number, -1).max(axis=0, initial=-1)
            single = (self.tile[list(border.spatial)] == 1).all(axis=0)
            skip[~single | (rolled <= skip)] = -1
        return skips

    @cached_property
    def copy_width(self) -> np.ndarray:
        """Elements that one step of a copy may move: schedules."""
        width = self.batch.copy_width
        return np.full(len(self), _WIDTH) if width is None else width

    @cached_property
    def copies_vectors(self) -> np.ndarray:
        """Whether sources are copied in whole vectors where they can be: bool, schedules."""
        vectors = self.batch.vectors
        return np.zeros(len(self), dtype=bool) if vectors is None else vectors

    @cached_property
    def copies(self) -> dict[str, CopyBlocks]:
        """The copies of gathered sources, by the intrinsic's names."""
        ahead = dict(zip(self.structure.choices, self.batch.ahead.T, strict=True))
        whole = np.ones(len(self), dtype=bool)
        return {
            (name := source.staged.name): CopyBlocks(
                self, source, ahead.get(name, whole), self._is_copied(source)
            )
            for source in self.forms.sources
            if source.gathered
        }

    def _is_copied(self, source: SourceForm) -> np.ndarray:
        """Return whether schedules copy a source: bool, schedules."""
        if not source.optional:
            return np.ones(len(self), dtype=bool)
        copied, names = self.batch.copied, self.structure.choices
        if copied is None or source.staged.name not in names:
            return np.zeros(len(self), dtype=bool)
        return np.asarray(copied[:, names.index(source.staged.name)])

    @cached_property
    def workspace_bytes(self) -> np.ndarray:
        """Bytes of all copies and staged results at one time, on all cores: schedules."""
        total = np.zeros(len(self))
        for copy in self.copies.values():
            count = np.where(copy.ahead, 1, np.minimum(self.ranges, self.limits.cores))
            size = copy.elements * copy.source.size_bits // 8 + copy.spread_bytes
            total += np.where(copy.is_made, size * count, 0)
        out = self.forms.destination
        loops = self.loops.extents[: len(self.structure.spatial)].prod(axis=0, dtype=float)
        lanes = prod(out.shape[len(out.shape) - len(out.fragment) :])
        staged = loops * lanes * (dtype(out.kind).bits // 8) * self.loops.parts
        return total + np.where(self.splits | self.forms.moves_output, staged, 0)

    @cached_property
    def output_width(self) -> np.ndarray:
        """Elements that one step of moving accumulators to the output writes: schedules."""
        shape = self.forms.stored_shape
        last = shape[-1] if len(shape) > 1 else 1
        return divide_width(self.copy_width, np.full(len(self), last))

    @cached_property
    def output_steps(self) -> np.ndarray:
        """Parallel steps of moving accumulators to the output; 1 of sums of parts."""
        outer = prod(self.forms.stored_shape[:-1]) if self.forms.moves_output else 1
        return np.where(self.splits, 1, outer)

    @cached_property
    def fetches(self) -> FetchBlocks:
        """Packed sources that are fetched ahead."""
        return FetchBlocks(self)

    @property
    def accumulators(self) -> np.ndarray:
        """Fragments of the destination that a register tile holds: schedules."""
        return np.asarray(self.tile.prod(axis=0))

    @cached_property
    def resident_source(self) -> np.ndarray:
        """Number of the source whose fragments stay in registers for a whole step: schedules.

        It has the fewest; those of another one are loaded in turn.
        """
        fragments = [self.batch.fragments(op) for op in self.structure.sources]
        return np.asarray(np.argmin(fragments, axis=0))

    @cached_property
    def registers(self) -> np.ndarray:
        """Fragments that one step of the reduction holds in registers: schedules."""
        return self.batch.live_fragments(self.structure)
