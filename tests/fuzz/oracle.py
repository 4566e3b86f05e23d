"""What a text means, computed point by point in NumPy: it shares no code with the package.

A text is read by a recursive descent that computes as it reads, so that there is no
tree, no affine form and no access matrix that could be wrong in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["LIMITS", "Evaluated", "evaluate", "finish", "round_bfloat16", "shapes_of"]

_TOKEN = re.compile(r"\s*(\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+|[A-Za-z_]\w*|\+=|\S)")

#: Smallest and largest value of each integer type.
LIMITS = {
    "bool": (0, 1),
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int7": (-64, 63),
    "uint7": (0, 127),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}

Values = Mapping[str, np.ndarray]


class _Tokens:
    """The tokens of a text, one after another."""

    def __init__(self, text: str) -> None:
        self.rest: list[str] = [*_TOKEN.findall(text), ""]

    @property
    def next(self) -> str:
        return self.rest[0]

    def take(self, *wanted: str) -> str:
        token = self.rest[0]
        if wanted and token not in wanted:
            raise ValueError(f"the oracle expected one of {wanted}, got {token!r}")
        del self.rest[0]
        return token

    def accept(self, token: str) -> bool:
        if self.rest[0] != token:
            return False
        del self.rest[0]
        return True


@dataclass(frozen=True)
class _Access:
    name: str
    indices: tuple[np.ndarray, ...]
    padded: bool
    outside: float = 0


@dataclass(frozen=True)
class Evaluated:
    """Accumulators of a statement.

    Attributes:
        output: the output tensor.
        at: for each point of the loops the index of its element, one array a dimension.
        grid: for each loop its value at each point.
    """

    output: np.ndarray
    at: tuple[np.ndarray, ...]
    grid: dict[str, np.ndarray]


def _grid(extents: Mapping[str, int]) -> dict[str, np.ndarray]:
    points = np.indices([*extents.values()]).reshape(len(extents), -1)
    return dict(zip(extents, points, strict=True))


def _index(tokens: _Tokens, grid: Values) -> np.ndarray:
    def factor() -> np.ndarray:
        if tokens.accept("-"):
            return np.asarray(-factor())
        if tokens.accept("("):
            inner = total()
            tokens.take(")")
            return inner
        token = tokens.take()
        return np.asarray(int(token)) if token.isdigit() else grid[token]

    def term() -> np.ndarray:
        value = factor()
        while tokens.accept("*"):
            value = value * factor()
        return value

    def total() -> np.ndarray:
        value = term()
        while tokens.next in ("+", "-"):
            value = value + term() if tokens.take() == "+" else value - term()
        return value

    points = next(iter(grid.values())).shape if grid else (1,)
    return np.broadcast_to(total(), points)


def _access(tokens: _Tokens, grid: Values) -> _Access:
    name, indices = tokens.take(), []
    tokens.take("[")
    while not tokens.accept("]"):
        indices.append(_index(tokens, grid))
        tokens.accept(",")
    return _Access(name, tuple(indices), False)


def _source(tokens: _Tokens, grid: Values) -> _Access:
    if tokens.rest[:2] != ["pad", "("]:
        return _access(tokens, grid)
    tokens.take("pad")
    tokens.take("(")
    inner = _access(tokens, grid)
    outside: float = 0
    if tokens.accept(","):
        sign = -1 if tokens.accept("-") else 1
        text = tokens.take()
        outside = sign * (int(text) if text.isdigit() else float(text))
    tokens.take(")")
    return _Access(inner.name, inner.indices, True, outside)


def _statement(text: str, grid: Values) -> tuple[_Access, list[_Access], bool]:
    tokens = _Tokens(text)
    output = _access(tokens, grid)
    added = tokens.take("=", "+=") == "+="
    sources = [_source(tokens, grid)]
    while tokens.accept("*"):
        sources.append(_source(tokens, grid))
    tokens.take("")
    return output, sources, added


def shapes_of(text: str, extents: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor where none is named: what is read, with as much padding on each side."""
    output, sources, _ = _statement(text, _grid(extents))
    shapes: dict[str, tuple[int, ...]] = {}
    for each in (*sources, output):
        sizes = tuple(
            max(1, int(i.max()) + 1 + (min(int(i.min()), 0) if each.padded else 0))
            for i in each.indices
        )
        before = shapes.get(each.name, (0,) * len(sizes))
        shapes[each.name] = tuple(map(max, before, sizes))
    return shapes


def _read(access: _Access, array: np.ndarray, kind: type) -> np.ndarray:
    inside = np.array(True)
    for index, size in zip(access.indices, array.shape, strict=True):
        inside = inside & (index >= 0) & (index < size)
    if not access.padded and not inside.all():
        raise ValueError(f"the oracle reads outside {access.name}")
    clipped = tuple(np.clip(i, 0, n - 1) for i, n in zip(access.indices, array.shape, strict=True))
    return np.asarray(np.where(inside, array[clipped].astype(kind), kind(access.outside)))


