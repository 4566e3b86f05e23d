"""Small PyTorch modules behind ``torch.compile``, first called with zeros or random values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.case import Refused, Wrong

__all__ = ["module"]

_KINDS = ("float32", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
_NUMBERS = (-3, -1, 0, 2, 7, 0.5, 2.5, -0.3)
_DIVISORS = (-7, -3, 2, 3, 0.5, 2.5, 255.0)
_ROWS, _COLUMNS = 6, 8


def module(rng: np.random.Generator, about: Callable[[str], None]) -> str:
    """A function of two tensors, compiled and compared with PyTorch itself."""
    try:
        import torch
    except ImportError:
        raise Refused("PyTorch is not installed") from None
    kinds = [str(rng.choice(_KINDS)) for _ in range(2)]
    text, zeros = _text(rng), bool(rng.random() < 0.5)
    about(f"lambda x, y: {text}\nx, y: {kinds}; first call with {'zeros' if zeros else 'values'}")
    names = {"torch": torch, "F": torch.nn.functional}
    function = eval(f"lambda x, y: {text}", names)  # noqa: S307 - drawn here
    inputs = [_tensor(rng, torch, kind) for kind in kinds]
    warm = [
        torch.zeros_like(each) if zeros else _tensor(rng, torch, k)
        for each, k in zip(inputs, kinds, strict=True)
    ]
    torch._dynamo.reset()
    _run_whatever_is_faster()
    compiled = torch.compile(function, backend="amos")
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            expected = function(*inputs)
            function(*warm)
        except Exception as error:  # PyTorch refuses dtypes with errors of many types
            raise Refused(str(error)) from None
        compiled(*warm)
        _compare(torch, compiled(*inputs), expected)
    if eager := [str(each.message) for each in caught if "runs eagerly" in str(each.message)]:
        raise Refused(eager[0])
    return "right"


class _Anything(frozenset[str]):
    """Products, among which any operator counts."""

    def __rand__(self, names: object) -> object:
        return names


def _run_whatever_is_faster() -> None:
    """Compile graphs without a product too, and run them where PyTorch or onnxruntime is faster."""
    from amos.network.external.race import Timing
    from amos.network.pytorch import backend
    from amos.network.races import Race

    vars(backend)["PRODUCT_OPERATORS"] = _Anything()
    Race.wins = property(lambda _: True)  # type: ignore[method-assign, assignment]
    Timing.wins = property(lambda timing: not timing.fault)  # type: ignore[method-assign, assignment]


def _tensor(rng: np.random.Generator, torch: Any, kind: str) -> Any:
    shape = (_ROWS, _COLUMNS)
    if kind.startswith("float"):
        return torch.from_numpy(rng.standard_normal(shape) * 3).to(getattr(torch, kind))
    low, high = {"bool": (0, 2), "uint8": (0, 256), "int8": (-128, 128)}.get(kind, (-9999, 9999))
    return torch.from_numpy(rng.integers(low, high, shape)).to(getattr(torch, kind))


def _text(rng: np.random.Generator) -> str:
    """An expression of one or two operators."""
    value = "x"
    for _ in range(int(rng.integers(1, 3))):
        number, divisor = rng.choice(_NUMBERS), float(rng.choice(_DIVISORS))
        divisor = int(divisor) if divisor.is_integer() and divisor != 255 else divisor
        number = int(number) if float(number).is_integer() else float(number)
        value = str(
            rng.choice(
                [
                    f"({value} + {number})",
                    f"({value} * y)",
                    f"({value} - y)" if rng.random() < 0.5 else f"({number} - {value})",
                    f"({value} / {divisor})",
                    f"({value} // {divisor})",
                    f"({value} % {divisor})",
                    f"torch.div({value}, {divisor}, rounding_mode='trunc')",
                    f"({value} > {number})",
                    f"torch.where({value} > {number}, {value}, y)",
                    f"torch.cat([{value}, y])",
                    f"{value}.sum(-1, keepdim=True)",
                    f"{value}.cumsum(0)",
                    f"{value}.clamp({number}, 9)",
                    f"torch.maximum({value}, {value}.flip(0))",
                    f"({value} @ {value}.mT)",
                    f"{value}.softmax(-1, dtype=torch.float32)",
                    f"{value}.abs().sqrt()",
                    f"{value}.argmax(-1)",
                    f"F.dropout({value}.float(), 0.5, False)",
                ]
            )
        )
    return value


def _compare(torch: Any, got: Any, expected: Any) -> None:
    """Refuse another dtype, another shape, another integer, and floats that are far away."""
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise Wrong(f"expected {expected.dtype} of {expected.shape}, got {got.dtype} {got.shape}")
    if not expected.dtype.is_floating_point:
        if wrong := int((got != expected).sum()):
            raise Wrong(f"{wrong} of {expected.numel()} integers differ")
    elif not torch.allclose(got, expected, rtol=1e-4, atol=1e-3, equal_nan=True):
        raise Wrong(f"differs by {(got - expected).abs().max():g}")
