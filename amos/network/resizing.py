"""Resizing to the nearest element where the importer's has no form for it: as indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from amos.errors import NetworkError
from amos.network.program import const

#: Coordinates in the image of ``x`` in the result, of the scale and both sizes; all float32.
_COORDINATES: dict[bytes, Callable[..., np.ndarray]] = {
    b"half_pixel": lambda x, scale, size, result: (x + 0.5) / scale - 0.5,
    b"pytorch_half_pixel": lambda x, scale, size, result: (
        (x + 0.5) / scale - 0.5 if result > 1 else x * 0
    ),
    b"asymmetric": lambda x, scale, size, result: x / scale,
    b"align_corners": lambda x, scale, size, result: (
        x * np.float32(size - 1) / np.float32(result - 1) if result > 1 else x * 0
    ),
}
_NEAREST: dict[bytes, Callable[[np.ndarray], np.ndarray]] = {
    b"round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    b"round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    b"floor": np.floor,
    b"ceil": np.ceil,
}


def by_indices(builder: Any, inputs: list[Any], attributes: Mapping[str, Any]) -> Any:
    """A resize as indices of each axis; ``None`` where the importer's will do.

    It derives the scale from whole sizes, and divides by one less than them where corners
    are aligned.

    Raises:
        NetworkError: corners are aligned over a single element, and others are interpolated.
    """
    from tvm import ir, relax

    mode = attributes.get("coordinate_transformation_mode", b"half_pixel")
    shape = [int(size) for size in inputs[0].ty.shape.values]
    stated = [each if isinstance(each, ir.GenericConst) else None for each in inputs]
    scales, sizes = (_values(stated, place) for place in (2, 3))
    axes = [int(axis) % len(shape) for axis in attributes.get("axes", range(len(shape)))]
    if mode not in _COORDINATES or len(scales) + len(sizes) != len(axes):
        return None
    results, factors = [*shape], np.ones(len(shape), np.float32)
    for n, axis in enumerate(axes):
        scale = np.float32(scales[n] if scales else sizes[n] / shape[axis])
        results[axis] = int(sizes[n]) if sizes else int(shape[axis] * scale + 1e-6)
        factors[axis] = scale
    uneven = any(abs(n * f - r) > 1e-3 for n, f, r in zip(shape, factors, results, strict=True))
    single = mode == b"align_corners" and 1 in results[2:]
    if not (uneven or single):
        return None
    if attributes.get("mode", b"nearest") != b"nearest":
        moved = any(s != r != 1 for s, r in zip(shape, results, strict=True))
        if single and (uneven or moved):
            raise NetworkError(
                f"Resize: {shape} to {results} with aligned corners is not supported: "
                "an axis of one element has none"
            )
        if not single:
            return None  # whose refusal says why
    nearest = _NEAREST[attributes.get("nearest_mode", b"round_prefer_floor")]
    value = inputs[0]
    for axis, (size, result) in enumerate(zip(shape, results, strict=True)):
        places = np.arange(result, dtype=np.float32)
        at = nearest(_COORDINATES[mode](places, factors[axis], size, result).astype(np.float32))
        index = np.clip(at, 0, size - 1).astype(np.int32)
        if size != result or (index != np.arange(size)).any():
            value = builder.normalize(relax.op.take(value, const(index), axis))
    return value


def _values(constants: list[Any], place: int) -> list[float]:
    """The numbers of a constant; none where there is no constant."""
    each = constants[place] if len(constants) > place else None
    return [] if each is None else each.value.numpy().tolist()
