"""Operators as text, with names that generated code must survive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from tests.support.oracle.statements import LIMITS, round_bfloat16, shapes_of

__all__ = [
    "Computed",
    "Further",
    "Names",
    "Problem",
    "arrays",
    "chance",
    "extras",
    "groups",
    "problem",
]

#: Names that belong to C, C++, CUDA, TVM, Python or to the generators themselves.
_LOOP_WORDS = """
    i0 i1 i2 r0 r1 row column reduce lane warp tile out x y z e v main void int float NULL
    int32_t threadIdx blockIdx fused spatial order copy for if acc i0_i1_fused _ __ I N0 step
    Src1 Dst self None lambda float32 cse_v1 i1_1 i0_0 a b T in while block unroll split pad
    is class def return
    stage root buffer min max lane_id warp_id ax0 ax1 k_0 given packed"""
_TENSOR_WORDS = """
    NULL int32_t static_cast shared_Src1 self out in inputs memcpy acc i0 packed_b Src1
    Src2 Dst workspace main given packed float kernel size_t uint8_t x assert errno stdin M_PI
    linux unix EOF class def None True for if double restrict vector half T args data named arrays
    weight_1 packed_weight shared_memory threadIdx accumulators fragment root buffer k i tile
    pad relu max int8x16 v16 abs exit malloc printf a_1 of_out out_1"""
ODD_LOOPS, ODD_TENSORS = _LOOP_WORDS.split(), _TENSOR_WORDS.split()
_LOOPS = [*"ijknpqcrsmlhw"]
_TENSORS = ["a", "b", "image", "weight", "data", "kernel_", "left", "right"]
#: Floats that rounding, casts and overflow treat in their own manner.
_FLOATS = (0.0, -0.0, 0.5, 1.5, -2.5, 127.5, 32767.5, 1e-40, 2147483648.0, -3e9, 3e38)
#: Which of (first source, second source, output) a loop indexes, and how often it is drawn.
_ROLES = {
    (1, 0, 1): 3.0,
    (0, 1, 1): 3.0,
    (1, 1, 0): 3.0,
    (1, 1, 1): 1.5,
    (1, 0, 0): 0.4,
    (0, 1, 0): 0.4,
    (0, 0, 1): 0.3,
}


@dataclass(frozen=True)
class Problem:
    """An operator as its user would write it.

    Attributes:
        text: the statement.
        extents, dtypes, shapes: as ``Operator.parse`` takes them; every dtype is named.
        output: name of the output.
        constants: sources that stay the same from call to call.
        epilogue: its text, or nothing.
        extra: dtypes of the epilogue's tensors.
        prologues: how sources are computed of other tensors.
        store: the access that results are stored to, or nothing.
        store_shape: shape of its tensor.
        store_shapes: the shape by the tensor's name, if it is larger than what is stored.
        further: more results of the same sums.
    """

    text: str
    extents: dict[str, int]
    dtypes: dict[str, str]
    output: str
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    epilogue: str = ""
    extra: dict[str, str] = field(default_factory=dict)
    prologues: tuple[Computed, ...] = ()
    store: str = ""
    store_shape: tuple[int, ...] = ()
    store_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    further: tuple[Further, ...] = ()

    @property
    def tensors(self) -> set[str]:
        """Names of all tensors."""
        own = {*self.dtypes, *self.read_after}
        read = own.union(*(each.dtypes for each in self.prologues))
        return read | {each.store.partition("[")[0] for each in self.further}

    @property
    def read_after(self) -> dict[str, str]:
        """Dtypes of the tensors that are read behind the sums."""
        kinds = dict(self.extra)
        for result in self.further:
            kinds |= result.dtypes
        return kinds

    @property
    def spatial(self) -> list[str]:
        """Loops that index the output."""
        output = self.text.partition("=")[0]
        names = re.findall(r"[A-Za-z_]\w*", output[output.index("[") :])
        return [loop for loop in self.extents if loop in names]


@dataclass(frozen=True)
class Computed:
    """A source that is computed of other tensors.

    Attributes:
        source: its name.
        head: its name, and those of its dimensions.
        text: the expression.
        dtypes: of the expression's tensors.
    """

    source: str
    head: str
    text: str
    dtypes: dict[str, str]


@dataclass(frozen=True)
class Further:
    """One more result.

    Attributes:
        store: the access that it is stored to.
        sign: what makes it of elements: ``=``, ``+=``, ``max=`` or ``min=``.
        text: the expression of an element.
        dtypes: of the expression's tensors.
        shape: of the result.
        shapes: the shape by the tensor's name, if it is larger than what is stored.
        last: the expression of what a reduction has come to, or nothing.
    """

    store: str
    sign: str
    text: str
    dtypes: dict[str, str]
    shape: tuple[int, ...]
    shapes: dict[str, tuple[int, ...]]
    last: str = ""

    def __str__(self) -> str:
        return f"{self.store} {self.sign} {self.text}" + f" then {self.last}" * bool(self.last)


class Names:
    """Names that are used once."""

    def __init__(self, rng: np.random.Generator, odd: float) -> None:
        self.rng, self.odd, self.used = rng, odd, set[str]()

    def draw(self, plain: Sequence[str], odd: Sequence[str]) -> str:
        pool = odd if self.rng.random() < self.odd else plain
        name = str(self.rng.choice([n for n in pool if n not in self.used] or self._numbered()))
        self.used.add(name)
        return name

    def _numbered(self) -> list[str]:
        """A name for when all are used."""
        return [next(name for n in count() if (name := f"n{n}") not in self.used)]


def chance(rng: np.random.Generator, share: float) -> bool:
    return bool(rng.random() < share)


def _extents(rng: np.random.Generator, count: int, most: int) -> list[int]:
    ranges = [(1, 1), (2, 5), (6, 20), (21, 40)]
    picked = rng.choice(4, count, p=[0.14, 0.5, 0.28, 0.08])
    extents = [int(rng.integers(ranges[n][0], ranges[n][1] + 1)) for n in picked]
    while np.prod(extents) > most:
        at = int(np.argmax(extents))
        extents[at] = -(-extents[at] // 2)
    return extents


def _lengthen(
    rng: np.random.Generator, extents: dict[str, int], summed: list[str], most: int
) -> None:
    """Make a reduction so long that it is worth to be split, and everything else short."""
    if not summed:
        return
    longest = str(rng.choice(summed))
    for name in extents:
        extents[name] = min(extents[name], 3)
    other_points = np.prod([*extents.values()]) // extents[longest]
    extents[longest] = max(1, int(rng.integers(most // 8, most) // other_points))


def groups(rng: np.random.Generator, names: list[str]) -> list[list[str]]:
    """The names in some order, divided over dimensions."""
    order = [str(name) for name in rng.permutation(names)]
    groups: list[list[str]] = []
    while order:
        count = int(rng.choice([1, 2, 3], p=[0.68, 0.26, 0.06]))
        groups.append(order[:count])
        del order[:count]
    return groups


def _written(rng: np.random.Generator, terms: list[tuple[str, int]], constant: int) -> str:
    """An affine index in one of the ways to write it."""
    parts = [(c, name) for name, c in terms]
    if constant or not parts:
        parts.insert(int(rng.integers(len(parts) + 1)), (constant, ""))
    text = ""
    for c, name in parts:
        size = abs(c)
        body = name if size == 1 and name else f"{name}*{size}" if name else str(size)
        if name and size > 1 and chance(rng, 0.4):
            body = f"{size}*{name}"
        sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
        text += sign + body
    return f"({text})" if chance(rng, 0.05) else text


def _low(terms: list[tuple[str, int]], extents: dict[str, int]) -> int:
    return sum(min(0, c * (extents[name] - 1)) for name, c in terms)


def _padding(rng: np.random.Generator, kind: str) -> str:
    """What follows the access in ``pad``: nothing, or a value of the dtype."""
    if chance(rng, 0.5):
        return ""
    low, high = LIMITS.get(kind, (-1, 1))
    ends = [int(n) for n in (low, high, 0, 1) if abs(n) < 1 << 53]
    value = int(rng.choice(ends)) if chance(rng, 0.3) else int(rng.integers(low, high + 1))
    plain = "" if kind in LIMITS or chance(rng, 0.5) else ".0"
    return f", {'- ' if value < 0 else ''}{abs(value)}{plain}"


def _source(
    rng: np.random.Generator, name: str, loops: list[str], extents: dict[str, int], kind: str
) -> str:
    padded = chance(rng, 0.25)
    dims = groups(rng, loops)
    if chance(rng, 0.06):
        dims.insert(int(rng.integers(len(dims) + 1)), [])
    if loops and chance(rng, 0.04):
        dims.append([str(rng.choice(loops))])
    indices = []
    for group in dims:
        coefficients = rng.choice(
            [1, 2, 3, -1, -2, 5], len(group), p=[0.7, 0.12, 0.06, 0.06, 0.03, 0.03]
        )
        terms = [(n, int(c)) for n, c in zip(group, coefficients, strict=True)]
        shift = int(rng.integers(-3, 3)) if padded else int(rng.choice([0, 0, 0, 1, 2]))
        indices.append(
            _written(rng, terms, shift - (0 if padded and terms else _low(terms, extents)))
        )
    access = f"{name}[{', '.join(indices)}]"
    return f"pad({access}{_padding(rng, kind)})" if padded and dims else access


def _output(rng: np.random.Generator, name: str, loops: list[str], extents: dict[str, int]) -> str:
    """Every point has an element of its own: coefficients are a mixed radix."""
    indices = []
    for group in groups(rng, loops):
        reach, terms = 0, []
        for loop in group:
            step = reach + 1 + int(rng.choice([0, 0, 0, 0, 1, 3]))
            if extents[loop] == 1:
                step = int(rng.integers(1, reach + 6))
            terms.append((loop, -step if chance(rng, 0.07) else step))
            reach += step * (extents[loop] - 1)
        shift = int(rng.integers(1, 4)) if chance(rng, 0.15) else 0
        shuffled = [terms[n] for n in rng.permutation(len(terms))]
        indices.append(_written(rng, shuffled, shift - _low(terms, extents)))
    return f"{name}[{', '.join(indices)}]"


def _roles(rng: np.random.Generator, arity: int) -> list[tuple[int, ...]]:
    roles: list[tuple[int, ...]] = [(1, 0, 1), (0, 1, 1), (1, 1, 0)]
    roles = [role for role in roles if chance(rng, 0.88)]
    shares = np.array([*_ROLES.values()])
    for _ in range(int(rng.choice([0, 1, 2, 3], p=[0.25, 0.4, 0.25, 0.1]))):
        roles.append([*_ROLES][int(rng.choice(len(shares), p=shares / shares.sum()))])
    if arity != 2:
        roles = [(*rng.integers(0, 2, arity), role[2]) for role in roles]
        roles = [role if any(role) else (*role[:-1], 1) for role in roles]
    return roles or [(1,) * arity + (1,)]


def problem(
    rng: np.random.Generator, kinds: Sequence[str], *, odd: float = 0.2, most: int = 20_000
) -> Problem:
    """An operator.

    Args:
        rng: where chance comes from.
        kinds: dtype of each source, then of the output.
        odd: share of names that are somebody else's.
        most: points of all loops together.
    """
    arity, names = len(kinds) - 1, Names(rng, odd if chance(rng, 0.6) else 0.0)
    roles = _roles(rng, arity)
    loops = [names.draw(_LOOPS, ODD_LOOPS) for _ in roles]
    extents = dict(zip(loops, _extents(rng, len(loops), most), strict=True))
    if chance(rng, 0.12):
        _lengthen(
            rng, extents, [n for n, role in zip(loops, roles, strict=True) if not role[-1]], most
        )
    names.used.clear() if chance(rng, 0.1) else None
    tensors = [names.draw(_TENSORS, ODD_TENSORS) for _ in range(arity)]
    out = names.draw(["out"], ODD_TENSORS)
    sources = [
        _source(
            rng,
            tensors[n],
            [loop for loop, role in zip(loops, roles, strict=True) if role[n]],
            extents,
            kinds[n],
        )
        for n in range(arity)
    ]
    spatial = [loop for loop, role in zip(loops, roles, strict=True) if role[-1]]
    sign = "+=" if len(spatial) < len(loops) or chance(rng, 0.8) else "="
    text = f"{_output(rng, out, spatial, extents)} {sign} {' * '.join(sources)}"
    dtypes = dict(zip((*tensors, out), kinds, strict=True))
    constants = tuple(dict.fromkeys(name for name in tensors if chance(rng, 0.15)))
    return Problem(text, extents, dtypes, out, _shapes(rng, text, extents), constants)


def _shapes(
    rng: np.random.Generator, text: str, extents: dict[str, int]
) -> dict[str, tuple[int, ...]]:
    """Shapes that are larger than what is read, or for a padded source any."""
    larger: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes_of(text, extents).items():
        if not chance(rng, 0.15) or not shape:
            continue
        if f"pad({name}[" in text:
            larger[name] = tuple(int(rng.integers(1, size + 3)) for size in shape)
        else:
            larger[name] = tuple(size + int(rng.integers(0, 3)) for size in shape)
    return larger


def arrays(
    rng: np.random.Generator,
    shapes: dict[str, tuple[int, ...]],
    kinds: dict[str, str],
    top: int = 3,
) -> dict[str, np.ndarray]:
    """Data of the sources: integers over their range, floats that any sum keeps exact."""
    drawn: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        kind, draw = kinds[name], rng.random()
        if kind in LIMITS:
            low, high = LIMITS[kind]
            values: Any = rng.integers(low, high, shape, np.int64, endpoint=True)
            values = np.full(shape, rng.choice([low, high])) if draw < 0.05 else values
        else:
            values = rng.integers(-top, top, shape, endpoint=True)
        drawn[name] = np.asarray(values).astype(container(kind))
    return drawn


def container(kind: str) -> np.dtype:
    """The NumPy dtype that holds values of a type."""
    wide = dict.fromkeys(("bool", "uint4", "uint7"), "uint8")
    wide |= dict.fromkeys(("int4", "int7"), "int8")
    wide |= dict.fromkeys(("bfloat16", "tfloat32", "float8_e4m3", "float8_e5m2"), "float32")
    return np.dtype(wide.get(kind, kind))


def extras(
    rng: np.random.Generator, shapes: dict[str, tuple[int, ...]], kinds: dict[str, str]
) -> dict[str, np.ndarray]:
    """Data of an epilogue's tensors: integers of all sizes, floats of many magnitudes."""
    drawn = {}
    for name, shape in shapes.items():
        kind = kinds[name]
        if kind in LIMITS:
            low, high = LIMITS[kind]
            values = rng.integers(low, high, shape, np.int64, endpoint=True)
            shrunk = values >> rng.integers(0, 24, shape)
            drawn[name] = (shrunk if rng.random() < 0.6 else values).astype(kind)
            continue
        floats = rng.uniform(-2, 2, shape) * 2.0 ** rng.integers(-20, 12, shape)
        floats = np.where(rng.random(shape) < 0.1, rng.choice(_FLOATS, shape), floats)
        single = np.asarray(floats, np.float32)
        drawn[name] = round_bfloat16(single) if kind == "bfloat16" else single.astype(kind)
    return drawn
