"""Sets of assignments that are counted and indexed without being listed.

An assignment gives each software iteration an intrinsic iteration, or -1. Every
set is ordered lexicographically over software iterations in loop order, with
intrinsic iterations in their order and "none" last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

__all__ = ["KEPT", "Assignment", "AssignmentSet", "ProductSet"]

Assignment = tuple[int, ...]

#: Sets of up to this many assignments are kept as a list once they are walked.
KEPT = 2048


class AssignmentSet(Protocol):
    """An ordered set of assignments."""

    @property
    def count(self) -> int:
        """Number of assignments, exact."""
        ...

    def at(self, index: int) -> Assignment:
        """The assignment at ``0 <= index < count``."""
        ...

    def __iter__(self) -> Iterator[Assignment]: ...

    def __contains__(self, assignment: object) -> bool: ...


class ProductSet:
    """Every choice of one option or none per software iteration that fills enough.

    Args:
        options: for each software iteration its intrinsic iterations, ascending.
        rank: the least number of intrinsic iterations to be filled.
    """

    def __init__(self, options: Sequence[Sequence[int]], rank: int) -> None:
        self.options, self.rank = tuple(map(tuple, options)), rank

    @cached_property
    def _tails(self) -> list[dict[int, int]]:
        """For each position and set of filled intrinsic iterations: the completions."""
        levels: list[set[int]] = [{0}]
        for targets in self.options:
            levels.append({mask | bit for mask in levels[-1] for bit in _bits(targets)})
        tails = [{mask: int(mask.bit_count() >= self.rank) for mask in levels[-1]}]
        for targets, level in zip(reversed(self.options), reversed(levels[:-1]), strict=True):
            after = tails[-1]
            tails.append({m: sum(after[m | bit] for bit in _bits(targets)) for m in level})
        return tails[::-1]

    @property
    def count(self) -> int:
        """Number of assignments, exact, by dynamic programming."""
        return self._tails[0][0]

    @cached_property
    def _members(self) -> list[Assignment]:
        return list(self._walk())

    def __iter__(self) -> Iterator[Assignment]:
        return iter(self._members) if self.count <= KEPT else self._walk()

    def at(self, index: int) -> Assignment:
        """The assignment at ``0 <= index < count``, by unranking."""
        chosen, mask = [], 0
        for position, targets in enumerate(self.options):
            after = self._tails[position + 1]
            bits, k = _bits(targets), 0
            while index >= (size := after[mask | bits[k]]):
                index, k = index - size, k + 1
            chosen.append((*targets, -1)[k])
            mask |= bits[k]
        return tuple(chosen)

    def _walk(self) -> Iterator[Assignment]:
        """The assignments in order, without dead ends."""
        tails, end = self._tails, len(self.options)
        steps = [
            tuple(zip((*targets, -1), _bits(targets), strict=True)) for targets in self.options
        ]

        def extend(position: int, mask: int, chosen: Assignment) -> Iterator[Assignment]:
            if position == end:
                yield chosen
                return
            after = tails[position + 1]
            for target, bit in steps[position]:
                if after[mask | bit]:
                    yield from extend(position + 1, mask | bit, (*chosen, target))

        return extend(0, 0, ()) if self.count else iter(())

    def __contains__(self, assignment: object) -> bool:
        if not isinstance(assignment, tuple) or len(assignment) != len(self.options):
            return False
        fits = all(t == -1 or t in o for t, o in zip(assignment, self.options, strict=True))
        return fits and len(set(assignment) - {-1}) >= self.rank


def _bits(targets: Sequence[int]) -> list[int]:
    """What each option fills; the last option, none, fills nothing."""
    return [*(1 << t for t in targets), 0]