def evaluate(
    text: str,
    extents: Mapping[str, int],
    arrays: Values,
    shape: Sequence[int],
    kind: str,
) -> Evaluated:
    """Run a statement.

    Args:
        text: the statement.
        extents: extent of each loop.
        arrays: an array for each source.
        shape: shape of the output.
        kind: dtype of the output; integers wrap around in it.
    """
    grid = _grid(extents)
    output, sources, added = _statement(text, grid)
    wide = np.int64 if kind in LIMITS else np.float64
    with np.errstate(over="ignore"):
        product = np.broadcast_to(np.ones((), wide), next(iter(grid.values()), np.ones(1)).shape)
        for source in sources:
            product = product * _read(source, arrays[source.name], wide)
        result = np.zeros(tuple(shape), wide)
        if not output.indices:
            result += product.sum()
        elif added:
            np.add.at(result, output.indices, product)
        else:
            result[output.indices] = product
    return Evaluated(result.astype(kind), output.indices, grid)


def round_bfloat16(values: np.ndarray) -> np.ndarray:
    """Float32 values rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return bits.astype(np.uint32).view(np.float32).reshape(np.shape(values))


def _wrapped(value: np.ndarray) -> np.ndarray:
    return np.asarray(np.int64(value).astype(np.int32).astype(np.int64))


_CASTS = ("u8", "s8", "s16", "s32", "f32", "bf16")
_STORED = {"u8": "uint8", "s8": "int8", "s16": "int16", "s32": "int32"}


class _Finish:
    """An epilogue at every point: ``int32`` as int64 that is wrapped, or float32."""

    def __init__(self, text: str, state: Evaluated, arrays: Values, kind: str) -> None:
        self.tokens, self.grid, self.arrays = _Tokens(text), state.grid, arrays
        whole = kind in LIMITS
        self.acc: np.ndarray = state.output[state.at].astype(np.int64 if whole else np.float32)
        self.finite = np.ones(self.acc.shape, bool)

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
        while self.tokens.accept("*"):
            left, right = self.same(value, self.atom())
            value = self.keep(left * right)
        return value

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
            access = _access(self.tokens, self.grid)
            array = self.arrays[access.name]
            return _read(access, array, np.int64 if array.dtype.kind in "iu" else np.float32)
        return self.call(token)

    def call(self, name: str) -> np.ndarray:
        self.tokens.take("(")
        values = [self.sum()]
        while self.tokens.accept(","):
            values.append(self.sum())
        self.tokens.take(")")
        return self.function(name, values)

    def function(self, name: str, values: list[np.ndarray]) -> np.ndarray:
        if name == "relu":
            return self.function("max", [values[0], np.asarray(0)])
        if name == "clip":
            kind = np.result_type(*(v.dtype if v.dtype != np.int64 else np.int8 for v in values))
            if kind == np.float32:
                values = [v.astype(np.float32) for v in values]
            return self.function("min", [self.function("max", values[:2]), values[2]])
        if name == "round":
            return values[0] if values[0].dtype == np.int64 else np.asarray(np.rint(values[0]))
        if name == "f32":
            return values[0].astype(np.float32)
        left, right = self.same(*values)
        better: Callable[..., np.ndarray] = np.greater if name == "max" else np.less
        return np.where(better(left, right), left, right)

    def stored(self) -> tuple[np.ndarray, str]:
        """Values, and the dtype of the result."""
        cast = self.tokens.next if self.tokens.next in _CASTS else ""
        alone = cast and self.tokens.rest[1] == "(" and _closes(self.tokens.rest)
        if not alone:
            value = self.sum()
            self.tokens.take("")
            return value, "int32" if value.dtype == np.int64 else "float32"
        self.tokens.take()
        value = self.atom()
        self.tokens.take("")
        if cast in ("f32", "bf16"):
            single = value.astype(np.float32)
            return (single, "float32") if cast == "f32" else (round_bfloat16(single), "bfloat16")
        low, high = LIMITS[_STORED[cast]]
        whole = value if value.dtype == np.int64 else np.rint(value.astype(np.float64))
        return np.clip(np.nan_to_num(whole), low, high), _STORED[cast]


def _closes(tokens: list[str]) -> bool:
    """Whether the parenthesis after the first token ends with the text."""
    depth = 0
    for at, token in enumerate(tokens[1:], 1):
        depth += (token == "(") - (token == ")")
        if depth == 0:
            return tokens[at + 1] == ""
    return False


def finish(
    text: str, state: Evaluated, arrays: Values, kind: str
) -> tuple[np.ndarray, np.ndarray, str]:
    """Apply an epilogue.

    Args:
        text: the epilogue.
        state: accumulators.
        arrays: an array for each of its tensors.
        kind: dtype of the accumulators.

    Returns:
        The stored output; where it is defined, which infinities are not; its dtype.
    """
    run = _Finish(text, state, arrays, kind)
    with np.errstate(over="ignore", invalid="ignore"):
        value, final = run.stored()
        points = run.finite.shape
        out = np.zeros(state.output.shape, "float32" if final == "bfloat16" else final)
        defined = np.ones(out.shape, bool)
        out[state.at] = np.broadcast_to(value, points)
        np.logical_and.at(defined, state.at, run.finite)
    return out, defined, final
