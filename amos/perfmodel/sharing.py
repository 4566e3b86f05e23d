"""Lines of the output that cores take from each other.

Hardware fetches lines ahead of a sequence of stores, up to the end of the page. Where
pieces that different cores write lie side by side in one page, each fetches lines that
the other is about to write, and every one of them has to be fetched back.
"""

from __future__ import annotations

import numpy as np

from amos.perfmodel.machine import Machine
from amos.perfmodel.part import Part
from amos.perfmodel.structure import Operand

__all__ = ["exchanges"]

#: Bytes of a page, which hardware does not fetch beyond (Intel 64 and IA-32
#: Architectures Optimization Reference Manual, Data Prefetching).
_PAGE = 4096
#: Pages of sequences that the hardware follows at once (ibid.); where a core writes no
#: more of them, its output stays in its own cache.
_FOLLOWED = 32


def exchanges(operand: Operand, machine: Machine, part: Part, cores: np.ndarray) -> np.ndarray:
    """Seconds that a core waits for lines of the output to come back.

    Args:
        operand: the destination, whose dimensions are in the order of memory.
        machine: its lines, and what fetching one back takes.
        part: the nest of one core.
        cores: how many run.
    """
    own, run = np.ones((2, len(part.steps)))
    whole = np.ones(len(part.steps), dtype=bool)
    for dim in reversed(operand.dims):
        along = part.along(dim)
        length = along if isinstance(along, float) else along[0]
        own = own * length
        run = np.where(whole, run * length, run)
        whole = whole & (length >= dim.extent)
    own, run = own * operand.size, run * operand.size
    share = np.clip(2.0 - run / (_PAGE / 2), 0.0, 1.0)
    # Where the loop that parts them does not go up in the cores, they do not start at the
    # same place of the others, and meet half of the time.
    first = np.where(part.steps.shared, part.steps.outer[: part.steps.spatial], 1.0)
    live = np.take_along_axis(first, np.argmax(first > 1, axis=0)[None], axis=0)[0]
    share = share * np.where(live % cores == 0, 1.0, 0.5)
    share = share * np.clip(own / (_FOLLOWED * _PAGE) - 1.0, 0.0, 1.0)
    seconds: np.ndarray = (cores > 1) * share * own / machine.line * machine.exchange
    return seconds
