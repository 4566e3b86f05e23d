"""Inputs on which a compiled PyTorch graph is compared: a call's own and random ones.

A call may bring zeros, of which much that is wrong makes zeros as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: Magnitudes of integers: such that products of 32 bits leave the range in which float32 is exact.
_LARGEST = {"int8": 127, "uint8": 255, "int16": 1 << 12, "int32": 1 << 14, "int64": 1 << 24}
#: Standard deviations of floats.
_NARROW, _WIDE = 1.0, 16.0
_SEED = 20220618


def draw_inputs(
    inputs: Sequence[Any], evaluate: Callable[[Sequence[Any]], Sequence[Any]]
) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """Draw inputs of the shapes and dtypes of a call; yield them with PyTorch's results.

    Floats are normal, narrow and wide. Integers are drawn over what is useful of their dtype;
    where PyTorch raises for those, as for an index that is too large, over the range of the
    call's own integers; and where it raises again, they are the call's own.

    Args:
        inputs: tensors of the call.
        evaluate: PyTorch's results of tensors.
    """
    import torch

    generator = torch.Generator().manual_seed(_SEED)
    for deviation in (_NARROW, _WIDE):
        for ranges in (_whole_range, _own_range, None):
            values = [_tensor(each, deviation, ranges, generator) for each in inputs]
            try:
                expected = evaluate(values)
            except Exception:  # PyTorch refuses values with errors of many types
                continue
            yield values, expected
            break


def _tensor(example: Any, deviation: float, ranges: Any, generator: Any) -> Any:
    """A random tensor like another, or that itself."""
    import torch

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
    """The least and largest integer that is useful for a dtype."""
    name = str(example.dtype).removeprefix("torch.")
    largest = _LARGEST.get(name, _LARGEST["int16"])
    return (0 if name.startswith("uint") else -largest), largest


def _own_range(example: Any) -> tuple[int, int]:
    """The least and largest integer of a tensor."""
    return int(example.min()), int(example.max())
