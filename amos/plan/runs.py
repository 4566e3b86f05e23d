"""Where a tensor is contiguous along the sides of a fragment, and how wide a copy may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

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
        return (
            abs(self.flat.get(live[-1], 0)) if live and live[-1] == group.members[-1] else NOWHERE
        )

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

    @cached_property
    def flat(self) -> dict[str, int]:
        """Elements of the tensor that one step of each iteration moves."""
        flat: dict[str, int] = {}
        for index, step in zip(self.load.indices, _steps(self.load.tensor.shape), strict=True):
            for name, c in index.terms:
                flat[name] = flat.get(name, 0) + c * step
        return flat

    def _contiguous(self, group: Group) -> tuple[list[str], int]:
        names, length = [], 1
        for name, radix in zip(reversed(group.members), reversed(group.radices), strict=True):
            if radix > 1 and self.flat.get(name, 0) != length:
                break
            names.append(name)
            length *= radix
        return names, length

    def _aligned(self, group: Group, run: Sequence[str], length: int, vector: int) -> bool:
        """Whether every copy of so many elements is aligned, and in one piece."""
        if length % vector or group.lanes % vector:
            return False
        sizes = self.load.tensor.shape
        constant = sum(
            i.constant * s for i, s in zip(self.load.indices, _steps(sizes), strict=True)
        )
        others = [step for name, step in self.flat.items() if name not in run]
        if constant % vector or any(step % vector for step in others):
            return False
        extents = self.nest.mapping.operator.extents
        inner = next((name for name in run if extents[name] > 1), "")
        whole = extents.get(inner, 1) % vector == 0
        for index, size in zip(self.load.indices, sizes, strict=True):
            low, high = index.bounds(extents)
            if (low >= 0 and high < size) or not set(run) & set(index.names):
                continue
            # Reads beyond the tensor: the edge must not fall inside a copy.
            rest = [c for name, c in index.terms if name != inner]
            even = not any(c % vector for c in (*rest, index.constant, size))
            if not whole or (inner in index.names and not even):
                return False
        return True


def _steps(shape: Sequence[int]) -> list[int]:
    """Elements between neighbours along each dimension of a row-major tensor."""
    return [prod(shape[d + 1 :]) for d in range(len(shape))]
