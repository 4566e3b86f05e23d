"""What an operator means, computed by NumPy: the reference of every comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from amos.validate.buffers import FlatAccess, check_inputs, output_dtype
from amos.validate.epilogue import finish

if TYPE_CHECKING:
    from amos.ir import Operator

__all__ = ["evaluate"]

#: Largest unfolded source (im2col) that is built at once, in elements; beyond it
#: window iterations become Python loops around smaller products.
_UNFOLD = 1 << 25

#: Elements of the result that are converted at once.
_AT_ONCE = 1 << 22

Labelled = tuple[np.ndarray, tuple[str, ...]]


def evaluate(op: Operator, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Run an operator on arrays.

    Integers are exact, wrapping around only where the output's dtype does;
    floats are accumulated in float64 and rounded once. Elements of the output
    that the operator does not write are zero. An open dtype is the array's; an
    open output has the usual accumulator of the sources (int8 → int32). The
    epilogue, if there is one, is applied to the result.

    Args:
        op: the operator.
        inputs: an array for each input tensor, by name.

    Returns:
        array of the output's shape and dtype.

    Raises:
        OperatorError: an input is missing, or its shape or dtype is another.
    """
    given = check_inputs(op, inputs)
    arrays = {load.tensor.name: given[load.tensor.name] for load in op.sources}
    work = _work_dtype(op, arrays)
    # One conversion for each tensor, before windows multiply its elements.
    wide = {name: array.astype(work, copy=False) for name, array in arrays.items()}
    access = [FlatAccess.of(load, wide[load.tensor.name], op.extents) for load in op.sources]
    spatial = tuple(it.name for it in op.spatial)
    total: np.ndarray | None = None
    own: np.ndarray | None = None
    with np.errstate(over="ignore", invalid="ignore"):
        for views in _slices(op, access):
            part, names = _contract(views, spatial)
            part = _spread(part, names, spatial)
            # The first part may be a view of an input; sums are our own.
            total = part if total is None else (own := np.add(total, part, out=own))
        assert total is not None
        return finish(op, _write(op, total, output_dtype(op, arrays)), given)


def _work_dtype(op: Operator, arrays: Mapping[str, np.ndarray]) -> np.dtype:
    """The fastest dtype that is exact; products in floats run on BLAS."""
    if any(a.dtype.kind == "f" for a in arrays.values()):
        return np.dtype(np.float64)
    bound = 1
    for it in op.reduce:
        bound *= it.extent
    for load in op.sources:
        array = arrays[load.tensor.name]
        # At least 1, so that the bound also covers products of fewer sources.
        bound *= max(1, abs(int(array.min())), abs(int(array.max())))
    if bound < 1 << 24:
        return np.dtype(np.float32)
    return np.dtype(np.float64 if bound < 1 << 53 else np.int64)


def _slices(op: Operator, access: Sequence[FlatAccess]) -> Iterator[list[Labelled]]:
    """The sources as views, in as few parts as memory allows.

    A source read through a window (``p + r``) has more views of its elements
    than elements; looping over ``r`` leaves it at its own size.
    """
    extents = op.extents
    names = [tuple(n for n in extents if n in load.names) for load in op.sources]
    shared = {
        n for load in op.sources for index in load.indices if len(index.names) > 1
        for n in index.names
    }  # fmt: skip
    windows = sorted((it.name for it in op.reduce if it.name in shared), key=extents.__getitem__)
    loops: list[str] = []

    def size() -> int:
        sizes = [[extents[n] for n in each if n not in loops] for each in names]
        return max(int(np.prod(s, dtype=object)) for s in sizes)

    while windows and size() > _UNFOLD:
        loops.append(windows.pop())
    for point in product(*(range(extents[n]) for n in loops)):
        views = []
        for each, flat in zip(names, access, strict=True):
            kept = tuple(n for n in each if n not in loops)
            start = sum(flat.strides.get(n, 0) * v for n, v in zip(loops, point, strict=True))
            moved = FlatAccess(flat.buffer, flat.offset + start, flat.strides)
            # A loop over an iteration that another source lacks adds the same
            # factor each time, which is what the sum over it means.
            views.append((moved.view(kept, extents), kept))
        yield views


def _contract(sources: list[Labelled], spatial: tuple[str, ...]) -> Labelled:
    """Multiply all sources and sum over everything that is not spatial."""
    result = sources[0]
    for m, source in enumerate(sources[1:], 1):
        later = {n for _, names in sources[m + 1 :] for n in names}
        result = _multiply(result, source, later.union(spatial))
    return _sum_out(result, set(spatial))


def _sum_out(a: Labelled, keep: set[str]) -> Labelled:
    array, names = a
    axes = tuple(i for i, n in enumerate(names) if n not in keep)
    kept = tuple(n for n in names if n in keep)
    return (array.sum(axis=axes, dtype=array.dtype) if axes else array), kept


def _multiply(a: Labelled, b: Labelled, keep: set[str]) -> Labelled:
    """Product of two labelled arrays, summed over the names not kept."""
    a, b = _sum_out(a, keep.union(b[1])), _sum_out(b, keep.union(a[1]))
    batch = tuple(n for n in a[1] if n in b[1] and n in keep)
    inner = tuple(n for n in a[1] if n in b[1] and n not in keep)
    left = tuple(n for n in a[1] if n not in b[1])
    right = tuple(n for n in b[1] if n not in a[1])
    names = batch + left + right
    if not inner:
        return _spread(*a, names) * _spread(*b, names), names
    size = dict(zip(a[1], a[0].shape, strict=True)) | dict(zip(b[1], b[0].shape, strict=True))

    def fold(part: Labelled, *groups: tuple[str, ...]) -> np.ndarray:
        axes = [part[1].index(n) for group in groups for n in group]
        shape = [int(np.prod([size[n] for n in group], dtype=np.int64)) for group in groups]
        return part[0].transpose(axes).reshape(shape)

    one, two = fold(a, batch, left, inner), fold(b, batch, inner, right)
    if one.shape[1] == two.shape[2] == 1:
        result = np.einsum("bik,bkj->bij", one, two)
    else:
        result = np.matmul(one, two)
    return result.reshape([size[n] for n in names]), names


def _spread(array: np.ndarray, names: tuple[str, ...], onto: tuple[str, ...]) -> np.ndarray:
    """Axes in the order of ``onto``, with extent 1 where the array has none."""
    axes = [names.index(n) for n in onto if n in names]
    lengths = iter([array.shape[i] for i in axes])
    return array.transpose(axes).reshape([next(lengths) if n in names else 1 for n in onto])


def _write(op: Operator, values: np.ndarray, kind: np.dtype) -> np.ndarray:
    """Put each spatial point's value at its place in an output of zeros."""
    out = np.zeros(op.output.tensor.shape, kind)
    flat = FlatAccess.of(op.output, out, op.extents)
    view = np.atleast_1d(flat.view([it.name for it in op.spatial], op.extents))
    values = np.broadcast_to(values, view.shape)
    # Some rows at a time: a whole copy in 64 bits may be larger than all the rest.
    step = max(1, _AT_ONCE // prod(view.shape[1:]))
    for start in range(0, len(view), step):
        some = values[start : start + step]
        if kind.kind in "iu" and some.dtype.kind == "f":
            some = some.astype(np.int64)
        view[start : start + step] = some.astype(kind)
    return flat.buffer.reshape(out.shape)
