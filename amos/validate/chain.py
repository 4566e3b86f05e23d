"""Reference semantics of chains, computed by NumPy statement by statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from amos.ir import Affine, Assignment, BufferLoad, Chain, dtype
from amos.ir.chain import Step
from amos.ir.transforms import Transform
from amos.validate.buffers import check_inputs
from amos.validate.epilogue import apply_epilogue, expression_values, round_values

_COMBINED = {"+": np.add, "max": np.maximum, "min": np.minimum}


def evaluate_assignment(
    step: Assignment, arrays: Mapping[str, np.ndarray], origin: Mapping[str, int] | None = None
) -> np.ndarray:
    """Evaluate an assignment; the result has an axis for each spatial iteration.

    Sums are of float64, or of int32 that wraps around, and are rounded once.
    """
    values = expression_values(step.expression, step.extents, arrays, origin)
    final = dtype(str(step.output.tensor.dtype))
    with np.errstate(all="ignore"):
        if step.combiner:
            axes = tuple(range(len(step.spatial), len(step.iterations)))
            wide = np.float64 if values.dtype.kind == "f" and step.combiner == "+" else values.dtype
            kind = values.dtype
            values = _COMBINED[step.combiner].reduce(values.astype(wide), axis=axes).astype(kind)
        return round_values(values, final.name)


def evaluate_transform(step: Transform, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Evaluate a transform by literals; their zeros contribute nothing, not even NaN.

    Sums are of float64, rounded once, or of integers that wrap around.
    """
    target, own = step.output, step.extents
    names = [name for name in own if name in step.source.names]
    is_integer = dtype(step.sum_dtype).is_integer
    wide: Any = np.int64 if is_integer else np.float64
    values = expression_values(step.expression, {name: own[name] for name in names}, arrays)
    values = values.astype(wide)
    with np.errstate(all="ignore"):
        for literal in reversed(step.literals):
            axis = names.index(literal.column)
            columns = np.moveaxis(values, axis, 0)
            rows = [
                sum(
                    (wide(x) * columns[n] for n, x in enumerate(row) if x),
                    np.zeros_like(columns[0]),
                )
                for row in literal.values
            ]
            values = np.moveaxis(np.stack(rows), 0, axis)
            names[axis] = literal.row
        values = values.astype(step.sum_dtype)
    spatial = [it.name for it in step.spatial]
    values = values.transpose([names.index(n) for n in spatial if n in names])
    values = values.reshape([own[n] if n in names else 1 for n in spatial])
    sums = np.zeros(target.tensor.shape, values.dtype)
    *places, values = np.broadcast_arrays(*_places(target, spatial, own), values)
    pairs = zip(places, sums.shape, strict=True)
    is_within = np.logical_and.reduce([place < size for place, size in pairs])
    sums[tuple(place[is_within] for place in places)] = values[is_within]
    if step.epilogue is None:
        return round_values(sums, str(target.tensor.dtype))
    axes = {index: Affine(((f"axis{n}", 1),)) for n, index in enumerate(target.indices)}
    epilogue = step.epilogue.with_loads(
        lambda x: replace(x, indices=tuple(axes.get(i, i) for i in x.indices))
    )
    extents = {f"axis{n}": size for n, size in enumerate(sums.shape)}
    return apply_epilogue(epilogue, sums, step.sum_dtype, extents, arrays)


def _places(load: BufferLoad, names: Sequence[str], extents: Mapping[str, int]) -> list[np.ndarray]:
    """Return the indices of an access at all points of some loops, an axis for each loop."""
    shape = tuple(extents[name] for name in names)
    at = dict(zip(names, np.ogrid[tuple(map(slice, shape))], strict=True))
    places = (np.asarray(index.evaluate(at)) for index in load.indices)
    return [np.broadcast_to(place, shape) for place in places]


def run_step(
    step: Step, arrays: Mapping[str, np.ndarray], origin: Mapping[str, int] | None = None
) -> np.ndarray:
    """Evaluate a product or an assignment on arrays."""
    from amos.validate.semantics import evaluate

    if isinstance(step, Transform):
        return evaluate_transform(step, arrays)
    if isinstance(step, Assignment):
        return evaluate_assignment(step, arrays, origin)
    result = evaluate(step, {tensor.name: arrays[tensor.name] for tensor in step.inputs})
    return np.asarray(result)


def evaluate_chain(chain: Chain, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Run a chain on arrays, statement by statement; each result is rounded to its dtype.

    Raises:
        OperatorError: an input is missing, or its shape or dtype is another.
    """
    arrays = check_inputs(chain, inputs)
    for step in chain.steps:
        arrays[step.output.tensor.name] = run_step(step, arrays)
    return arrays[chain.result.name]
