"""Where a tensor is contiguous along the sides of a fragment, and how wide a copy may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amos.ir import BufferLoad
from amos.plan.nest import Group, Nest

__all__ = ["NOWHERE", "Runs"]

#: Stride of a side that the tensor does not have.
NOWHERE = 1 << 62


@dataclass(frozen=True)
class Runs:
    """An access of the operator, seen along the sides of the fragment that it fills.

    Attributes:
        load: the operator's access.
        nest: the loops of the mapping.
        fragment: intrinsic iterations of the fragment, in the operand's order.
    """

    load: BufferLoad
    nest: Nest
    fragment: tuple[str, ...]

    def contiguous(self, most: int) -> tuple[str, int]:
        """The side along the columns in shared memory, and elements that one copy moves.

        Where no side can be copied in wider pieces than one element, the columns are
        those with the smaller stride in the tensor, so that the threads of a warp
        read neighbours.

        Args:
            most: elements that one copy moves at most.
        """
        runs = {t: self.run(self.nest.groups[t], most) for t in self.fragment}
        strides = {t: self.stride(self.nest.groups[t]) for t in self.fragment}
        best = min(reversed(self.fragment), key=lambda t: (-runs[t], strides[t]))
        return best, runs[best]

    def stride(self, group: Group) -> int:
        """Elements of the tensor between neighbours along a side; NOWHERE for a replica."""
        live = [m for m in group.members if m in self.load.names]
        if not live or live[-1] != group.members[-1]:
            return NOWHERE
        return abs(self.load.flat.coefficient(live[-1]))

    def length(self, group: Group) -> int:
        """Elements along a side that lie side by side in the tensor."""
        return self._contiguous(group)[1]

    def run(self, group: Group, most: int) -> int:
        """Elements that may be moved as one: contiguous, aligned, all inside or all outside.

        Args:
            group: the side.
            most: where the search for the largest power of two begins.
        """
        names, length = self._contiguous(group)
        vector = most
        while vector > 1 and not self._aligned(group, names, length, vector):
            vector //= 2
        return max(1, vector)

    def _contiguous(self, group: Group) -> tuple[list[str], int]:
        names, length = [], 1
        for name, radix in zip(reversed(group.members), reversed(group.radices), strict=True):
            if radix > 1 and self.load.flat.coefficient(name) != length:
                break
            names.append(name)
            length *= radix
        return names, length

    def _aligned(self, group: Group, run: Sequence[str], length: int, vector: int) -> bool:
        """Whether every copy of so many elements is aligned, and in one piece."""
        if length % vector or group.lanes % vector:
            return False
        flat = self.load.flat
        others = [step for name, step in flat.terms if name not in run]
        if flat.constant % vector or any(step % vector for step in others):
            return False
        extents = self.nest.mapping.operator.extents
        inner = next((name for name in run if extents[name] > 1), "")
        whole = extents.get(inner, 1) % vector == 0
        for index, size in zip(self.load.indices, self.load.tensor.shape, strict=True):
            low, high = index.bounds(extents)
            if (low >= 0 and high < size) or not set(run) & set(index.names):
                continue
            # Reads beyond the tensor: the edge must not fall inside a copy.
            rest = [c for name, c in index.terms if name != inner]
            even = not any(c % vector for c in (*rest, index.constant, size))
            if not whole or (inner in index.names and not even):
                return False
        return True
