"""The meaning of an operator, computed by NumPy: the reference of every comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from amos.ir import Chain, Operator
from amos.ir.combining import function
from amos.validate.buffers import FlatAccess, check_inputs, output_dtype, wide_dtype, write_output
from amos.validate.chain import evaluate_chain
from amos.validate.epilogue import finish, source_values

#: Largest unfolded source (im2col) that is built at once, in elements; beyond it
#: window iterations become Python loops around smaller products.
_UNFOLD = 1 << 25


def evaluate(op: Operator | Chain, inputs: Mapping[str, np.ndarray]) -> Any:
    """Run an operator on arrays, or a chain statement by statement.

    Integers are exact, wrapping around only where the output's dtype does;
    floats are accumulated in float64 and rounded once. Elements of the output
    that the operator does not write are zero. An open dtype is the array's; an
    open output has the usual accumulator of the sources (int8 → int32). The
    epilogue, if there is one, is applied to the result. Other statements than sums of
    products compute by :mod:`amos.ir.combining`.

    Args:
        inputs: an array for each input tensor, by name.

    Returns:
        array of the result's shape and dtype; a tuple of them if there are several.

    Raises:
        OperatorError: an input is missing, or its shape or dtype is another.
    """
    if isinstance(op, Chain):
        return evaluate_chain(op, inputs)
    checked = check_inputs(op, inputs)
    arrays = source_values(op, checked)
    work = _work_dtype(op, arrays) if op.compute.sums_products else _exact_dtype(op, arrays)
    # One conversion for each tensor, before windows replicate its elements.
    wide = {name: array.astype(work, copy=False) for name, array in arrays.items()}
    access = [FlatAccess.of(load, wide[load.tensor.name], op.extents) for load in op.sources]
    with np.errstate(over="ignore", invalid="ignore"):
        total = (_sum_products if op.compute.sums_products else _combine)(op, access)
        return finish(op, write_output(op, total, output_dtype(op, arrays)), checked)


def _sum_products(op: Operator, access: Sequence[FlatAccess]) -> np.ndarray:
    """Sum products, with an axis for each spatial iteration."""
    axes = {name: axis for axis, name in enumerate(op.extents)}
    read = frozenset[str]().union(*(load.names for load in op.sources))
    result = [axes[it.name] for it in op.spatial if it.name in read]
    total: np.ndarray | None = None
    for views in _slices(op, access):
        operands = [each for view, names in views for each in (view, [axes[n] for n in names])]
        summed = np.einsum(*operands, result, optimize=True)
        total = summed if total is None else total + summed
    assert total is not None
    return total.reshape([it.extent if it.name in read else 1 for it in op.spatial])


def _combine(op: Operator, access: Sequence[FlatAccess]) -> np.ndarray:
    """Compute a statement that sums no products, with an axis for each spatial iteration.

    Reductions are combined in NumPy as far as memory allows, beginning with the longest.
    """
    compute, read = op.compute, frozenset[str]().union(*(load.names for load in op.sources))
    axes = [it.name for it in op.spatial if it.name in read]
    summed = sorted((it.name for it in op.reduce), key=op.extents.__getitem__)
    loops: list[str] = []
    while summed and prod(op.extents[n] for n in [*axes, *summed]) > _UNFOLD:
        loops.append(summed.pop(0))
    kind = output_dtype(op, {str(n): each.buffer for n, each in enumerate(access)})
    total: np.ndarray | None = None
    for point in product(*(range(op.extents[n]) for n in loops)):
        views = [flat.at(dict(zip(loops, point, strict=True))) for flat in access]
        values = [view.view([*axes, *summed], op.extents) for view in views]
        joined = reduce(function(compute.join).ufunc, values)
        if not compute.accumulates:
            total = joined
            continue
        combiner = function(compute.combiner)
        if combiner.ordered and kind.kind in "iu":
            joined = joined.astype(kind).astype(joined.dtype)
        joined = combiner.ufunc.reduce(joined, axis=tuple(range(len(axes), joined.ndim)))
        total = joined if total is None else combiner.ufunc(total, joined)
    assert total is not None
    return np.reshape(total, [it.extent if it.name in read else 1 for it in op.spatial])


def _exact_dtype(op: Operator, arrays: Mapping[str, np.ndarray]) -> np.dtype:
    """Return the sources' dtype if it rounds or wraps at most once, or else a wide one."""
    kinds = {array.dtype for array in arrays.values()} | {output_dtype(op, arrays)}
    functions = {op.compute.combiner, *([op.compute.join] if len(op.sources) > 1 else [])}
    compared = functions <= {"", "max", "min"}
    once = len(op.sources) == 2 and not op.compute.accumulates
    if len(kinds) == 1 and (compared or once):
        return kinds.pop()
    return wide_dtype(arrays)


def _work_dtype(op: Operator, arrays: Mapping[str, np.ndarray]) -> np.dtype:
    """Return the fastest dtype that is exact; products in floats run on BLAS."""
    if any(a.dtype.kind == "f" for a in arrays.values()):
        return np.dtype(np.float64)
    bound = prod(it.extent for it in op.reduce)
    for load in op.sources:
        array = arrays[load.tensor.name]
        # At least 1, so that the bound also covers products of fewer sources.
        bound *= max(1, abs(int(array.min())), abs(int(array.max())), abs(int(load.padding)))
    if bound < 1 << 24:
        return np.dtype(np.float32)
    return np.dtype(np.float64 if bound < 1 << 53 else np.int64)


def _slices(
    op: Operator, access: Sequence[FlatAccess]
) -> Iterator[list[tuple[np.ndarray, tuple[str, ...]]]]:
    """Yield views of the sources with the names of their axes, in few parts that fit in memory.

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
        sizes = [[extents[n] for n in names_of_load if n not in loops] for names_of_load in names]
        return max(map(prod, sizes))

    while windows and size() > _UNFOLD:
        loops.append(windows.pop())
    for point in product(*(range(extents[n]) for n in loops)):
        views = []
        for names_of_load, flat in zip(names, access, strict=True):
            axes = tuple(n for n in names_of_load if n not in loops)
            # A loop over an iteration that another source lacks adds the same
            # factor each time, which is what the sum over it means.
            moved = flat.at(dict(zip(loops, point, strict=True)))
            views.append((moved.view(axes, extents), axes))
        yield views
