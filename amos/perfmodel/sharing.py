"""Lines of the output that cores take from each other.

Hardware fetches a few lines ahead of a sequence of stores. Where short pieces that
different cores write lie side by side, each fetches lines that the other is about to
write, and every one of them has to be fetched back. In longer pieces that happens at the
end only, where the next one begins.
"""

from __future__ import annotations

import numpy as np

from amos.perfmodel.machine import Machine
from amos.perfmodel.part import Part
from amos.perfmodel.structure import Operand

__all__ = ["beside", "exchanges"]

#: Bytes that are fetched ahead of what a register tile writes side by side: pieces of
#: 512 bytes have hardly been seen to cost anything in kernels.
_AHEAD = 256
#: Share of the lines that are fetched ahead where each is written by itself, and the next
#: one lies farther on than that; fitted.
_SINGLE = 0.5
#: Bytes of a page, and pages of sequences that the hardware follows at once (Intel 64 and
#: IA-32 Architectures Optimization Reference Manual, Data Prefetching); where a core
#: writes no more of them, its output stays in its own cache.
_PAGE, _FOLLOWED = 4096, 32

#: Fragments of the output that a register tile writes while all else goes on; fitted. By
#: themselves, tiles of up to four lines took no longer than their lines or their calls.
_FEW = 7


def exchanges(operand: Operand, machine: Machine, part: Part, cores: np.ndarray) -> np.ndarray:
    """Seconds until the lines of a core have come back, whatever it does meanwhile.

    Args:
        operand: the destination, whose dimensions are in the order of memory.
        machine: its lines, and what fetching one back takes.
        part: the nest of one core.
        cores: how many run.
    """
    if not part.steps.spatial:
        return np.zeros(len(part.steps))
    own, run, tile, pitch = np.ones((4, len(part.steps))) * operand.size
    whole, filled = np.ones((2, len(part.steps)), dtype=bool)
    for dim in reversed(operand.dims):
        along = np.broadcast_to(part.along(dim), (part.count + 1, len(part.steps)))
        first, last = along[0], along[-1]
        own = own * first
        run, pitch = np.where(whole, run * first, run), np.where(whole, pitch * dim.extent, pitch)
        tile = np.where(filled, tile * last, tile)
        whole, filled = whole & (first >= dim.extent), filled & (last >= dim.extent)
    share = np.minimum(1.0, _AHEAD / run)
    # Single lines far apart are no sequence to everything that looks for one.
    share = share * np.where((tile > machine.line) | (pitch <= _AHEAD), 1.0, _SINGLE)
    # Where the loop that parts them does not go up in the cores, they do not start at the
    # same place of the others, and meet half of the time.
    first = np.where(part.steps.shared, part.steps.outer[: part.steps.spatial], 1.0)
    live = np.take_along_axis(first, np.argmax(first > 1, axis=0)[None], axis=0)[0]
    share = share * np.where(live % cores == 0, 1.0, 0.5)
    share = share * np.clip(own / (_FOLLOWED * _PAGE) - 1.0, 0.0, 1.0)
    seconds: np.ndarray = (cores > 1) * share * own / machine.line * machine.exchange
    return seconds


def beside(bound: np.ndarray, exchange: np.ndarray, fragments: np.ndarray) -> np.ndarray:
    """Seconds of a kernel whose lines have to come back while it does the rest.

    A few stores wait in the buffers of a core until their lines are there, and the calls of
    the next tiles go on. Of longer rows of stores only part passes behind the rest.

    Args:
        bound: seconds of the rest.
        exchange: those of :func:`exchanges`.
        fragments: how many of the output a register tile writes.
    """
    few = fragments <= _FEW
    return np.asarray(np.where(few, np.maximum(bound, exchange), np.hypot(bound, exchange)))
