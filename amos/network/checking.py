"""Kernels held against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from amos.errors import NetworkError
from amos.ir import Operator
from amos.measure.reference import References, compared, tolerance
from amos.network.kernels import TaskKernel
from amos.network.model import Check
from amos.operators.cascade import SOURCE, Cascade, argument
from amos.validate import evaluate, random_inputs


def checked_kernel(kernel: TaskKernel, references: References | None = None) -> Check:
    """A kernel held against NumPy on random inputs.

    Args:
        kernel: the kernel.
        references: of earlier ones, which those of the same operator share.

    Raises:
        NetworkError: it computes something else.
    """
    with np.errstate(all="ignore"):  # a sigmoid of a large sum overflows, as it does in the kernel
        return _checked(kernel, references or References())


def _checked(kernel: TaskKernel, references: References) -> Check:
    """The check, whatever NumPy says of values.

    Raises:
        NetworkError: it computes something else.
    """
    operator = kernel.operator
    if isinstance(operator, Cascade):
        inputs, expected, allowed = _example(operator)
    else:
        inputs, (expected,) = references.get(operator)
        allowed = tolerance(operator, expected)
    difference, strange = compared(kernel.run(inputs), expected)
    tiles = kernel.choice.winograd is not None
    if tiles and difference > allowed and isinstance(operator, Operator):
        allowed = max(allowed, _of_sums(operator, inputs))
    if strange or not difference <= allowed:
        raise NetworkError(
            f"the kernel of {operator} on {kernel.choice.instruction} is wrong: it differs "
            f"from NumPy by {difference:g}, {allowed:g} is allowed"
        )
    return Check(f"{operator.name} {operator}", "NumPy", difference, allowed)


def _of_sums(operator: Operator, inputs: dict[str, np.ndarray]) -> float:
    """What the sums of a convolution by tiles may differ by.

    Tiles round more than sums do, and behind a sigmoid results say nothing of their size.
    """
    if not operator.output.tensor.dtype == operator.result_dtype == "float32":
        return 0.0
    sums = replace(operator, epilogue=None)
    accumulators = evaluate(sums, {each.name: inputs[each.name] for each in sums.inputs})
    return tolerance(sums, np.asarray(accumulators))


def _example(cascade: Cascade) -> tuple[dict[str, np.ndarray], np.ndarray, float]:
    """Random inputs, NumPy's result of them, and by how much others may differ from it."""
    rng, inputs, allowed = np.random.default_rng(0), dict[str, np.ndarray](), 0.0
    result = np.empty(0)
    for number, layer in enumerate(cascade.layers):
        values = random_inputs(layer, rng)
        if number:
            values[SOURCE] = result.reshape(values[SOURCE].shape)
        own = {n: v for n, v in values.items() if not number or n != SOURCE}
        inputs |= {argument(number, name): value for name, value in own.items()}
        result = np.asarray(evaluate(layer, values))
        allowed = max(allowed, tolerance(layer, result))
    # What a layer differs by is summed up by those behind it.
    return inputs, result, allowed * len(cascade.layers)
