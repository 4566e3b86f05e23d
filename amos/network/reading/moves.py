"""Operators that move elements: shapes, orders, parts, repetitions, and look-ups."""

from __future__ import annotations

from itertools import accumulate
from math import prod

import numpy as np

from amos.network.graph import Constant, Operand
from amos.network.operations import numpy_dtype
from amos.network.reading.node import NodeSource, Read

#: Elements of the largest tensor that is written out from a shape or a range.
_MOST_ELEMENTS = 1 << 26


def _read_reshape(node: NodeSource) -> Operand:
    value = node.input(0)
    sizes = node.integers("shape", 1)
    if sizes is None:
        raise node.refuse("its shape is missing")
    extents = list(sizes)
    if not node.attributes.get("allowzero", 0):
        extents = [value.shape[n] if size == 0 else size for n, size in enumerate(sizes)]
    if -1 in extents:
        stated = -prod(extents)
        extents[extents.index(-1)] = prod(value.shape) // stated if stated else 0
    return node.reshape(value, extents)


def _read_flatten(node: NodeSource) -> Operand:
    value = node.input(0)
    axis = int(node.attributes.get("axis", 1))
    axis += len(value.shape) if axis < 0 else 0
    return node.reshape(value, (prod(value.shape[:axis]), prod(value.shape[axis:])))


def _read_squeeze(node: NodeSource) -> Operand:
    value = node.input(0)
    axes = node.axes(len(value.shape), 1)
    if axes is None:
        axes = tuple(axis for axis, size in enumerate(value.shape) if size == 1)
    return node.reshape(value, [s for axis, s in enumerate(value.shape) if axis not in axes])


def _read_unsqueeze(node: NodeSource) -> Operand:
    value = node.input(0)
    stated = node.integers("axes", 1) or ()
    rank = len(value.shape) + len(stated)
    axes = {node.axis_of(axis, rank) for axis in stated}
    sizes = iter(value.shape)
    return node.reshape(value, [1 if axis in axes else next(sizes) for axis in range(rank)])


def _read_transpose(node: NodeSource) -> Operand:
    value = node.input(0)
    rank = len(value.shape)
    perm = node.integers("perm") or tuple(reversed(range(rank)))
    return node.transpose(value, [node.axis_of(axis, rank) for axis in perm])


def _read_concat(node: NodeSource) -> Operand:
    inputs = [node.input(n) for n in range(len(node.inputs))]
    axis = node.axis_of(int(node.attributes.get("axis", 1)), len(inputs[0].shape))
    inputs = [each for each in inputs if each.shape[axis]] or inputs[:1]
    if len(inputs) == 1:
        return inputs[0]
    return node.emit("Concat", *inputs, axis=axis)


def slice_axes(node: NodeSource, value: Operand, parts: dict[int, tuple[int, int, int]]) -> Operand:
    """Append a Slice of some axes; ``parts`` holds first index, step and count by axis."""
    full = [(0, 1, size) for size in value.shape]
    for axis, bounds in parts.items():
        full[axis] = bounds
    starts, steps, sizes = (tuple(column) for column in zip(*full, strict=True))
    if sizes == value.shape and all(step == 1 for step in steps):
        return value
    if 0 in sizes:
        return Constant(np.zeros(sizes, numpy_dtype(value.dtype)))
    return node.emit("Slice", value, starts=starts, steps=steps, sizes=sizes)


def _read_slice(node: NodeSource) -> Operand:
    value = node.input(0)
    starts, ends = node.integers("starts", 1), node.integers("ends", 2)
    if starts is None or ends is None:
        raise node.refuse("starts or ends are missing")
    rank = len(value.shape)
    stated = node.integers("axes", 3)
    axes = [node.axis_of(axis, rank) for axis in (stated or range(len(starts)))]
    steps = node.integers("steps", 4) or [1] * len(starts)
    parts = {}
    for axis, begin, end, step in zip(axes, starts, ends, steps, strict=True):
        places = range(value.shape[axis])[slice(begin, end, step)]
        parts[axis] = (places.start, places.step, len(places))
    return slice_axes(node, value, parts)


