"""Resizing, axis by axis: elements at constant places, weighted by constants.

Each axis of the result is a sum of a few elements of the operand's axis, whose places and weights
follow from sizes and scales alone. So every mode is a Gather for each of them, a product and a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from amos.network.graph import Constant, Operand
from amos.network.operations import numpy_dtype
from amos.network.reading.node import NodeSource, Read

#: Coordinate in the operand of a place of the result, of the scale and both sizes.
_COORDINATES: dict[str, Callable[[np.ndarray, np.float32, int, int], np.ndarray]] = {
    "half_pixel": lambda x, scale, size, result: (x + np.float32(0.5)) / scale - np.float32(0.5),
    "pytorch_half_pixel": lambda x, scale, size, result: (
        (x + np.float32(0.5)) / scale - np.float32(0.5) if result > 1 else x * 0
    ),
    "asymmetric": lambda x, scale, size, result: x / scale,
    "align_corners": lambda x, scale, size, result: (
        x * np.float32(size - 1) / np.float32(result - 1) if result > 1 else x * 0
    ),
    "half_pixel_symmetric": lambda x, scale, size, result: (
        np.float32(size / 2 * (1 - result / (scale * size)))
        + (x + np.float32(0.5)) / scale
        - np.float32(0.5)
    ),
}
_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True)
class _Axis:
    """The resizing of an axis.

    Attributes:
        size, result: its extents before and after.
        scale: result per operand, as it is stated.
    """

    axis: int
    size: int
    result: int
    scale: np.float32


def _read_resize(node: NodeSource) -> Operand:
    value, attributes = node.input(0), node.attributes
    scales, sizes = _read_scales(node)
    mode, transform = (
        str(attributes.get(name, default))
        for name, default in (
            ("mode", "nearest"),
            ("coordinate_transformation_mode", "half_pixel"),
        )
    )
    if node.operation == "Upsample" or node.opset < 11:
        transform = "asymmetric"
    if transform not in _COORDINATES:
        raise node.refuse(f"{transform} is not supported")
    for name, plain in (("antialias", 0), ("keep_aspect_ratio_policy", "stretch")):
        if str(attributes.get(name, plain)) != str(plain):
            raise node.refuse(f"{name} {attributes[name]} is not supported")
    axes = _axes(node, value, scales, sizes)
    for resized in axes:
        if resized.size != resized.result or (mode != "nearest" and resized.scale != 1):
            value = _resize_axis(node, value, resized, mode, transform)
    return value


def _read_scales(node: NodeSource) -> tuple[list[float], list[int]]:
    """Scales and sizes, of which a node states one."""
    if node.operation == "Upsample" and "scales" in node.attributes:
        return [float(scale) for scale in node.attributes["scales"]], []
    place = 1 if node.operation == "Upsample" or node.opset < 11 else 2
    scales, sizes = node.constant(place), node.constant(3) if place == 2 else None
    if (scales is None or not scales.size) and (sizes is None or not sizes.size):
        raise node.refuse("scales or sizes are missing")
    if sizes is not None and sizes.size:
        return [], [int(size) for size in sizes]
    assert scales is not None
    return [float(scale) for scale in scales], []


def _axes(node: NodeSource, value: Operand, scales: list[float], sizes: list[int]) -> list[_Axis]:
    rank = len(value.shape)
    stated = node.integers("axes")
    numbers = [node.axis_of(a, rank) for a in (stated if stated is not None else range(rank))]
    if len(numbers) != len(scales) + len(sizes):
        raise node.refuse("as many scales or sizes as axes are expected")
    axes = []
    for n, axis in enumerate(numbers):
        size = value.shape[axis]
        scale = np.float32(scales[n]) if scales else np.float32(sizes[n] / size)
        result = sizes[n] if sizes else int(np.floor(np.float32(size) * scale))
        if result < 1:
            raise node.refuse("an empty result is not supported")
        aligned = node.attributes.get("coordinate_transformation_mode") == "align_corners"
        if aligned and abs(size * scale - result) > 1e-3:  # programs differ in what is aligned
            raise node.refuse(f"aligned corners of {size * scale:g} elements are not supported")
        axes.append(_Axis(axis, size, result, scale))
    return axes


def _resize_axis(
    node: NodeSource, value: Operand, axis: _Axis, mode: str, transform: str
) -> Operand:
    """Resize one axis."""
    places = np.arange(axis.result, dtype=np.float32)
    at = _COORDINATES[transform](places, axis.scale, axis.size, axis.result).astype(np.float32)
    if mode == "nearest":
        rounded = _NEAREST[str(node.attributes.get("nearest_mode", "round_prefer_floor"))]
        if node.operation == "Upsample" or node.opset < 11:
            rounded = np.floor
        return _gather(node, value, rounded(at), axis)
    if mode == "linear":
        at = np.clip(at, 0, axis.size - 1)
        first = np.floor(at)
        weights = [1 - (at - first), at - first]
        return _sum(node, value, axis, [(first, weights[0]), (first + 1, weights[1])])
    if mode == "cubic":
        return _cubic(node, value, axis, at)
    raise node.refuse(f"mode {mode} is not supported")


def _cubic(node: NodeSource, value: Operand, axis: _Axis, at: np.ndarray) -> Operand:
    """Interpolate four elements by Keys' polynomial."""
    a = float(node.attributes.get("cubic_coeff_a", -0.75))
    first = np.floor(at)
    x = (at - first).astype(np.float64)
    weights = [
        ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a,
        ((a + 2) * x - (a + 3)) * x * x + 1,
        ((a + 2) * (1 - x) - (a + 3)) * (1 - x) * (1 - x) + 1,
        ((a * (2 - x) - 5 * a) * (2 - x) + 8 * a) * (2 - x) - 4 * a,
    ]
    places = [first + step for step in (-1, 0, 1, 2)]
    if node.attributes.get("exclude_outside", 0):
        is_valid = [(p >= 0) & (p < axis.size) for p in places]
        weights = [np.where(i, w, 0) for i, w in zip(is_valid, weights, strict=True)]
        total = np.sum(weights, axis=0)
        weights = [weight / total for weight in weights]
    return _sum(node, value, axis, [*zip(places, weights, strict=True)])


def _gather(node: NodeSource, value: Operand, places: np.ndarray, axis: _Axis) -> Operand:
    index = np.clip(places, 0, axis.size - 1).astype(np.int32)
    return node.emit("Gather", value, Constant(index), axis=axis.axis)


def _sum(
    node: NodeSource, value: Operand, axis: _Axis, terms: list[tuple[np.ndarray, np.ndarray]]
) -> Operand:
    """Sum elements at some places, times their weights."""
    if "float" not in value.dtype:
        raise node.refuse(f"interpolation of {value.dtype} is not supported")
    shape = [axis.result if n == axis.axis else 1 for n in range(len(value.shape))]
    total: Operand | None = None
    for places, weights in terms:
        if not weights.any():
            continue
        factor = Constant(weights.reshape(shape).astype(numpy_dtype(value.dtype)))
        term = node.emit("Mul", _gather(node, value, places, axis), factor)
        total = term if total is None else node.emit("Add", total, term)
    assert total is not None
    return total


READERS: dict[str, Read] = {"Resize": _read_resize, "Upsample": _read_resize}
