"""What the text of an epilogue or a prologue means, at every point: a half of the oracle."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tests.support.oracle.functions import FUNCTIONS
from tests.support.oracle.statements import (
    LIMITS,
    Evaluated,
    Tokens,
    Values,
    access_of,
    grid_of,
    read,
    round_bfloat16,
)

__all__ = ["Finished", "combined", "finish", "source"]


def _wrapped(value: np.ndarray) -> np.ndarray:
    return np.asarray(np.int64(value).astype(np.int32).astype(np.int64))


_CASTS = {"u8": "uint8", "s8": "int8", "s16": "int16", "s32": "int32"}
_CASTS |= {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


@dataclass(frozen=True)
class Finished:
    """What is stored.

    Attributes:
        output: the tensor.
        defined: where the oracle states a value: not where NaN occurs.
        kind: dtype of the tensor.
        unreached: where nothing is stored, so that memory keeps what it had.
        off: by how much an element may be another; a sum of floats is made in any order.
        signed: whether a zero has the sign that is stated.
    """

    output: np.ndarray
    defined: np.ndarray
    kind: str
    unreached: np.ndarray
    off: np.ndarray | float = 0
    signed: bool = False


class _Expression:
    """An expression at every point: ``int32`` as int64 that is wrapped, or float32."""

    def __init__(self, text: str, grid: Values, arrays: Values, acc: np.ndarray) -> None:
        self.tokens, self.grid, self.arrays, self.acc = Tokens(text), grid, arrays, acc
        self.defined = np.ones(self.acc.shape, bool)

    def keep(self, value: np.ndarray, *, finite: bool = False) -> np.ndarray:
        """Wrap integers; nothing is stated of what becomes of NaN, or where infinities go on."""
        if value.dtype == np.int64:
            return _wrapped(value)
        self.defined = self.defined & (np.isfinite(value) if finite else ~np.isnan(value))
        return value

    @staticmethod
    def same(lhs: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if lhs.dtype == right.dtype:
            return lhs, right
        return lhs.astype(np.float32), right.astype(np.float32)

    def shift(self) -> np.ndarray:
        value = self.sum()
        while self.tokens.accept(">>"):
            value = value // (1 << int(self.tokens.take()))
        return value

    def sum(self) -> np.ndarray:
        value = self.product()
        while self.tokens.next in ("+", "-"):
            sign = self.tokens.take()
            lhs, right = self.same(value, self.product())
            value = self.keep(lhs + right if sign == "+" else lhs - right)
        return value

    def product(self) -> np.ndarray:
        value = self.atom()
        while self.tokens.next in ("*", "/"):
            if self.tokens.take() == "*":
                lhs, right = self.same(value, self.atom())
                value = self.keep(lhs * right)
            else:
                value = self.quotient(value, self.atom())
        return value

    def quotient(self, lhs: np.ndarray, right: np.ndarray) -> np.ndarray:
        return self.keep(lhs.astype(np.float32) / right.astype(np.float32), finite=True)

    def atom(self) -> np.ndarray:
        token = self.tokens.take()
        if token == "-":
            if self.tokens.next[0].isdigit():
                return np.asarray(-self.atom())
            value = self.atom()
            return self.keep(np.zeros((), value.dtype) - value)
        if token == "(":
            value = self.shift()
            self.tokens.take(")")
            return value
        if token[0].isdigit():
            return np.asarray(int(token)) if token.isdigit() else np.asarray(np.float32(token))
        if token == "acc" and self.tokens.next != "[":
            return self.acc
        if self.tokens.next == "[":
            self.tokens.remaining.insert(0, token)
            access = access_of(self.tokens, self.grid)
            array = self.arrays[access.name]
            return read(access, array, np.int64 if array.dtype.kind in "iu" else np.float32)
        return self.call(token)

    def call(self, name: str) -> np.ndarray:
        self.tokens.take("(")
        values = [self.shift()]
        while self.tokens.accept(","):
            values.append(self.shift())
        self.tokens.take(")")
        return self.function(name, values)

    def function(self, name: str, values: list[np.ndarray]) -> np.ndarray:
        if name in _CASTS:
            return self.cast(values[0], _CASTS[name])
        first, zero = values[0], np.asarray(0)
        if name in FUNCTIONS and (name != "round" or first.dtype != np.int64):
            floats = [self.keep(each.astype(np.float32), finite=True) for each in values]
            return self.keep(FUNCTIONS[name](*floats), finite=True)
        if name == "relu":
            return self.function("max", [first, zero])
        if name == "abs":
            return _first_if(np.greater, first, self.keep(np.zeros((), first.dtype) - first))
        if name in ("clip", "clamp"):
            kind = np.result_type(*(v.dtype if v.dtype != np.int64 else np.int8 for v in values))
            if kind == np.float32:
                values = [v.astype(np.float32) for v in values]
            value, low, high = values
            above = _first_if(np.greater, *self.same(low, value))
            return _first_if(np.less, *self.same(high, above))
        if name == "round":
            return first
        if _is_number(values[1]) and not _is_number(first):
            values = values[::-1]
        lhs, right = self.same(*values)
        better = _first_if(np.greater if name == "max" else np.less, lhs, right)
        return np.where(np.isnan(lhs), lhs, better)

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

    def stored(self) -> tuple[np.ndarray, str]:
        """Values, and the dtype of the result."""
        name, saved = self.tokens.next, list(self.tokens.remaining)
        value = self.shift()
        self.tokens.take("")
        if name in _CASTS and saved[1] == "(" and _closes(saved):
            return value, _CASTS[name]
        return value, "int32" if value.dtype == np.int64 else "float32"


def _first_if(better: Callable[..., np.ndarray], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The first where it is better, else the second, as of NaN."""
    return np.where(better(x, y), x, y)


