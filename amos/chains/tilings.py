"""Which tilings of a chain are searched."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from itertools import product

from amos.chains.loops import LANES
from amos.chains.model import temporary_bytes
from amos.chains.tiling import Tiling
from amos.errors import ExploreError, ScheduleError
from amos.ir import Chain
from amos.ir.transforms import unrolled_loops
from amos.machine import Machine

#: Share of the cache near a core that temporaries may take.
_SHARE = 0.75


def tilings_of(
    chain: Chain, machine: Machine, fixed: dict[str, int]
) -> tuple[list[Tiling], tuple[str, ...]]:
    """List the tilings of a chain that fit a machine, and why others do not.

    Raises:
        ExploreError: none does.
        ScheduleError: what is fixed changes the result.
    """
    result = _result_loops(chain)
    near = machine.private_cache
    rolling_loops = _rolling_loops(chain, result)
    choices = [
        [fixed[n]] if n in fixed else _sizes(chain, n, _count_halo(rolling_loops.get(n)))
        for n in result
    ]
    cuts = [n for n in _list_reduced(chain) if n not in result]
    cut_choices: list[dict[str, int]] = [{}] if not fixed.keys() - set(result) else []
    for name in cuts:
        sizes = [fixed[name]] if name in fixed else _parts(chain.extents[name])
        cut_choices += [{name: size} for size in sizes]
    if unknown := fixed.keys() - {*result, *cuts}:
        Tiling.of(chain, {name: fixed[name] for name in unknown})
    tilings, refused, least = list[Tiling](), dict[str, None](), math.inf
    for cut in cut_choices:
        for chosen in product(*choices):
            tiles = {n: s for n, s in zip(result, chosen, strict=True) if s < chain.extents[n]}
            attempts = ("", *(n for n in rolling_loops if n in tiles and not cut))
            reasons = list[str]()
            for rolling in attempts:
                try:
                    tiling = Tiling.of(chain, tiles | cut, rolling)
                    size = temporary_bytes(tiling)
                except ScheduleError as error:
                    reasons.append(str(error))
                    continue
                least = min(least, size)
                if rolling and not _suits_rolling(tiling, rolling_loops[rolling], near, fixed):
                    continue
                if not near or size <= _SHARE * near or fixed.keys() >= {*result}:
                    tilings.append(tiling)
            if len(reasons) == len(attempts):
                refused[reasons[-1]] = None
    if not tilings and math.isinf(least):
        raise ScheduleError(next(iter(refused)))
    if not tilings:
        largest = max(chain.temporaries, key=lambda tensor: tensor.nbytes)
        why = f"; {next(iter(refused))}" if refused else ""
        raise ExploreError(
            f"{chain.statement_of(largest.name).text!r}: temporaries take at least {least:,.0f} "
            f"bytes of a core, of {near:,} near it, {largest.name!r} most{why}"
        )
    return tilings, tuple(refused)


def _result_loops(chain: Chain) -> list[str]:
    """List the iterations of the result, those that move more inputs further out.

    What does not move while an inner loop does is read, or packed, once.
    """
    names = [n for index in chain.steps[-1].output.indices for n in index.names]
    names = [n for n in names if chain.extents[n] > 1 and n not in unrolled_loops(chain)]

    def count_moved(name: str) -> int:
        try:
            boxes = Tiling.of(chain, {name: 1}).boxes
        except ScheduleError:  # it stays whole
            return len(chain.inputs)
        boxes = {tensor.name: boxes.get(tensor.name, ()) for tensor in chain.inputs}
        return sum(any(name in place.start.names for place in box) for box in boxes.values())

    return sorted(names, key=count_moved, reverse=True)


def _rolling_loops(chain: Chain, loops: Sequence[str]) -> dict[str, Tiling]:
    """Return the loops along which tiles can keep rows, with the smallest tiles of whole rows."""
    rolling, tiles = dict[str, Tiling](), dict[str, int]()
    for name in (n for index in chain.steps[-1].output.indices for n in index.names if n in loops):
        tiles[name] = 1  # dimensions before that of rows are one
        with contextlib.suppress(ScheduleError):
            rolling[name] = Tiling.of(chain, tiles, name)
    return rolling


def _count_halo(tiling: Tiling | None) -> int:
    """Count the rows that tiles keep at the most."""
    return max((rows.halo for rows in tiling.layout.rolling.values()), default=0) if tiling else 0


def _suits_rolling(tiling: Tiling, smallest: Tiling, near: int, fixed: Mapping[str, int]) -> bool:
    """Return whether a rolling tiling can pay.

    Rows are computed several together, so that they share what they read. Whole ones that have
    room are faster than parts of them, of which each tile has all rows elsewhere in memory.
    """
    rolling = tiling.layout.rolling.values()
    if any(x.padding is None and x.unit < min(x.halo, x.fresh) for x in rolling):
        return False
    fits = not near or temporary_bytes(smallest) <= _SHARE * near
    cut = {loop.name for loop in tiling.loops} - {loop.name for loop in smallest.loops}
    return not fits or not cut - fixed.keys()


def _sizes(chain: Chain, loop: str, halo: int) -> list[int]:
    """List tiles of a shared loop: each about twice the one before, and the whole.

    The last tile begins earlier where tiles do not divide their loop, so each is as small as their
    number allows, in whole units. Tiles that roll are 1, 2, 4 … times the rows that they keep.
    """
    extent = chain.extents[loop]
    is_last = any(loop in index.names for index in chain.steps[-1].output.indices[-1:])
    unit = LANES if is_last else 1
    powers = [1 << n for n in range(extent.bit_length()) if 1 << n < extent]
    counts = [-(-extent // n) for n in powers if n == 1 or n >= 8]
    sizes = {1} | {-(-extent // (count * unit)) * unit for count in counts}
    sizes |= {halo * n for n in powers if halo * n < extent}
    return sorted(n for n in sizes if 0 < n < extent) + [extent]


def _parts(extent: int) -> list[int]:
    """List parts of a row, which divide it."""
    return [n for n in range(16, extent) if extent % n == 0 and n & (n - 1) == 0 or 2 * n == extent]


def _list_reduced(chain: Chain) -> list[str]:
    reduced = {it.name for step in chain.steps for it in step.reduce}
    spatial = {it.name for step in chain.steps[:-1] for it in step.spatial}
    return [name for name in chain.extents if name in reduced & spatial]
