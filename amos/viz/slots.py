"""Which element of a tensor sits in which slot of a fragment (AMOS, Figure 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from amos.errors import MappingError
from amos.viz.plotting import graph_objects, rows_down, styled

if TYPE_CHECKING:
    from amos.ir import BufferLoad
    from amos.mapping import Mapping

__all__ = ["Slots", "fragments", "slots"]

#: A fragment of more slots is too fine to be drawn.
_SLOTS = 4096


@dataclass(frozen=True)
class Slots:
    """One fragment of one call.

    Attributes:
        operand: the intrinsic's name for it.
        tensor: the operator's name for it.
        elements: int, fragment × dimensions of the tensor: the element in each
            slot; meaningless where ``used`` is false.
        used: bool, fragment: true where a slot holds an element. The others are
            padding: of a fused index that does not fill its last tile, or of a
            read outside a padded tensor.
    """

    operand: str
    tensor: str
    elements: np.ndarray
    used: np.ndarray

    def labels(self) -> list[list[str]]:
        """``[0,3,4]`` for each slot, nothing for padding; rows × columns."""
        rows = self.used.shape[0] if self.used.ndim else 1
        flat = self.elements.reshape(-1, self.elements.shape[-1])
        texts = [
            f"[{','.join(map(str, element))}]" if used else ""
            for element, used in zip(flat.tolist(), self.used.reshape(-1), strict=True)
        ]
        width = len(texts) // rows
        return [texts[r * width : (r + 1) * width] for r in range(rows)]


def slots(mapping: Mapping, call: int) -> list[Slots]:
    """What each fragment holds in one call, in the order of the operands.

    Args:
        mapping: what goes where.
        call: number of the call; loops around it in loop order, then the tiles of
            the intrinsic iterations, the last one fastest.

    Raises:
        MappingError: there is no such call.
    """
    physical = mapping.physical()
    if not 0 <= call < physical.calls:
        raise MappingError(f"call {call} of {mapping.name}: expected 0 to {physical.calls - 1}")
    extents = mapping.operator.extents
    counts = [*(extents[n] for n in mapping.outer), *physical.tiles.values()]
    place = np.unravel_index(call, counts) if counts else ()
    outer = dict(zip(mapping.outer, map(int, place), strict=False))
    tiles = dict(zip(physical.tiles, map(int, place[len(outer) :]), strict=True))
    pairs = zip(mapping.intrinsic.operands, mapping.pairing.loads, strict=True)
    found = []
    for operand, load in pairs:
        axes = [index.names[0] for index in operand.indices]
        found.append(_held(mapping, operand.tensor.name, load, axes, outer, tiles))
    return found


def _held(
    mapping: Mapping,
    name: str,
    load: BufferLoad,
    axes: list[str],
    outer: dict[str, int],
    tiles: dict[str, int],
) -> Slots:
    sizes = mapping.physical().sizes
    shape = tuple(sizes[t] for t in axes)
    grid = dict(zip(axes, np.indices(shape), strict=True))
    extents = mapping.operator.extents
    used = np.ones(shape, dtype=bool)
    at: dict[str, Any] = dict(outer)
    for step, lane in grid.items():
        value = tiles[step] * sizes[step] + lane
        used &= value < mapping.fused_extents[step]
        for iteration, radix in mapping.fused[step].terms:
            at[iteration] = value // radix % extents[iteration]
    elements = np.empty((*shape, len(load.indices)), dtype=np.int64)
    for d, (index, size) in enumerate(zip(load.indices, load.tensor.shape, strict=True)):
        where = sum((at[n] * c for n, c in index.terms), np.full(shape, index.constant))
        used &= (where >= 0) & (where < size)
        elements[..., d] = where
    return Slots(name, load.tensor.name, elements, used)


def fragments(mapping: Mapping, calls: int = 16) -> Any:
    """The fragments of the first calls as tiles, with a slider over the calls.

    Slots are coloured by the position of their element in the tensor, and padding
    is left empty, so that replicas and gaps can be seen.

    Args:
        mapping: what goes where.
        calls: how many calls the slider reaches.

    Returns:
        A plotly figure with one frame a call, and one heat map an operand.

    Raises:
        MappingError: the intrinsic's fragments are too large to be drawn, or
            ``calls`` is not positive.
        ToolchainError: plotly is not installed.
    """
    if calls < 1:
        raise MappingError(f"calls: expected at least one, got {calls}")
    sizes = [prod(load.tensor.shape) for load in mapping.intrinsic.operands]
    if max(sizes) > _SLOTS:
        raise MappingError(
            f"fragments of {mapping.intrinsic.name} have up to {max(sizes)} slots; "
            f"at most {_SLOTS} can be drawn"
        )
    go = graph_objects()
    from plotly.subplots import make_subplots

    total = mapping.physical().calls
    shown = range(min(calls, total))
    titles = [f"{s.operand} = {s.tensor}" for s in slots(mapping, 0)]
    figure = make_subplots(cols=len(titles), subplot_titles=titles, horizontal_spacing=0.06)
    for column, trace in enumerate(_tiles(mapping, 0), 1):
        figure.add_trace(trace, row=1, col=column)
    figure.frames = [go.Frame(data=list(_tiles(mapping, call)), name=str(call)) for call in shown]
    steps = [
        dict(label=str(n), method="animate", args=[[str(n)], dict(mode="immediate")]) for n in shown
    ]
    figure.update_layout(sliders=[dict(steps=steps, currentvalue_prefix="call ", pad_t=20)])
    rows_down(figure)
    what = f"{mapping.name}: elements in the fragments, call by call ({total:,} calls)"
    return styled(figure, what, height=440)


def _tiles(mapping: Mapping, call: int) -> Iterator[Any]:
    go = graph_objects()
    shapes = [load.tensor.shape for load in mapping.pairing.loads]
    for number, (held, shape) in enumerate(zip(slots(mapping, call), shapes, strict=True)):
        clipped = np.clip(held.elements, 0, np.maximum(np.array(shape, dtype=np.int64) - 1, 0))
        position = np.ravel_multi_index(tuple(np.moveaxis(clipped, -1, 0)), shape)
        labels = held.labels()
        values = np.where(held.used, position, -1).reshape(len(labels), -1).tolist()
        z = [[None if v < 0 else v for v in row] for row in values]
        name = f"{held.tensor}"
        yield go.Heatmap(
            z=z,
            text=labels,
            colorscale=("Blues", "Oranges", "Greens", "Purples")[number % 4],
            showscale=False,
            xgap=1,
            ygap=1,
            hovertemplate=f"slot (%{{y}}, %{{x}}): {name}%{{text}}<extra></extra>",
        )
