"""What a text means, computed point by point in NumPy: it shares no code with the package.

A text is read by a recursive descent that computes as it reads, so that there is no
tree, no affine form and no access matrix that could be wrong in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

__all__ = [
    "LIMITS",
    "Evaluated",
    "Tokens",
    "access_of",
    "evaluate",
    "grid_of",
    "read",
    "round_bfloat16",
    "shapes_of",
]

_TOKEN = re.compile(r"\s*(\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+|[A-Za-z_]\w*|\+=|//|>>|\S)")

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

_UFUNCS = {"*": np.multiply, "+": np.add, "-": np.subtract, "max": np.maximum, "min": np.minimum}
#: What a comparison starts from: beyond every value of the types that are compared.
_START = {"max": -(1 << 40), "min": 1 << 40}


class Tokens:
    """The tokens of a text, one after another."""

    def __init__(self, text: str) -> None:
        self.remaining: list[str] = [*_TOKEN.findall(text), ""]

    @property
    def next(self) -> str:
        return self.remaining[0]

    def take(self, *tokens: str) -> str:
        token = self.remaining[0]
        if tokens and token not in tokens:
            raise ValueError(f"the oracle expected one of {tokens}, got {token!r}")
        del self.remaining[0]
        return token

    def accept(self, token: str) -> bool:
        if self.remaining[0] != token:
            return False
        del self.remaining[0]
        return True


@dataclass(frozen=True)
class Access:
    name: str
    indices: tuple[np.ndarray, ...]
    padded: bool
    padding: float = 0


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


def grid_of(extents: Mapping[str, int]) -> dict[str, np.ndarray]:
    if not extents:
        return {}
    points = np.indices([*extents.values()]).reshape(len(extents), -1)
    return dict(zip(extents, points, strict=True))


def _index(tokens: Tokens, grid: Values) -> np.ndarray:
    def factor() -> np.ndarray:
        if tokens.accept("-"):
            return np.asarray(-factor())
        if tokens.accept("("):
            inner = total()
            tokens.take(")")
            return inner
        token = tokens.take()
        value = np.asarray(int(token)) if token.isdigit() else grid[token]
        # A digit of a loop binds closer than a sign before it.
        if tokens.accept("//"):
            value = value // int(tokens.take())
        return value % int(tokens.take()) if tokens.accept("%") else value

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


def access_of(tokens: Tokens, grid: Values) -> Access:
    name, indices = tokens.take(), []
    tokens.take("[")
    while not tokens.accept("]"):
        indices.append(_index(tokens, grid))
        tokens.accept(",")
    return Access(name, tuple(indices), False)


def _source(tokens: Tokens, grid: Values) -> Access:
    if tokens.remaining[:2] != ["pad", "("]:
        return access_of(tokens, grid)
    tokens.take("pad")
    tokens.take("(")
    inner = access_of(tokens, grid)
    padding: float = 0
    if tokens.accept(","):
        sign = -1 if tokens.accept("-") else 1
        text = tokens.take()
        padding = sign * (int(text) if text.isdigit() else float(text))
    tokens.take(")")
    return Access(inner.name, inner.indices, True, padding)


@dataclass(frozen=True)
class _Statement:
    output: Access
    sources: list[Access]
    combiner: str
    join: str


def _statement(text: str, grid: Values) -> _Statement:
    tokens = Tokens(text)
    output = access_of(tokens, grid)
    combiner = tokens.take("=", "+=", "max", "min").removesuffix("=")
    if combiner in ("max", "min"):
        tokens.take("=")
    if tokens.next in ("max", "min") and tokens.remaining[1] == "(":
        join = tokens.take()
        tokens.take("(")
        sources = [_source(tokens, grid)]
        while not tokens.accept(")"):
            tokens.take(",")
            sources.append(_source(tokens, grid))
    else:
        sources = [_source(tokens, grid)]
        join = tokens.next or "*"
        while tokens.accept(join):
            sources.append(_source(tokens, grid))
    tokens.take("")
    return _Statement(output, sources, combiner, join)


def shapes_of(text: str, extents: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor where none is named: what is read, with as much padding on each side."""
    statement = _statement(text, grid_of(extents))
    output, sources = statement.output, statement.sources
    shapes: dict[str, tuple[int, ...]] = {}
    for access in (*sources, output):
        sizes = tuple(
            max(1, int(i.max()) + 1 + (min(int(i.min()), 0) if access.padded else 0))
            for i in access.indices
        )
        before = shapes.get(access.name, (0,) * len(sizes))
        shapes[access.name] = tuple(map(max, before, sizes))
    return shapes


def read(access: Access, array: np.ndarray, kind: type) -> np.ndarray:
    in_bounds = np.array(True)
    for index, size in zip(access.indices, array.shape, strict=True):
        in_bounds = in_bounds & (index >= 0) & (index < size)
    if not access.padded and not in_bounds.all():
        raise ValueError(f"the oracle reads outside {access.name}")
    clipped = tuple(np.clip(i, 0, n - 1) for i, n in zip(access.indices, array.shape, strict=True))
    return np.asarray(np.where(in_bounds, array[clipped].astype(kind), kind(access.padding)))


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
    grid = grid_of(extents)
    statement = _statement(text, grid)
    output = statement.output
    wide = np.int64 if kind in LIMITS else np.float64
    points = next(iter(grid.values()), np.ones(1)).shape
    join, combine = _UFUNCS[statement.join], _UFUNCS[statement.combiner or "+"]
    start = _START.get(statement.combiner, 0)
    with np.errstate(over="ignore"):
        first, *further = (read(each, arrays[each.name], wide) for each in statement.sources)
        # Integers have wrapped around in the output's type before they are compared.
        joined = np.broadcast_to(reduce(join, further, first).astype(kind).astype(wide), points)
        result = np.full(tuple(shape), start, wide)
        if output.indices:
            stored = np.zeros(result.shape, bool)
            combine.at(result, output.indices, joined)
            stored[output.indices] = True
            result[~stored] = 0
        else:
            result[...] = combine(result, combine.reduce(joined))
    return Evaluated(result.astype(kind), output.indices, grid)


def round_bfloat16(values: np.ndarray) -> np.ndarray:
    """Float32 values rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return bits.astype(np.uint32).view(np.float32).reshape(np.shape(values))
