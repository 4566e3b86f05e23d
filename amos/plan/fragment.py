"""One fragment of an operand in the tensor that it is copied from: runs, strides, loops.

Kernels of parallel devices gather fragments while they copy them, whatever the mapping fused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from amos.ir import dtype
from amos.plan.nest import Group, Nest
from amos.plan.staging import StagedOperand

#: Stride of a side that the tensor lacks.
NOWHERE = 1 << 62


@dataclass(frozen=True)
class Fragment:
    """One fragment of a staged operand."""

    staged: StagedOperand

    @property
    def dtype(self) -> str:
        """Canonical type of an element."""
        return self.staged.tensor_kind

    @property
    def computed(self) -> bool:
        """Whether its elements are computed, and not copied."""
        return self.staged.prologue is not None

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return dtype(self.dtype).bits

    @property
    def nest(self) -> Nest:
        """The loops of the mapping."""
        return self.staged.nest

    @property
    def size(self) -> float:
        """Bytes of one element."""
        return self.bits / 8

    def stride(self, group: Group) -> int:
        """Count the tensor's elements between neighbours along a side; NOWHERE for a replica."""
        live = [m for m in group.members if m in self.staged.load.names]
        if not live or live[-1] != group.members[-1]:
            return NOWHERE
        return abs(self.staged.load.flat.coefficient(live[-1]))

    def length(self, group: Group) -> int:
        """Count the elements along a side that are contiguous in the tensor."""
        return self._contiguous(group)[1]

    def run(self, group: Group, most: int, *, aligned: bool = True) -> int:
        """Count the elements that may be moved as one: contiguous, all inside or all outside.

        Args:
            most: where the search for the largest power of two begins.
            aligned: whether they must begin at a multiple of their size.
        """
        names, length = self._contiguous(group)
        vector = most
        while vector > 1 and not (
            self._is_contiguous(group, names, length, vector)
            and (not aligned or self._is_aligned(names, vector))
        ):
            vector //= 2
        return max(1, vector)

    def _contiguous(self, group: Group) -> tuple[list[str], int]:
        names, length = [], 1
        for name, radix in zip(reversed(group.members), reversed(group.radices), strict=True):
            if radix > 1 and self.staged.load.flat.coefficient(name) != length:
                break
            names.append(name)
            length *= radix
        return names, length

    def _is_aligned(self, run: Sequence[str], vector: int) -> bool:
        """Return whether every copy of ``vector`` elements begins at a multiple of them."""
        flat = self.staged.load.flat
        outer_steps = [step for name, step in flat.terms if name not in run]
        return not (flat.constant % vector or any(step % vector for step in outer_steps))

    def _is_contiguous(self, group: Group, run: Sequence[str], length: int, vector: int) -> bool:
        """Return whether every copy of ``vector`` elements is in one piece."""
        if length % vector or group.lanes % vector:
            return False
        if self.computed and self.staged.load.tensor.shape[-1] % vector:
            return False  # Its elements differ in the last index alone.
        load = self.staged.load
        extents = self.nest.mapping.operator.extents
        inner = next((name for name in run if extents[name] > 1), "")
        whole = extents.get(inner, 1) % vector == 0
        for index, size in zip(load.indices, load.tensor.shape, strict=True):
            low, high = index.bounds(extents)
            if (low >= 0 and high < size) or not set(run) & set(index.names):
                continue
            # Reads beyond the tensor: the edge must not fall inside a copy.
            coefficients = [c for name, c in index.terms if name != inner]
            even = not any(c % vector for c in (*coefficients, index.constant, size))
            if not whole or (inner in index.names and not even):
                return False
        return True

    @cached_property
    def divisions(self) -> int:
        """Divisions that a copy takes to find its place among the loops fused into each side."""
        names = self.staged.load.names
        sides = [self.nest.groups[target] for target in self.staged.fragment]
        return sum(max(0, len(names.intersection(side.members)) - 1) for side in sides)

    @cached_property
    def loops(self) -> tuple[str, ...]:
        """Spatial loops with more than one step that move along the operand, in their order."""
        return tuple(
            x.name for x in self.nest.spatial if x.extent > 1 and x.name in self.staged.names
        )

    @cached_property
    def reduced(self) -> bool:
        """Whether a reduction loop with more than one step moves along the operand."""
        return any(x.extent > 1 and x.name in self.staged.names for x in self.nest.reduce)
