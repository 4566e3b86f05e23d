"""Comparison of results with those of PyTorch, on the inputs of a call and on random ones.

A call may bring zeros, of which much that is wrong makes zeros as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from itertools import chain
from typing import Any

import numpy as np

from amos.errors import NetworkError
from amos.measure.reference import compare_arrays
from amos.network.checks import tolerance_of
from amos.network.packages import torch
from amos.network.pytorch.programs import Translation
from amos.network.reading.branches import operators_of
from amos.network.sessions import plain_session

#: Magnitudes of integers: such that products of 32 bits leave the range in which float32 is exact.
_LARGEST = {"int8": 127, "uint8": 255, "int16": 1 << 12, "int32": 1 << 14, "int64": 1 << 24}
#: Of tensors that go in and out as arrays; bfloat16 does as float32.
_DTYPES = frozenset(["bool", "bfloat16", "float16", "float32", "float64"]) | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
#: Standard deviations of floats.
_NARROW, _WIDE = 1.0, 16.0
_SEED = 20220618
#: Operators that round to integers, of which one and the next are both right.
_ROUNDING = frozenset(["Cast", "DynamicQuantizeLinear", "QuantizeLinear"])


def array_of_tensor(tensor: Any) -> np.ndarray:
    """Convert a tensor to an array: bfloat16, which NumPy does not have, as float32."""
    exact = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return np.ascontiguousarray(exact.numpy(force=True))


def check_dtypes(tensors: Sequence[Any]) -> None:
    """Raise NetworkError for tensors that NumPy or onnxruntime cannot hold."""
    for tensor in tensors:
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise NetworkError(f"a tensor of {name}")


def check_tensor(result: Any, expected: Any, operators: Set[str], rounded: bool = False) -> None:
    """Hold a result against PyTorch's.

    Args:
        result: an array or a tensor.
        operators: of the model, by the names of ONNX.
        rounded: whether factors of products were rounded to ``bfloat16``.
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
    """Hold an exported model, where onnxruntime takes it, against PyTorch, or raise NetworkError.

    Its examples and random inputs are compared: PyTorch's exporter drops some arguments.
    """
    examples = translation.examples
    try:
        session = plain_session(translation.model)
        names = [port.name for port in session.get_inputs()]
        session.run(None, dict(zip(names, map(array_of_tensor, examples), strict=True)))
    except Exception:  # onnxruntime raises types of its own
        return
    operators = frozenset(operators_of(translation.model.graph))
    samples = chain([(examples, translation.run(examples))], draw_inputs(examples, translation.run))
    for tensors, expected in samples:
        values = dict(zip(names, map(array_of_tensor, tensors), strict=True))
        try:
            for result, right in zip(session.run(None, values), expected, strict=True):
                check_tensor(np.asarray(result), right, operators)
        except NetworkError as error:
            raise NetworkError(f"{name}: PyTorch exports it to ONNX wrongly: {error}") from None


def draw_inputs(
    inputs: Sequence[Any], evaluate: Callable[[Sequence[Any]], Sequence[Any]]
) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """Draw inputs of the shapes and dtypes of a call; yield them with PyTorch's results.

    Floats are normal, narrow and wide. Integers are drawn over what is useful of their dtype;
    where PyTorch raises for those, as for an index that is too large, over the range of the
    call's own integers; and where it raises again, they are the call's own.
    """
    generator = torch.Generator().manual_seed(_SEED)
    for deviation in (_NARROW, _WIDE):
        for ranges in (_whole_range, _own_range, None):
            drawn = [_tensor(each, deviation, ranges, generator) for each in inputs]
            values = [
                torch.empty_like(example).copy_(tensor)  # with its order of axes in memory
                for example, tensor in zip(inputs, drawn, strict=True)
            ]
            try:
                expected = evaluate(values)
            except Exception:  # PyTorch refuses values with errors of many types
                continue
            yield values, expected
            break


def _tensor(example: Any, deviation: float, ranges: Any, generator: Any) -> Any:
    """Draw a random tensor like another; return anything else as it is."""
    shape, kind = tuple(example.shape), example.dtype
    if kind.is_floating_point:
        return (torch.randn(shape, generator=generator) * deviation).to(kind)
    if kind == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if ranges is None or kind.is_complex:
        return example
    low, high = ranges(example)
    return torch.randint(low, high + 1, shape, generator=generator).to(kind)


def _whole_range(example: Any) -> tuple[int, int]:
    """Return the least and largest integer that is useful for a dtype."""
    name = str(example.dtype).removeprefix("torch.")
    largest = _LARGEST.get(name, _LARGEST["int16"])
    return (0 if name.startswith("uint") else -largest), largest


def _own_range(example: Any) -> tuple[int, int]:
    """Return the least and largest integer of a tensor."""
    return int(example.min()), int(example.max())
