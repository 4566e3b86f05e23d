"""Results of PyTorch's models held against PyTorch's own."""

from __future__ import annotations

from collections.abc import Set
from itertools import chain
from typing import Any

import numpy as np

from amos.errors import NetworkError
from amos.measure.reference import compare_arrays
from amos.network.frontend import plain_session
from amos.network.model import tolerance_of
from amos.network.pytorch.programs import Translation
from amos.network.pytorch.samples import draw_inputs

#: Operators that round to integers, of which one and the next are both right.
_ROUNDING = frozenset(["Cast", "DynamicQuantizeLinear", "QuantizeLinear"])


def array_of_tensor(tensor: Any) -> np.ndarray:
    """A tensor as an array: bfloat16, which NumPy does not have, as float32."""
    import torch

    exact = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return np.ascontiguousarray(exact.numpy(force=True))


def operators_of(model: Any) -> frozenset[str]:
    """The types of operators in an ONNX model."""
    return frozenset(node.op_type for node in model.graph.node)


def check_tensor(result: Any, expected: Any, operators: Set[str], rounded: bool = False) -> None:
    """Hold a result against PyTorch's.

    Args:
        result: an array or a tensor.
        expected: PyTorch's tensor.
        operators: of the model, by the names of ONNX.
        rounded: whether factors of products were rounded to ``bfloat16``.

    Raises:
        NetworkError: it is another one.
    """
    values = np.asarray(result) if isinstance(result, np.ndarray) else array_of_tensor(result)
    right = array_of_tensor(expected)
    if values.shape != right.shape:
        raise NetworkError(f"its result has shape {values.shape}, PyTorch's {right.shape}")
    if values.dtype != right.dtype:
        raise NetworkError(f"its result is {values.dtype}, PyTorch's {right.dtype}")
    dtype = str(expected.dtype).removeprefix("torch.")
    # Levels of 8 bits that are rounded apart are as far apart as numbers of bfloat16.
    rounded |= any("QuantizeLinear" in name for name in operators)
    kind = "bfloat16" if rounded and "float" in dtype else dtype
    limit = tolerance_of(kind, right, bool(operators & _ROUNDING))
    difference, strange = compare_arrays(values, right)
    if strange or not difference <= limit:
        raise NetworkError(
            f"its result differs from PyTorch's by {difference:g}, {limit:g} is allowed"
        )


def check_translation(translation: Translation, name: str) -> None:
    """Hold an exported model, where onnxruntime takes it, against PyTorch.

    Its examples and random inputs are compared: PyTorch's exporter drops some arguments.

    Raises:
        NetworkError: it computes something else.
    """
    examples = translation.examples
    try:
        session = plain_session(translation.model)
        names = [port.name for port in session.get_inputs()]
        session.run(None, dict(zip(names, map(array_of_tensor, examples), strict=True)))
    except Exception:  # onnxruntime raises types of its own
        return
    operators = operators_of(translation.model)
    samples = chain([(examples, translation.run(examples))], draw_inputs(examples, translation.run))
    for tensors, expected in samples:
        values = dict(zip(names, map(array_of_tensor, tensors), strict=True))
        try:
            for result, right in zip(session.run(None, values), expected, strict=True):
                check_tensor(np.asarray(result), right, operators)
        except NetworkError as error:
            raise NetworkError(f"{name}: PyTorch exports it to ONNX wrongly: {error}") from None