def _read_split(node: NodeSource) -> tuple[Operand | None, ...]:
    value, count = node.input(0), len(node.outputs)
    axis = node.axis_of(int(node.attributes.get("axis", 0)), len(value.shape))
    sizes = node.integers("split", 1)
    if sizes is None:  # all equal but the last one, which may be smaller
        size = -(-value.shape[axis] // count)
        sizes = (*[size] * (count - 1), value.shape[axis] - size * (count - 1))
    begins = [0, *accumulate(sizes)]
    return tuple(
        slice_axes(node, value, {axis: (begin, 1, size)}) if is_read else None
        for begin, size, is_read in zip(begins, sizes, node.outputs, strict=False)
    )


def _read_pad(node: NodeSource) -> Operand:
    value = node.input(0)
    rank = len(value.shape)
    widths = node.integers("pads", 1) or node.integers("paddings")
    if widths is None:
        raise node.refuse("pads are missing")
    stated = node.integers("axes", 3)
    axes = [node.axis_of(a, rank) for a in (stated if stated is not None else range(rank))]
    before, after = [0] * rank, [0] * rank
    half = len(axes)
    for n, axis in enumerate(axes):
        before[axis], after[axis] = widths[n], widths[half + n]
    if min(*before, *after, 0) < 0:  # what is cut off
        parts = {}
        for axis in range(rank):
            first, last = max(-before[axis], 0), max(-after[axis], 0)
            parts[axis] = (first, 1, value.shape[axis] - first - last)
        value = slice_axes(node, value, parts)
        before, after = [max(n, 0) for n in before], [max(n, 0) for n in after]
    if not any((*before, *after)):
        return value
    mode = str(node.attributes.get("mode", "constant"))
    number = node.constant(2)
    fill = node.attributes.get("value", 0.0) if number is None else number.reshape(-1)[0].item()
    pads = {"before": tuple(before), "after": tuple(after)}
    return node.emit("Pad", value, **pads, mode=mode, value=fill)


def _read_expand(node: NodeSource) -> Operand:
    """Repeat extents of 1 and missing axes."""
    value = node.input(0)
    shape = np.broadcast_shapes(value.shape, node.integers("shape", 1) or ())
    return value if shape == value.shape else node.emit("Expand", value, shape=shape)


def _read_tile(node: NodeSource) -> Operand:
    value = node.input(0)
    repeats = node.integers("repeats", 1) or ()
    return node.emit("Tile", value, repeats=repeats) if set(repeats) - {1} else value


def from_front(node: NodeSource, indices: Operand, size: int) -> Operand:
    """Return indices counted from the first element, where they are constants."""
    if isinstance(indices, Constant):
        array = indices.array
        indices = Constant(np.where(array < 0, array + size, array))
        if (indices.array >= size).any() or (indices.array < 0).any():
            raise node.refuse(f"an index outside of {size} elements")
    return indices


def _read_gather(node: NodeSource) -> Operand:
    value = node.input(0)
    axis = node.axis_of(int(node.attributes.get("axis", 0)), len(value.shape))
    indices = from_front(node, node.input(1), value.shape[axis])
    if isinstance(indices, Constant) and indices.array.ndim == 0:
        at = int(indices.array)
        element = slice_axes(node, value, {axis: (at, 1, 1)})
        return node.reshape(element, (*value.shape[:axis], *value.shape[axis + 1 :]))
    return node.emit("Gather", value, indices, axis=axis)


def _read_gather_elements(node: NodeSource) -> Operand:
    value = node.input(0)
    axis = node.axis_of(int(node.attributes.get("axis", 0)), len(value.shape))
    indices = from_front(node, node.input(1), value.shape[axis])
    return node.emit("GatherElements", value, indices, axis=axis)


def _read_gather_nd(node: NodeSource) -> Operand:
    """Look up rows of a tensor whose indexed axes are one, at constant places."""
    value, indices = node.input(0), node.constant(1)
    if indices is None:
        raise node.refuse("its indices are missing")
    batch = int(node.attributes.get("batch_dims", 0))
    indexed = batch + indices.shape[-1]
    sizes = value.shape[:indexed]
    indices = np.where(indices < 0, indices + sizes[batch:], indices)
    places = (*np.indices(indices.shape[:-1])[:batch], *np.moveaxis(indices, -1, 0))
    rows = node.reshape(value, (prod(sizes), *value.shape[indexed:]))
    return node.emit("Gather", rows, Constant(np.ravel_multi_index(places, sizes)), axis=0)


def _read_one_hot(node: NodeSource) -> Operand:
    indices, depth, values = node.input(0), node.constant(1), node.input(2)
    if depth is None:
        raise node.refuse("its depth is missing")
    count, rank = int(depth.reshape(-1)[0]), len(indices.shape) + 1
    axis = node.axis_of(int(node.attributes.get("axis", -1)), rank)
    if "float" in indices.dtype:
        indices = node.cast(indices, "int64")
    negative = node.emit("Less", indices, node.scalar(0, indices))
    from_end = node.emit("Add", indices, node.scalar(count, indices))
    indices = node.emit("Where", negative, from_end, indices)
    shape = (*indices.shape[:axis], 1, *indices.shape[axis:])
    steps = np.arange(count).reshape([count if n == axis else 1 for n in range(rank)])
    equal = node.emit("Equal", node.reshape(indices, shape), node.scalar(steps, indices))
    off, on = (node.reshape(slice_axes(node, values, {0: (place, 1, 1)}), ()) for place in (0, 1))
    return node.emit("Where", equal, on, off)


def _read_depth_to_space(node: NodeSource) -> Operand:
    value, block = node.input(0), int(node.attributes["blocksize"])
    n, c, h, w = value.shape
    inner = c // block**2
    if str(node.attributes.get("mode", "DCR")) == "DCR":
        shape, perm = (n, block, block, inner, h, w), (0, 3, 4, 1, 5, 2)
    else:
        shape, perm = (n, inner, block, block, h, w), (0, 1, 4, 2, 5, 3)
    moved = node.transpose(node.reshape(value, shape), perm)
    return node.reshape(moved, (n, inner, h * block, w * block))


def _read_space_to_depth(node: NodeSource) -> Operand:
    value, block = node.input(0), int(node.attributes["blocksize"])
    n, c, h, w = value.shape
    divided = node.reshape(value, (n, c, h // block, block, w // block, block))
    depth = str(node.attributes.get("mode", "DCR")) == "DCR"
    moved = node.transpose(divided, (0, 3, 5, 1, 2, 4) if depth else (0, 1, 3, 5, 2, 4))
    return node.reshape(moved, (n, c * block**2, h // block, w // block))


def _read_shape(node: NodeSource) -> Operand:
    shape = node.input(0).shape
    end = node.attributes.get("end")
    extents = shape[int(node.attributes.get("start", 0)) : None if end is None else int(end)]
    return Constant(np.array(extents, np.int64))


def _read_constant(node: NodeSource) -> Operand:
    attributes = node.attributes
    for name, array in attributes.items():
        if name in ("value_float", "value_floats"):
            return Constant(np.asarray(array, np.float32))
        if name in ("value_int", "value_ints"):
            return Constant(np.asarray(array, np.int64))
        if name == "value":
            return Constant(np.asarray(array))
    raise node.refuse("a value that is no dense tensor is not supported")


def _read_constant_of_shape(node: NodeSource) -> Operand:
    shape = node.integers("shape", 0) or ()
    value = np.asarray(node.attributes.get("value", np.zeros(1, np.float32))).reshape(-1)[0]
    if prod(shape) > _MOST_ELEMENTS:
        raise node.refuse(f"a constant of shape {shape} is not supported")
    return Constant(np.full(shape, value))


def _read_range(node: NodeSource) -> Operand:
    bounds = [node.constant(n) for n in range(3)]
    start, limit, delta = (b.reshape(()).item() for b in bounds if b is not None)
    values = np.arange(start, limit, delta).astype(numpy_dtype(node.input(0).dtype))
    if not 0 < values.size <= _MOST_ELEMENTS:
        raise node.refuse(f"a range of {values.size} elements is not supported")
    return Constant(values)


def _read_triangle(node: NodeSource) -> Operand:
    value, diagonal = node.input(0), node.constant(1)
    k = 0 if diagonal is None else int(diagonal.reshape(-1)[0])
    ones = np.ones(value.shape[-2:], bool)
    mask = np.triu(ones, k) if node.attributes.get("upper", 1) else np.tril(ones, k)
    return node.emit("Where", Constant(mask), value, node.scalar(0, value))


READERS: dict[str, Read] = {
    "Concat": _read_concat,
    "Constant": _read_constant,
    "ConstantOfShape": _read_constant_of_shape,
    "DepthToSpace": _read_depth_to_space,
    "Expand": _read_expand,
    "Flatten": _read_flatten,
    "Gather": _read_gather,
    "GatherElements": _read_gather_elements,
    "GatherND": _read_gather_nd,
    "OneHot": _read_one_hot,
    "Pad": _read_pad,
    "Range": _read_range,
    "Reshape": _read_reshape,
    "Shape": _read_shape,
    "Size": lambda node: Constant(np.array(prod(node.input(0).shape), np.int64)),
    "Slice": _read_slice,
    "SpaceToDepth": _read_space_to_depth,
    "Split": _read_split,
    "Squeeze": _read_squeeze,
    "Tile": _read_tile,
    "Transpose": _read_transpose,
    "Trilu": _read_triangle,
    "Unsqueeze": _read_unsqueeze,
}
