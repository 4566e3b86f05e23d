"""Arrays of operators: checks, random data, and access at flat addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from amos.errors import OperatorError
from amos.ir import BufferLoad, Chain, DType, Operator, Tensor, copy_aligned, dtype, resolve_dtypes
from amos.ir.floats import SCALE, quantize
from amos.ir.limits import dictionary
from amos.ir.padding import check_padding
from amos.ir.store import Store

#: Elements of the result that are converted at once.
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class FlatAccess:
    """An affine access as one address: ``offset + sum(stride * iteration)``.

    Attributes:
        buffer: one-dimensional array, with its padding for a padded access.
        offset: address where all iterations are zero, in elements.
    """

    buffer: np.ndarray
    offset: int
    strides: Mapping[str, int]

    @staticmethod
    def of(load: BufferLoad, array: np.ndarray, extents: Mapping[str, int]) -> FlatAccess:
        """Flatten an access to ``array``, whose shape is the tensor's."""
        bounds = [index.bounds(extents) for index in load.indices]
        before = [max(0, -low) for low, _ in bounds]
        if load.padded:
            after = [
                max(0, high - size + 1)
                for (_, high), size in zip(bounds, load.tensor.shape, strict=True)
            ]
            if any(before) or any(after):
                widths = list(zip(before, after, strict=True))
                array = np.pad(array, widths, constant_values=load.padding)
        offset, strides, step = 0, dict[str, int](), 1
        for d in reversed(range(array.ndim)):
            index = load.indices[d]
            offset += (index.constant + before[d]) * step
            for name, c in index.terms:
                strides[name] = strides.get(name, 0) + c * step
            step *= array.shape[d]
        return FlatAccess(np.ascontiguousarray(array).reshape(-1), offset, strides)

    def at(self, point: Mapping[str, int]) -> FlatAccess:
        """Fix some iterations at the given values."""
        moved = sum(self.strides.get(name, 0) * value for name, value in point.items())
        return replace(self, offset=self.offset + moved)

    def view(self, names: Sequence[str], extents: Mapping[str, int]) -> np.ndarray:
        """View the elements read, one axis for each name; never copies."""
        size = self.buffer.itemsize
        return np.lib.stride_tricks.as_strided(
            self.buffer[self.offset :],
            [extents[n] for n in names],
            [self.strides.get(n, 0) * size for n in names],
        )


def nest_addresses(loops: Iterable[tuple[int, int]]) -> np.ndarray:
    """List the addresses of a loop nest, given by extents and strides, the last one fastest."""
    addresses = np.zeros(1, dtype=np.int64)
    for extent, stride in loops:
        addresses = (addresses[:, None] + np.arange(extent) * stride).reshape(-1)
    return addresses