def _is_number(value: np.ndarray) -> bool:
    """Whether a value is an integer or a literal."""
    return value.dtype == np.int64 or value.ndim == 0


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
    with np.errstate(all="ignore"):
        value, final = run.stored() if text else (acc, kind)
        out = np.zeros(sizes, ("float32" if final == "bfloat16" else final) if text else acc.dtype)
        defined = np.ones(out.shape, bool)
        values = np.broadcast_to(value, run.defined.shape)
        out[at] = values if at else values.flat[0]
        np.logical_and.at(defined, at, run.defined if at else run.defined.all())
    unreached = np.zeros(out.shape, bool)
    if output:
        unreached[...] = True
        unreached[at] = False
    signed = bool(text) and kind in LIMITS and out.dtype.kind == "f"
    return Finished(out, defined, final, unreached, signed=signed)


def combined(
    text: str,
    state: Evaluated,
    arrays: Values,
    kind: str,
    output: str,
    shape: Sequence[int],
    sign: str,
    last: str = "",
) -> Finished:
    """What a sign makes of an expression's values at the elements of a statement's output.

    Args:
        text, state, arrays, kind, output, shape: as :func:`finish` takes them.
        sign: ``+=``, ``max=`` or ``min=``.
        last: what becomes of that, or nothing.
    """
    wide = np.int64 if kind in LIMITS else np.float32
    run = _Expression(text, state.grid, arrays, state.output[state.at].astype(wide))
    # Of the points that belong to one element the first one, and where that goes.
    _, once = np.unique(_flat(state.at, state.output.shape, run.defined.size), return_index=True)
    to = _flat(access_of(Tokens(output), state.grid).indices, shape, run.defined.size)[once]
    with np.errstate(all="ignore"):
        values, final = run.stored()
        spread = np.broadcast_to(values, run.defined.shape)[once].astype(np.float64)
        out, sizes, unreached = (
            np.zeros(prod(shape)),
            np.zeros(prod(shape)),
            np.ones(prod(shape), bool),
        )
        defined = unreached.copy()
        unreached[to] = False
        out[to] = {"+=": 0, "max=": -np.inf, "min=": np.inf}[sign]
        {"+=": np.add, "max=": np.maximum, "min=": np.minimum}[sign].at(out, to, spread)
        np.add.at(sizes, to, np.abs(spread))
    np.logical_and.at(defined, to, run.defined[once])
    defined &= sizes < 1e38
    if last:
        defined &= sign != "+=" or final in LIMITS
        out = np.where(defined, out, 0)
        return _ended(last, state.grid, arrays, (out, defined, unreached), (to, once), final, shape)
    out = np.where(defined, out, 0).reshape(tuple(shape))
    defined, unreached = defined.reshape(out.shape), unreached.reshape(out.shape)
    if final in LIMITS:
        return Finished(_wrapped(out).astype(np.int32), defined, "int32", unreached)
    off = sizes.reshape(out.shape) * 2.0**-24 * spread.size if sign == "+=" else 0
    return Finished(out.astype(np.float32), defined, "float32", unreached, off)


def _ended(
    text: str,
    grid: Values,
    arrays: Values,
    whole: tuple[np.ndarray, np.ndarray, np.ndarray],
    points: tuple[np.ndarray, np.ndarray],
    kind: str,
    shape: Sequence[int],
) -> Finished:
    """What becomes of reductions: flat values, where they are defined, and where there are none.

    Args:
        text, grid, arrays, shape: as :func:`combined` has them.
        whole: the reductions.
        points: the element of each point, and the points.
        kind: dtype of what was put together.
    """
    (out, defined, unreached), (to, once) = whole, points
    elements, first = np.unique(to, return_index=True)
    here = {name: values[once[first]] for name, values in grid.items()}
    acc = out[elements]
    acc = _wrapped(acc) if kind in LIMITS else acc.astype(np.float32)
    run = _Expression(text, here, arrays, acc)
    with np.errstate(all="ignore"):
        values, final = run.stored()
    results: np.ndarray = np.zeros(len(out), "float32" if final == "bfloat16" else final)
    results[elements] = values
    defined[elements] &= run.defined
    results, defined, unreached = (
        each.reshape(tuple(shape)) for each in (results, defined, unreached)
    )
    return Finished(results, defined, final, unreached)


def _flat(at: Sequence[np.ndarray], shape: Sequence[int], points: int) -> np.ndarray:
    """Number of the element that each point has in a tensor, which may be a scalar."""
    return np.ravel_multi_index(tuple(at), tuple(shape)) if at else np.zeros(points, int)


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
        its elements, and whether all of them are defined.
    """
    names = re.findall(r"\w+", head)[1:]
    grid = grid_of(dict(zip(names, shape, strict=True)))
    run = _Expression(text, grid, arrays, np.zeros(int(np.prod(shape))))
    with np.errstate(all="ignore"):
        value = np.broadcast_to(run.cast(run.stored()[0], kind), run.defined.shape)
    return np.array(value).reshape(tuple(shape)), bool(run.defined.all())
