"""What the text of an epilogue or a prologue means, at every point: a half of the oracle."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.fuzz.oracle import (
    LIMITS,
    Evaluated,
    Tokens,
    Values,
    access_of,
    grid_of,
    read,
    round_bfloat16,
)

__all__ = ["Finished", "finish", "left", "source"]


def _wrapped(value: np.ndarray) -> np.ndarray:
    return np.asarray(np.int64(value).astype(np.int32).astype(np.int64))


_CASTS = {"u8": "uint8", "s8": "int8", "s16": "int16", "s32": "int32"}
_CASTS |= {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2))))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


_erf = np.vectorize(math.erf, otypes=[np.float64])
#: Functions that are told to be so many ulp off at most, of the result or of the argument.
_NEARLY: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp": (np.exp, 1),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 2.5),
    "silu": (lambda x: x / (1 + np.exp(-x)), 3.5),
    "tanh": (np.tanh, 6),
    "erf": (_erf, 6),
    "gelu": (_gelu, 3),
    "gelu_tanh": (_gelu_tanh, 3),
}


@dataclass(frozen=True)
class Finished:
    """What is stored.

    Attributes:
        output: the tensor.
        defined: where the oracle says anything, which of infinities it does not.
        kind: dtype of the tensor.
        tolerance: how far each element may be off.
    """

    output: np.ndarray
    defined: np.ndarray
    kind: str
    tolerance: np.ndarray


class _Expression:
    """An expression at every point: ``int32`` as int64 that is wrapped, or float32."""

    def __init__(self, text: str, grid: Values, arrays: Values, acc: np.ndarray) -> None:
        self.tokens, self.grid, self.arrays, self.acc = Tokens(text), grid, arrays, acc
        self.finite = np.ones(self.acc.shape, bool)
        self.tolerance = np.zeros(self.acc.shape)

    def keep(self, value: np.ndarray) -> np.ndarray:
        if value.dtype == np.int64:
            return _wrapped(value)
        self.finite = self.finite & np.isfinite(value)
        return value

    @staticmethod
    def same(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if left.dtype == right.dtype:
            return left, right
        return left.astype(np.float32), right.astype(np.float32)

    def sum(self) -> np.ndarray:
        value = self.product()
        while self.tokens.next in ("+", "-"):
            sign = self.tokens.take()
            left, right = self.same(value, self.product())
            value = self.keep(left + right if sign == "+" else left - right)
        return value

    def product(self) -> np.ndarray:
        value = self.atom()
        while self.tokens.next in ("*", "/"):
            if self.tokens.take() == "*":
                left, right = self.same(value, self.atom())
                value = self.keep(left * right)
            else:
                value = self.quotient(value, self.atom())
        return value

    def quotient(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return self.keep(left.astype(np.float32) / right.astype(np.float32))

    def atom(self) -> np.ndarray:
        token = self.tokens.take()
        if token == "-":
            if self.tokens.next[0].isdigit():
                return np.asarray(-self.atom())
            value = self.atom()
            return self.keep(np.zeros((), value.dtype) - value)
        if token == "(":
            value = self.sum()
            self.tokens.take(")")
            return value
        if token[0].isdigit():
            return np.asarray(int(token)) if token.isdigit() else np.asarray(np.float32(token))
        if token == "acc" and self.tokens.next != "[":
            return self.acc
        if self.tokens.next == "[":
            self.tokens.rest.insert(0, token)
            access = access_of(self.tokens, self.grid)
            array = self.arrays[access.name]
            return read(access, array, np.int64 if array.dtype.kind in "iu" else np.float32)
        return self.call(token)

    def call(self, name: str) -> np.ndarray:
        self.tokens.take("(")
        values = [self.sum()]
        while self.tokens.accept(","):
            values.append(self.sum())
        self.tokens.take(")")
        return self.function(name, values)

    def function(self, name: str, values: list[np.ndarray]) -> np.ndarray:
        if name in _CASTS:
            return self.cast(values[0], _CASTS[name])
        if name in _NEARLY:
            return self.nearly(name, values[0].astype(np.float32))
        first, zero = values[0], np.asarray(0)
        if name == "relu":
            return self.function("max", [first, zero])
        if name == "abs":
            return self.function("max", [first, self.keep(np.zeros((), first.dtype) - first)])
        if name in ("clip", "clamp"):
            kind = np.result_type(*(v.dtype if v.dtype != np.int64 else np.int8 for v in values))
            if kind == np.float32:
                values = [v.astype(np.float32) for v in values]
            return self.function("min", [self.function("max", values[:2]), values[2]])
        if name == "round":
            return first if first.dtype == np.int64 else np.asarray(np.rint(first))
        if name in ("sqrt", "rsqrt"):
            root = self.keep(np.sqrt(first.astype(np.float32)))
            return root if name == "sqrt" else self.quotient(np.asarray(1), root)
        if name in ("hardsigmoid", "hardswish"):
            single = first.astype(np.float32)
            moved = np.clip(self.keep(single + np.float32(3)), np.float32(0), np.float32(6))
            share = self.quotient(moved, np.asarray(6))
            return share if name == "hardsigmoid" else self.keep(single * share)
        left, right = self.same(*values)
        better: Callable[..., np.ndarray] = np.greater if name == "max" else np.less
        return np.where(better(left, right), left, right)

    def cast(self, value: np.ndarray, kind: str) -> np.ndarray:
        """A value of a dtype, as ``int32`` or ``float32``."""
        if kind in LIMITS:
            low, high = LIMITS[kind]
            whole = value if value.dtype == np.int64 else np.rint(value.astype(np.float64))
            return np.asarray(np.clip(np.nan_to_num(whole), low, high)).astype(np.int64)
        single: np.ndarray = value.astype(np.float32)
        if kind == "float16":
            single = single.astype(np.float16).astype(np.float32)
        return self.keep(round_bfloat16(single) if kind == "bfloat16" else single)

    def nearly(self, name: str, value: np.ndarray) -> np.ndarray:
        """A function that has to stand outermost, since what it is off by would grow."""
        exact, ulps = _NEARLY[name]
        with np.errstate(over="ignore", under="ignore"):
            result = np.asarray(exact(value.astype(np.float64)))
        off_by = value if name.startswith("gelu") else result.astype(np.float32)
        # Beside the rounding of the expected result: half an ulp. A factor below the normal
        # numbers is off by a share of their step, times the argument.
        ulp = np.spacing(np.maximum(np.abs(off_by), np.float32(2.0**-126))).astype(np.float64)
        below = 2.0**-148 * (1 + np.abs(value.astype(np.float64)))
        self.tolerance = self.tolerance + (ulps + 0.5) * ulp + below
        return self.keep(result.astype(np.float32))

    def stored(self) -> tuple[np.ndarray, str]:
        """Values, and the dtype of the result."""
        name, rest = self.tokens.next, list(self.tokens.rest)
        value = self.sum()
        self.tokens.take("")
        if name in _CASTS and rest[1] == "(" and _closes(rest):
            return value, _CASTS[name]
        return value, "int32" if value.dtype == np.int64 else "float32"


def _closes(tokens: list[str]) -> bool:
    """Whether the parenthesis after the first token ends with the text."""
    depth = 0
    for at, token in enumerate(tokens[1:], 1):
        depth += (token == "(") - (token == ")")
        if depth == 0:
            return tokens[at + 1] == ""
    return False


def finish(
    text: str,
    state: Evaluated,
    arrays: Values,
    kind: str,
    output: str = "",
    shape: Sequence[int] = (),
) -> Finished:
    """Apply an epilogue, and store what it gives.

    Args:
        text: the epilogue, or nothing.
        state: accumulators.
        arrays: an array for each of its tensors.
        kind: dtype of the accumulators.
        output: the access that is stored to; the statement's own if it is empty.
        shape: shape of its tensor.
    """
    wide = np.int64 if kind in LIMITS else np.float32
    acc = state.output[state.at]
    run = _Expression(text, state.grid, arrays, acc.astype(wide) if text else acc)
    at, sizes = state.at, state.output.shape
    if output:
        at = access_of(Tokens(output), state.grid).indices
        sizes = tuple(shape)
    with np.errstate(over="ignore", invalid="ignore"):
        value, final = run.stored() if text else (acc, kind)
        out = np.zeros(sizes, ("float32" if final == "bfloat16" else final) if text else acc.dtype)
        defined = np.ones(out.shape, bool)
        values = np.broadcast_to(value, run.finite.shape)
        out[at] = values if at else values.flat[0]
        np.logical_and.at(defined, at, run.finite if at else run.finite.all())
        tolerance = np.zeros(out.shape)
        tolerance[at] = run.tolerance if at else run.tolerance.max()
    return Finished(out, defined, final, tolerance)


def left(output: str, grid: Values, shape: Sequence[int]) -> np.ndarray:
    """Where an access to a tensor of such a shape stores nothing."""
    mask = np.ones(tuple(shape), bool)
    mask[access_of(Tokens(output), grid).indices] = False
    return mask


def source(
    head: str, text: str, arrays: Values, shape: Sequence[int], kind: str
) -> tuple[np.ndarray, bool]:
    """A source of a statement that is computed of other tensors.

    Args:
        head: its name and those of its dimensions: ``a[i, j]``.
        text: what it is computed by.
        arrays: an array for each tensor of the text.
        shape: shape of the source.
        kind: its dtype.

    Returns:
        its elements, and whether every step on the way to them was finite.
    """
    names = re.findall(r"\w+", head)[1:]
    grid = grid_of(dict(zip(names, shape, strict=True)))
    run = _Expression(text, grid, arrays, np.zeros(int(np.prod(shape))))
    with np.errstate(over="ignore", invalid="ignore"):
        value = np.broadcast_to(run.cast(run.stored()[0], kind), run.finite.shape)
    return np.array(value).reshape(tuple(shape)), bool(run.finite.all())
