"""Elements of tensors in the slots of fragments (AMOS, Figure 3)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from amos.errors import MappingError
from amos.ir import Tensor
from amos.mapping import Layout, Mapping
from amos.viz.plotting import add_style, graph_objects, side_by_side

#: A fragment of more slots is too fine to be drawn.
_SLOTS = 4096
_SCALES = ("Blues", "Oranges", "Greens", "Purples")


@dataclass(frozen=True, eq=False)
class Slots:
    """One fragment of one call.

    Attributes:
        elements: int, fragment × dimensions of the tensor: the element in each
            slot; meaningless where ``used`` is false.
        used: bool, fragment: true where a slot holds an element. The others are
            padding: of a fused index that does not fill its last tile, or of a
            read outside a padded tensor.
    """

    operand: str
    tensor: Tensor
    elements: np.ndarray
    used: np.ndarray

    @property
    def rows(self) -> int:
        """Rows that the slots are drawn in."""
        return self.used.shape[0] if self.used.ndim else 1

    def labels(self) -> list[list[str]]:
        """Return ``[0,3,4]`` for each slot, empty for padding; rows × columns."""
        texts = np.full(self.used.shape, "", dtype=object)
        for slot in np.ndindex(self.used.shape):
            if self.used[slot]:
                texts[slot] = f"[{','.join(map(str, self.elements[slot]))}]"
        return list(texts.reshape(self.rows, -1).tolist())

    def positions(self) -> list[list[float]]:
        """Place of each slot's element in the tensor, NaN for padding; rows × columns."""
        index = tuple(np.moveaxis(self.elements, -1, 0))
        places = np.asarray(np.ravel_multi_index(index, self.tensor.shape, mode="clip"))
        return list(np.where(self.used, places, np.nan).reshape(self.rows, -1).tolist())


def slots(mapping: Mapping, call: int) -> list[Slots]:
    """Return the elements of each fragment in one call, in the order of the operands.

    Args:
        call: number of the call; loops around it in loop order, then the tiles of
            the intrinsic iterations, the last one fastest.
    """
    physical = mapping.physical()
    if not 0 <= call < physical.calls:
        raise MappingError(f"call {call} of {mapping.name}: expected 0 to {physical.calls - 1}")
    extents = mapping.operator.extents
    counts = [*(extents[n] for n in mapping.outer), *physical.tiles.values()]
    place = [int(n) for n in np.unravel_index(call, counts)] if counts else []
    outer = dict(zip(mapping.outer, place, strict=False))
    tiles = dict(zip(physical.tiles, place[len(outer) :], strict=True))
    return [_slots(mapping, layout, outer, tiles) for layout in physical.layouts.values()]


def _slots(mapping: Mapping, layout: Layout, outer: dict[str, int], tiles: dict[str, int]) -> Slots:
    """Return the elements of an operand's fragment at one position of the outer loops."""
    extents, shape, load = mapping.operator.extents, layout.fragment, layout.load
    used = np.ones(shape, dtype=bool)
    at: dict[str, Any] = dict(outer)
    for (step, _, _), size, lane in zip(layout.tiles, shape, np.indices(shape), strict=True):
        fused = tiles[step] * size + lane
        used &= fused < mapping.fused_extents[step]
        for iteration, radix in mapping.fused[step].terms:
            at[iteration] = fused // radix % extents[iteration]
    elements = np.empty((*shape, len(load.indices)), dtype=np.int64)
    for d, (index, size) in enumerate(zip(load.indices, load.tensor.shape, strict=True)):
        elements[..., d] = index.constant + sum(at[n] * c for n, c in index.terms)
        used &= (elements[..., d] >= 0) & (elements[..., d] < size)
    return Slots(layout.operand, load.tensor, elements, used)


def fragments(mapping: Mapping, calls: int = 16) -> Any:
    """Draw the fragments of the first calls as tiles, with a slider over the calls.

    Slots are coloured by the position of their element in the tensor, and padding
    is left empty, so that replicas and gaps can be seen.

    Returns:
        A plotly figure with one frame a call, and one heat map an operand.
    """
    if calls < 1:
        raise MappingError(f"calls: expected at least one, got {calls}")
    sizes = [prod(load.tensor.shape) for load in mapping.intrinsic.operands]
    if max(sizes) > _SLOTS:
        raise MappingError(
            f"fragments of {mapping.intrinsic.name} have up to {max(sizes)} slots; "
            f"at most {_SLOTS} can be drawn"
        )
    total = mapping.physical().calls
    shown = [slots(mapping, call) for call in range(min(calls, total))]
    drawn = [
        [_heatmap(fragment, _SCALES[n % 4]) for n, fragment in enumerate(call)] for call in shown
    ]
    figure = side_by_side(
        drawn[0], [f"{fragment.operand} = {fragment.tensor.name}" for fragment in shown[0]]
    )
    frame = graph_objects().Frame
    figure.frames = [frame(data=data, name=str(call)) for call, data in enumerate(drawn)]
    steps = [
        dict(label=frame.name, method="animate", args=[[frame.name], dict(mode="immediate")])
        for frame in figure.frames
    ]
    figure.update_layout(sliders=[dict(steps=steps, currentvalue_prefix="call ", pad_t=20)])
    what = f"{mapping.name}: elements in the fragments, call by call ({total:,} calls)"
    return add_style(figure, what, height=440)


def _heatmap(fragment: Slots, scale: str) -> Any:
    return graph_objects().Heatmap(
        z=fragment.positions(),
        text=fragment.labels(),
        colorscale=scale,
        showscale=False,
        xgap=1,
        ygap=1,
        hovertemplate=f"slot (%{{y}}, %{{x}}): {fragment.tensor.name}%{{text}}<extra></extra>",
    )