def check_inputs(op: Operator | Chain, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert the inputs to arrays of the shapes and dtypes of an operator or a chain.

    A dtype that NumPy lacks is held in its container (bfloat16 in float32); an
    open dtype takes any integer or floating-point array.

    Raises:
        OperatorError: a name, shape or dtype differs from the expected one, or a padding value
            is none of an array's.
    """
    inputs = dictionary(inputs, f"inputs of {op.name}")
    names = [t.name for t in op.inputs]
    if set(inputs) != set(names):
        raise OperatorError(
            f"inputs of {op.name}: expected {', '.join(names)}, "
            f"got {', '.join(map(str, inputs)) or 'none'}"
        )
    arrays = {tensor.name: _check_array(op, tensor, inputs[tensor.name]) for tensor in op.inputs}
    for load in op.sources if isinstance(op, Operator) else ():
        if load.padding and load.tensor.dtype is None:
            where = f"padding of {load.tensor.name!r}"
            check_padding(load.padding, dtype(arrays[load.tensor.name].dtype.name), where)
    return arrays


def _check_array(op: Operator | Chain, tensor: Tensor, value: np.ndarray) -> np.ndarray:
    array = np.asarray(value)
    where = f"input {tensor.name!r} of {op.name}"
    if array.shape != tensor.shape:
        raise OperatorError(f"{where}: expected shape {tensor.shape}, got {array.shape}")
    if (scalar := tensor.kind) is None:
        if array.dtype.kind not in "iufb":
            raise OperatorError(f"{where}: expected integers or floats, got {array.dtype}")
        return array.astype(np.uint8) if array.dtype.kind == "b" else array
    if array.dtype != scalar.numpy:
        raise OperatorError(f"{where}: expected dtype {scalar.container}, got {array.dtype}")
    narrow = scalar.is_integer and (scalar.bounds or scalar.bits < 8 * array.itemsize)
    if narrow and (violation := scalar.find_violation(array)):
        raise OperatorError(f"{where}: {violation}")
    return array


def output_dtype(op: Operator, arrays: Mapping[str, np.ndarray]) -> np.dtype:
    """Return the dtype of the result.

    An open one is that in which such products usually accumulate; a statement that sums no
    products keeps its own.
    """
    declared = op.output.tensor.dtype
    if declared is not None:
        return dtype(declared).numpy
    joint = np.result_type(*arrays.values())
    if not op.compute.sums_products:
        return joint
    try:
        return dtype(str(resolve_dtypes(joint.name, 1)[-1])).numpy
    except OperatorError:  # a NumPy dtype without a name in AMOS
        return joint


def write_output(
    op: Operator, values: np.ndarray, kind: np.dtype, stored: Store | None = None
) -> np.ndarray:
    """Put each spatial point's value at its place in an output of zeros.

    Args:
        values: an axis for each spatial iteration, of extent 1 where values do not depend on it.
        stored: the access to store to; the operator's output if omitted.
    """
    out = np.zeros((stored or op.output).tensor.shape, kind)
    if stored is not None and stored.digits:
        steps = np.ogrid[tuple(slice(0, it.extent) for it in op.spatial)]
        at = stored.at({it.name: step for it, step in zip(op.spatial, steps, strict=True)})
        out[tuple(at)] = values.astype(kind)
        return out
    flat = FlatAccess.of(stored or op.output, out, op.extents)
    view = np.atleast_1d(flat.view([it.name for it in op.spatial], op.extents))
    values = np.broadcast_to(values, view.shape)
    # Some rows at a time: a whole copy in 64 bits may exceed all other memory in use.
    step = max(1, _AT_ONCE // prod(view.shape[1:]))
    for start in range(0, len(view), step):
        some = values[start : start + step]
        if kind.kind in "iu" and some.dtype.kind == "f":
            some = some.astype(np.int64)
        view[start : start + step] = some.astype(kind)
    return flat.buffer.reshape(out.shape)


def initialize_output(op: Operator, work: np.dtype) -> np.ndarray:
    """Make the output before the first call: accumulators are neutral, other elements zero."""
    out = np.zeros(op.output.tensor.shape, work)
    start = op.compute.neutral(op.output.tensor.dtype or work.name)
    if start:
        flat = FlatAccess.of(op.output, out, op.extents)
        flat.view([it.name for it in op.spatial], op.extents)[...] = start
        out = flat.buffer.reshape(out.shape)
    return out


def wide_dtype(arrays: Mapping[str, np.ndarray]) -> np.dtype:
    """Return the dtype to accumulate in: int64, which wraps around, or float64."""
    is_integer = all(a.dtype.kind in "iu" for a in arrays.values())
    return np.dtype(np.int64 if is_integer else np.float64)


def random_inputs(op: Operator | Chain, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw generic data for every input: integers over their full range, small floats.

    Floats are multiples of 1/64 within ±2 (1/8 within ±1 in eight bits, powers of two where
    these scale blocks), so that every format holds them exactly and short sums are exact in
    any order. An open dtype is taken as float32. The tensors of an epilogue are drawn over many
    magnitudes, so that scaled sums fall inside the range of the result and outside;
    those of a prologue are small, or large enough to fill a source of integers.
    Each array begins at a cache line, so that timings with them can be compared.
    """
    statement = None if isinstance(op, Chain) else op
    loads = statement.sources if statement else ()
    source_names = {load.tensor.name for load in loads} or {tensor.name for tensor in op.inputs}
    prologues = statement.prologues if statement else ()
    prologue_of = {tensor.name: each for each in prologues for tensor in each.tensors}

    def draw(tensor: Tensor) -> np.ndarray:
        scalar = tensor.kind or dtype("float32")
        if scalar.bounds is None and tensor.name in prologue_of:
            is_integer = dtype(prologue_of[tensor.name].dtype).is_integer
            return _draw_before(tensor.shape, scalar, 16 if is_integer else 1, rng)
        if scalar.bounds is None and tensor.name not in source_names and scalar.bits > 8:
            return _draw_magnitudes(tensor.shape, scalar, rng)
        if scalar.is_integer:
            low, high = scalar.limits
            return rng.integers(low, high, tensor.shape, scalar.numpy, endpoint=True)
        if scalar.name == SCALE:
            return 2.0 ** rng.integers(-3, 4, tensor.shape).astype(scalar.numpy)
        top, unit = (8, 8.0) if scalar.bits == 8 else (128, 64.0)
        values = rng.integers(-top, top, tensor.shape, endpoint=True) / unit
        return values.astype(scalar.numpy)

    return {tensor.name: copy_aligned(draw(tensor)) for tensor in op.inputs}


def _draw_before(
    shape: tuple[int, ...], kind: DType, largest: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw multiples of 1/8 up to ``largest``, whose products are exact; integers up to 256."""
    if kind.is_integer:
        low, high = np.clip(kind.limits, -256, 256)
        return rng.integers(low, high, shape, kind.numpy, endpoint=True)
    values = rng.integers(-8 * largest, 8 * largest, shape, endpoint=True) / 8
    return values.astype(kind.numpy)


def _draw_magnitudes(shape: tuple[int, ...], kind: DType, rng: np.random.Generator) -> np.ndarray:
    """Draw floats from 2**-18 to 4, mostly positive, or integers below 2**(bits / 2)."""
    if kind.is_integer:
        low, high = replace(kind, bits=kind.bits // 2).limits
        return rng.integers(low, high, shape, kind.numpy, endpoint=True)
    values = rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-18, 2, shape)
    signs = np.where(rng.random(shape) < 0.25, -1, 1)
    return quantize((values * signs).astype(np.float32), kind.name)
