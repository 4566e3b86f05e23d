"""On-chip accesses of instructions, and a check that their order is fixed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping as MappingType

import numpy as np

from amos.errors import StreamError
from amos.streams.codegen.instructions import QUEUES


class Accesses:
    """The fragments that instructions read and write, by buffer, in the order of their start.

    Two accesses to one fragment of which one writes, and neither of which happens before the
    other, are a hazard, whether or not this run would have met it.

    Args:
        depths: fragments of each buffer.
    """

    def __init__(self, depths: MappingType[str, int]) -> None:
        self._depths = depths
        self._rows = defaultdict[str, list[np.ndarray]](list)
        #: By buffer, of each access: the instruction, its fragments, whether it writes.
        self._accesses = defaultdict[str, list[tuple[np.ndarray, np.ndarray, bool]]](list)

    def add(
        self, name: str, rows: np.ndarray, numbers: np.ndarray, counts: np.ndarray, writes: bool
    ) -> None:
        """Add accesses of instructions to rows of a buffer, ``counts`` rows each."""
        # Numbers of 16 bits are sorted many times as fast.
        self._rows[name].append(
            rows.astype(np.uint16 if self._depths[name] < 1 << 16 else np.int64)
        )
        self._accesses[name].append((numbers, counts, writes))

    def check(self, queues: np.ndarray, before: np.ndarray) -> None:
        """Refuse hazards, and reads of fragments that were not written.

        Args:
            queues: of each instruction.
            before: see :attr:`amos.streams.runtime.queues.Timeline.before`.

        Raises:
            StreamError: there are such.
        """
        for name, rows in self._rows.items():
            numbers = np.concatenate(
                [np.repeat(n, counts) for n, counts, _ in self._accesses[name]]
            )
            writes = np.repeat(
                [writes for _, _, writes in self._accesses[name]], [len(piece) for piece in rows]
            )
            all_rows = np.concatenate(rows)
            by_row = np.argsort(all_rows, kind="stable")
            _check(name, all_rows[by_row], numbers[by_row], writes[by_row], queues, before)


def _check(
    name: str,
    rows: np.ndarray,
    numbers: np.ndarray,
    writes: np.ndarray,
    queues: np.ndarray,
    before: np.ndarray,
) -> None:
    """Check the accesses of one buffer, row by row."""
    places, own = np.arange(len(rows)), queues[numbers]
    start = np.ones(len(rows), bool)
    start[1:] = rows[1:] != rows[:-1]
    if (start & ~writes).any():
        number = numbers[start & ~writes].min()
        raise StreamError(
            f"{_where(number, queues)}: reads fragments of {name} before they are written"
        )
    start = np.maximum.accumulate(np.where(start, places, 0))
    for queue in np.unique(own):
        # Reads do not disturb each other.
        for kind, meets, what in ((writes, own != queue, "written"), (~writes, writes, "used")):
            last = np.maximum.accumulate(np.where(kind & (own == queue), places, -1))
            at = np.flatnonzero((last >= start) & meets & (own != queue))
            late = numbers[last[at]] > before[numbers[at], queue]
            if late.any():
                n = at[np.argmax(late)]
                raise StreamError(
                    f"{_where(numbers[n], queues)}: hazard: fragments of {name} are {what} by "
                    f"instruction {numbers[last[n]]} of {QUEUES[queue]}, and no token says which "
                    "comes first"
                )


def _where(number: int, queues: np.ndarray) -> str:
    return f"instruction {number} of {QUEUES[queues[number]]}"
