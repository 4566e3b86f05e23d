"""A tiled chain in NumPy, tile by tile: the executable meaning of a tiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from amos.chains.boxes import Box, offset_box
from amos.chains.tiling import SharedLoop, TiledStep, Tiling
from amos.ir import dtype
from amos.ir.chain import result_of
from amos.ir.transforms import Transform
from amos.validate.buffers import check_inputs
from amos.validate.chain import run_step


def simulate_tiling(tiling: Tiling, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute a chain as its kernels do: tile by tile, and rows part by part.

    Each step sees nothing but the box of each tensor that a tile has. Steps that do not depend on
    an inner loop are computed when an outer one moves.

    Args:
        inputs: an array for each input tensor, by name.

    Returns:
        array of the result's shape and dtype; floats equal those of :func:`amos.validate.evaluate`
        but for the order of sums and products.

    Raises:
        OperatorError: an input is missing, or its shape or dtype is another.
    """
    arrays = check_inputs(tiling.chain, inputs)
    result = tiling.chain.result
    out = np.zeros(result.shape, dtype(str(result.dtype)).numpy)
    tile: dict[str, np.ndarray] = {}
    earlier: tuple[int, ...] = ()
    for numbers in product(*(range(loop.count) for loop in tiling.loops)):
        at = {loop.name: _origin(loop, n) for loop, n in zip(tiling.loops, numbers, strict=True)}
        same = _same(earlier, numbers)
        due = [step for step in tiling.steps if step.depth > same or not earlier]
        is_first = not tiling.rolls or not earlier or is_first_tile(tiling.loops[-1], numbers[-1])
        if not is_first:
            _move_rows(tiling, tile)
        earlier = numbers
        for phase in ("before", "body", "after"):
            steps = [step for step in due if step.phase == phase]
            cut = tiling.cut
            parts = range(0, cut.extent, cut.tile) if cut and phase == "body" else [0]
            for offset in parts:
                here = at | ({cut.name: offset} if cut else {})
                _run(tiling, steps, here, arrays, tile, is_first)
        own, slices = tile[result.name], _slices(tiling.boxes[result.name], at)
        # A transform returns all of the result, of which the tile is a part.
        is_whole = isinstance(tiling.chain.steps[-1], Transform)
        out[slices] = own[slices] if is_whole else own
    return out


def _origin(loop: SharedLoop, number: int) -> int:
    return min(number * loop.tile, loop.extent - loop.tile)


def _same(earlier: tuple[int, ...], numbers: tuple[int, ...]) -> int:
    """Count the outer loops that have not moved."""
    count = 0
    for before, now in zip(earlier, numbers, strict=False):
        if before != now:
            break
        count += 1
    return count


def is_first_tile(loop: SharedLoop, number: int) -> bool:
    """Return whether a rolling loop's tile has no rows of the previous one."""
    is_short = loop.extent % loop.tile > 0 and number == loop.count - 1
    return number == 0 or is_short


def _move_rows(tiling: Tiling, tile: dict[str, np.ndarray]) -> None:
    """Move rows that a tile keeps to the front of each temporary."""
    for name, rows in tiling.layout.rolling.items():
        lying = np.moveaxis(tile[name], rows.dimension, 0)
        lying[: rows.halo] = lying[rows.fresh :].copy()
        lying[rows.halo :] = 0


def _run(
    tiling: Tiling,
    steps: Sequence[TiledStep],
    at: Mapping[str, int],
    arrays: Mapping[str, np.ndarray],
    tile: dict[str, np.ndarray],
    is_first: bool,
) -> None:
    for tiled in steps:
        if tiled.rows is not None:
            _run_units(tiling, tiled, at, arrays, tile, is_first)
            continue
        local = tiling.localize(tiled, {})
        views = {
            name: array[_slices(tiling.boxes[name], at)]
            for name, array in arrays.items()
            if name in tiling.boxes
        }
        starts = {name: int(run.start.evaluate(at)) for name, run in tiled.ranges.items()}
        if isinstance(local, Transform):
            whole = {*arrays, tiling.chain.result.name}
            local = local.shift(starts, whole)
        tile[local.output.tensor.name] = run_step(local, views | tile, starts)


def _run_units(
    tiling: Tiling,
    tiled: TiledStep,
    at: Mapping[str, int],
    arrays: Mapping[str, np.ndarray],
    tile: dict[str, np.ndarray],
    is_first: bool,
) -> None:
    """Compute rows that roll unit by unit, or fill them where they are beyond their tensor."""
    rows, local = tiled.rows, tiling.localize(tiled, {})
    assert rows is not None
    tensor = result_of(tiled.step)
    if is_first:
        tile[tensor.name] = np.zeros(tiling.size(tensor.name), dtype(str(tensor.dtype)).numpy)
    for unit in range(0 if is_first else rows.halo // rows.unit, rows.count):
        here = dict(at) | {rows.counter(tensor.name): unit}
        ranges = {name: int(run.start.evaluate(here)) for name, run in tiled.ranges.items()}
        target = np.moveaxis(tile[tensor.name], rows.dimension, 0)[unit * rows.unit :][: rows.unit]
        first = tiled.boxes[tensor.name][rows.dimension].start.evaluate(here)
        if not 0 <= int(first) < rows.rows:
            target[:] = rows.padding
            continue
        views = {}
        for name, box in tiled.boxes.items():
            if name in arrays:
                views[name] = arrays[name][_slices(box, here)]
            elif name != tensor.name:
                inner = offset_box(box, tiling.boxes[name])
                views[name] = tile[name][_slices(inner, here)]
        target[:] = np.moveaxis(run_step(local, views, ranges), rows.dimension, 0)


def _slices(box: Box, at: Mapping[str, int]) -> tuple[slice, ...]:
    starts = (int(place.start.evaluate(at)) for place in box)
    return tuple(slice(s, s + place.size) for s, place in zip(starts, box, strict=True))
