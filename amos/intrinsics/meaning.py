"""The meaning of one call, executed in NumPy.

This is what every implementation is compared with, so it follows the manuals
in rounding and saturation, and knows nothing about any implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from amos.errors import IntrinsicError
from amos.ir import dtype
from amos.ir.combining import function
from amos.ir.floats import quantize

if TYPE_CHECKING:
    from amos.intrinsics.description import Intrinsic
    from amos.ir import BufferLoad, Compute

#: One call: accumulator fragment and source fragments → new accumulator.
Unit = Callable[[np.ndarray, Sequence[np.ndarray]], np.ndarray]

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def execute(intrinsic: Intrinsic, fragments: Mapping[str, np.ndarray]) -> np.ndarray:
    """Run one call, or many at once.

    Args:
        fragments: a fragment for each operand by name, the destination with
            the value that the accumulator starts from. Leading axes that all
            fragments share are calls of their own. A dtype that NumPy lacks is
            held in its container.

    Returns:
        the destination's fragment after the call.

    Raises:
        IntrinsicError: a fragment is missing, or its shape or dtype is another.

    >>> from amos import intrinsics
    >>> dot = intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
    >>> ones = {"Src1": np.ones(4, "uint8"), "Src2": np.ones((16, 4), "int8")}
    >>> execute(dot, ones | {"Dst": np.zeros(16, "int32")})[:3].tolist()
    [4, 4, 4]
    """
    arrays = _check(intrinsic, fragments)
    accumulator = arrays.pop(intrinsic.destination.tensor.name)
    kind = dtype(intrinsic.dtypes[-1])
    work = np.dtype(np.int64 if kind.is_integer else np.float64)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        if intrinsic.arithmetic.bitwise:
            return _add_in_order(intrinsic, arrays, accumulator)
        values = [arrays[load.tensor.name].astype(work) for load in intrinsic.sources]
        return quantize(scalar_unit(intrinsic)(accumulator.astype(work), values), kind)


def _check(intrinsic: Intrinsic, fragments: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [load.tensor.name for load in intrinsic.operands]
    if set(fragments) != set(names):
        raise IntrinsicError(
            f"{intrinsic.name}: expected fragments {', '.join(names)}, "
            f"got {', '.join(map(str, fragments)) or 'none'}"
        )
    arrays = {name: np.asarray(fragments[name]) for name in names}
    calls = arrays[names[-1]].shape
    calls = calls[: len(calls) - len(intrinsic.destination.tensor.shape)]
    for load in intrinsic.operands:
        array, expected = arrays[load.tensor.name], dtype(str(load.tensor.dtype)).numpy
        if array.shape != calls + load.tensor.shape or array.dtype != expected:
            raise IntrinsicError(
                f"{intrinsic.name}: fragment {load.tensor.name!r}: expected {expected} of shape "
                f"{calls + load.tensor.shape}, got {array.dtype} of shape {array.shape}"
            )
    return arrays


def scalar_unit(intrinsic: Intrinsic) -> Unit:
    """Return the intrinsic's own statement, on fragments of any extents.

    Leading axes that all fragments share are calls of their own. Integers are clamped where
    the intrinsic saturates.
    """
    statement = intrinsic.compute
    if not statement.sums_products:
        return partial(_combine, statement)
    letters = {it.name: chr(ord("a") + n) for n, it in enumerate(statement.iterations)}
    *sources, target = (
        "".join(letters[index.names[0]] for index in load.indices) for load in intrinsic.operands
    )
    # A dimension of the result that no source has repeats the value along it.
    replicated = [x for x in target if x not in "".join(sources)]
    spec = ",".join([*(f"...{source}" for source in sources), *replicated])
    axes = [target.index(x) - len(target) for x in replicated]
    limits = dtype(intrinsic.dtypes[-1]).limits if intrinsic.arithmetic.saturate else None

    def compute(accumulator: np.ndarray, fragments: Sequence[np.ndarray]) -> np.ndarray:
        ones = [np.ones(accumulator.shape[axis], accumulator.dtype) for axis in axes]
        total = np.einsum(f"{spec}->...{target}", *fragments, *ones)
        if statement.accumulates:
            total = accumulator + total
        return np.asarray(total if limits is None else np.clip(total, *limits))

    return compute


def _combine(
    compute: Compute, accumulator: np.ndarray, fragments: Sequence[np.ndarray]
) -> np.ndarray:
    """Run the statement of an intrinsic on fragments of any extents."""
    names = [index.names[0] for index in compute.dst.indices]
    names += [it.name for it in compute.reduce]
    letters = {name: chr(ord("a") + n) for n, name in enumerate(names)}
    values = []
    for load, fragment in zip(compute.sources, fragments, strict=True):
        used = [index.names[0] for index in load.indices]
        order = [name for name in names if name in used]
        spec = f"...{''.join(letters[n] for n in used)}->...{''.join(letters[n] for n in order)}"
        at: Any = (..., *(slice(None) if name in used else None for name in names))
        values.append(np.einsum(spec, fragment)[at])
    total = reduce(function(compute.join).ufunc, values)
    if not compute.accumulates:
        return np.broadcast_to(total, accumulator.shape)
    combiner, kind = function(compute.combiner), dtype(str(compute.dst.tensor.dtype))
    if combiner.ordered and kind.is_integer:
        total = total.astype(kind.numpy).astype(accumulator.dtype)
    if compute.reduce:
        total = combiner.ufunc.reduce(total, axis=tuple(range(-len(compute.reduce), 0)))
    return np.asarray(combiner.ufunc(accumulator, total))


def _add_in_order(
    intrinsic: Intrinsic, fragments: Mapping[str, np.ndarray], accumulator: np.ndarray
) -> np.ndarray:
    """Add the products one after another, each with one rounding to float32."""
    flush = _flush if intrinsic.arithmetic.flush else np.asarray
    summed = intrinsic.compute.reduce
    axes = [index.names[0] for index in intrinsic.destination.indices] + [it.name for it in summed]
    extents = tuple(intrinsic.extents[name] for name in axes)
    sources = [
        _align(load, flush(fragments[load.tensor.name]).astype(np.float64), axes, extents)
        for load in intrinsic.sources
    ]
    points = list(product(*(range(it.extent) for it in summed)))
    if intrinsic.arithmetic.rounding == "fused-descending":
        points.reverse()
    total = flush(accumulator if intrinsic.compute.accumulates else np.zeros_like(accumulator))
    for point in points:
        at: Any = (..., *point)
        term = reduce(np.multiply, [source[at] for source in sources])
        total = flush(_round_sum(term, total.astype(np.float64)))
    return total


def _align(
    load: BufferLoad, array: np.ndarray, axes: list[str], extents: tuple[int, ...]
) -> np.ndarray:
    """Broadcast a source to one axis for each iteration."""
    names = [index.names[0] for index in load.indices]
    calls = array.ndim - len(names)
    order = [calls + names.index(name) for name in axes if name in names]
    array = array.transpose([*range(calls), *order])
    at: Any = (..., *(slice(None) if name in names else None for name in axes))
    return np.broadcast_to(array[at], array.shape[:calls] + extents)


def _round_sum(product_: np.ndarray, addend: np.ndarray) -> np.ndarray:
    """Round ``product + addend`` once to float32, both given exactly in float64.

    Rounding to float64 first would round twice; rounding that sum to odd keeps
    what the second rounding needs to know.
    """
    total = product_ + addend
    back = total - product_
    error = (product_ - (total - back)) + (addend - back)
    even = total.view(np.int64) & 1 == 0
    inexact = np.isfinite(total) & (error != 0) & even
    odd = np.where(inexact, np.nextafter(total, np.copysign(np.inf, error)), total)
    return np.asarray(odd).astype(np.float32)


def _flush(values: np.ndarray) -> np.ndarray:
    """Flush subnormal numbers to zeros of their sign."""
    return np.where(np.abs(values) < _SMALLEST_NORMAL, np.copysign(values * 0, values), values)
