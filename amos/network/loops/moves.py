"""Loops of operators that move elements: each of a result is one of an operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from amos._toolchain import te, tirx, topi
from amos.network.graph import Constant, Node
from amos.network.loops.elementwise import element
from amos.network.shapes import match_axes


def _emit_moving(place: Callable[[Node, Sequence[Any]], Sequence[Any]]) -> Callable[..., Any]:
    """Return the loops of an operator, given the function that locates the source of an element."""

    def emit(node: Node, operands: Sequence[Any]) -> Any:
        (x,) = operands
        name = node.operation.lower()
        return te.compute(node.shape, lambda *at: x(*place(node, at)), name=name)

    return emit


def _locate_transposed(node: Node, at: Sequence[Any]) -> Sequence[Any]:
    perm = node.attributes["perm"]
    return [at[perm.index(axis)] for axis in range(len(perm))]


def _locate_sliced(node: Node, at: Sequence[Any]) -> Sequence[Any]:
    attributes = node.attributes
    return [
        s + step * i
        for s, step, i in zip(attributes["starts"], attributes["steps"], at, strict=True)
    ]


def _locate_tiled(node: Node, at: Sequence[Any]) -> Sequence[Any]:
    sizes = node.operands[0].shape
    repeats = node.attributes["repeats"]
    columns = zip(at, sizes, repeats, strict=True)
    return [i % size if times > 1 else i for i, size, times in columns]


def _locate_reshaped(node: Node, at: Sequence[Any]) -> Sequence[Any]:
    """Return the index of an element in the operand's shape.

    Axes are merged only where the shapes require it: if the last axis is an axis of the operand,
    or a part of one, vectors read consecutive elements.
    """
    place = []
    for own, theirs in match_axes(node.shape, node.operands[0].shape):
        index: Any = 0
        for axis in own:
            index = index * node.shape[axis] + at[axis]
        sizes = [node.operands[0].shape[axis] for axis in theirs]
        for n, size in enumerate(sizes):
            stride = prod(sizes[n + 1 :])
            step = index // stride if stride > 1 else index
            place.append(step % size if n else step)
    return place


def _emit_expand(node: Node, operands: Sequence[Any]) -> Any:
    (x,) = operands
    return te.compute(node.shape, lambda *at: element(x, at), name="expand")


def _emit_concat(node: Node, operands: Sequence[Any]) -> Any:
    axis = node.attributes["axis"]
    return topi.concatenate([each for each in operands if int(each.shape[axis])], axis)


def _emit_pad(node: Node, operands: Sequence[Any]) -> Any:
    (x,), attributes = operands, node.attributes
    value = tirx.const(
        attributes["value"] if "float" in node.dtype else int(attributes["value"]), node.dtype
    )

    def pad(*at: Any) -> Any:
        place, conditions = [], []
        for i, size, before, after in zip(
            at, map(int, x.shape), attributes["before"], attributes["after"], strict=True
        ):
            index = i - before
            if attributes["mode"] == "constant":
                conditions += [index >= 0] if before > 0 else []
                conditions += [index < size] if after > 0 else []
            elif before > 0 or after > 0:
                index = _REPEATED[attributes["mode"]](index, size, max(before, after))
            place.append(index)
        return (
            tirx.if_then_else(tirx.all(*conditions), x(*place), value) if conditions else x(*place)
        )

    return te.compute(node.shape, pad, name="pad")


def clamp(index: Any, size: int) -> Any:
    """Return the nearest index of an axis."""
    return tirx.max(tirx.min(index, size - 1), 0)


def _reflect(index: Any, size: int, farthest: int) -> Any:
    if size == 1:
        return 0
    period = 2 * (size - 1)
    if farthest >= size:
        index = index % period
    index = tirx.Select(index < 0, -index, index)
    return tirx.Select(index >= size, period - index, index)


_REPEATED: Mapping[str, Callable[[Any, int, int], Any]] = {
    "edge": lambda index, size, _: clamp(index, size),
    "reflect": _reflect,
    "wrap": lambda index, size, _: index % size,
}


def _emit_gather(node: Node, operands: Sequence[Any]) -> Any:
    (data, indices), axis = operands, node.attributes["axis"]
    count = len(indices.shape)

    def gather(*at: Any) -> Any:
        index = _wrap_index(indices(*at[axis : axis + count]), node)
        return data(*at[:axis], index, *at[axis + count :])

    return te.compute(node.shape, gather, name="gather")


def _emit_gather_elements(node: Node, operands: Sequence[Any]) -> Any:
    (data, indices), axis = operands, node.attributes["axis"]
    return te.compute(
        node.shape,
        lambda *at: data(*at[:axis], _wrap_index(indices(*at), node), *at[axis + 1 :]),
        name="gather_elements",
    )


def _wrap_index(index: Any, node: Node) -> Any:
    """Return an index of the axis: counted from its end if negative, and clamped."""
    operand, size = node.operands[1], node.operands[0].shape[node.attributes["axis"]]
    index = index if operand.dtype == "int64" else index.astype("int32")
    if isinstance(operand, Constant) and _are_valid(operand, size):
        return index
    if operand.dtype.startswith("u"):
        return index if np.iinfo(operand.dtype).max < size else tirx.min(index, size - 1)
    return clamp(tirx.Select(index < 0, index + size, index), size)


def _are_valid(indices: Constant, size: int) -> bool:
    return not indices.array.size or 0 <= indices.array.min() <= indices.array.max() < size


#: Emitters by operator.
MOVE_LOOPS: Mapping[str, Callable[[Node, Sequence[Any]], Any]] = {
    "Concat": _emit_concat,
    "Expand": _emit_expand,
    "Gather": _emit_gather,
    "GatherElements": _emit_gather_elements,
    "Pad": _emit_pad,
    "Reshape": _emit_moving(_locate_reshaped),
    "Slice": _emit_moving(_locate_sliced),
    "Tile": _emit_moving(_locate_tiled),
    "Transpose": _emit_moving(_locate_transposed),
}
