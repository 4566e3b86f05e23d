"""What a chain means, computed by NumPy statement by statement."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from amos.errors import OperatorError
from amos.ir import Assignment, Chain, dtype
from amos.ir.chain import Step
from amos.ir.limits import dictionary
from amos.validate.epilogue import expression_values, rounded_values

_COMBINED = {"+": np.add, "max": np.maximum, "min": np.minimum}


def assigned(
    step: Assignment, arrays: Mapping[str, np.ndarray], origin: Mapping[str, int] | None = None
) -> np.ndarray:
    """The result of an assignment, an axis for each spatial iteration.

    Sums are of float64, or of int32 that wraps around, and are rounded once.

    Args:
        arrays: an array for each tensor that it reads.
        origin: where iterations begin, for those whose value the expression reads.
    """
    values = expression_values(step.expression, step.extents, arrays, origin)
    final = dtype(str(step.output.tensor.dtype))
    with np.errstate(all="ignore"):
        if step.combiner:
            axes = tuple(range(len(step.spatial), len(step.iterations)))
            wide = np.float64 if values.dtype.kind == "f" and step.combiner == "+" else values.dtype
            kind = values.dtype
            values = _COMBINED[step.combiner].reduce(values.astype(wide), axis=axes).astype(kind)
        return rounded_values(values, final.name)


def run_step(
    step: Step, arrays: Mapping[str, np.ndarray], origin: Mapping[str, int] | None = None
) -> np.ndarray:
    """What a product or an assignment computes of arrays."""
    from amos.validate.semantics import evaluate

    if isinstance(step, Assignment):
        return assigned(step, arrays, origin)
    result = evaluate(step, {tensor.name: arrays[tensor.name] for tensor in step.inputs})
    return np.asarray(result)


def evaluate_chain(chain: Chain, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Run a chain on arrays, statement by statement; each result is rounded to its dtype.

    Args:
        inputs: an array for each input tensor, by name.

    Raises:
        OperatorError: an input is missing, or its shape or dtype is another.
    """
    arrays = dict(check_chain_inputs(chain, inputs))
    for step in chain.steps:
        arrays[step.output.tensor.name] = run_step(step, arrays)
    return arrays[chain.result.name]


def check_chain_inputs(chain: Chain, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs as arrays of the chain's shapes and dtypes.

    Raises:
        OperatorError: a name, shape or dtype differs.
    """
    inputs = dictionary(inputs, f"inputs of {chain.name}")
    names = [tensor.name for tensor in chain.inputs]
    if set(inputs) != set(names):
        raise OperatorError(
            f"inputs of {chain.name}: expected {', '.join(names)}, "
            f"got {', '.join(map(str, inputs)) or 'none'}"
        )
    arrays = {}
    for tensor in chain.inputs:
        array, kind = np.asarray(inputs[tensor.name]), dtype(str(tensor.dtype)).numpy
        where = f"input {tensor.name!r} of {chain.name}"
        if array.shape != tensor.shape:
            raise OperatorError(f"{where}: expected shape {tensor.shape}, got {array.shape}")
        if array.dtype != kind:
            raise OperatorError(f"{where}: expected dtype {kind}, got {array.dtype}")
        arrays[tensor.name] = array
    return arrays
