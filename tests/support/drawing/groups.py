"""Prologues, epilogues and further results of an operator, and where its results go."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tests.support.drawing.operators import (
    ODD_LOOPS,
    ODD_TENSORS,
    Computed,
    Further,
    Names,
    Problem,
    chance,
    groups,
)
from tests.support.oracle.statements import LIMITS

__all__ = ["epilogue", "joined", "prologues", "results", "store"]

_NUMBERS = """0 1 3 -7 100 65536 46341 -2147483647 2147483647 0.5 0.1 -2.5 254.5 1e-3 16777217 1.5e6
    2147483520.0 3e9 -3e9 1e-40 1e30 3e38 -0.0"""
_FUNCTIONS = """max max min relu relu clip clamp round abs fma sqrt rsqrt exp sigmoid silu tanh erf
    gelu gelu_tanh hardsigmoid hardswish u8 s8 s16 s32 f32 f16 bf16"""
#: Types of sources that are computed.
_COMPUTED = ("uint8", "int8", "int16", "int32", "float32", "bfloat16", "float16")
_CASTS = {"uint8": "u8", "int8": "s8", "int16": "s16", "int32": "s32", "float32": "f32"}
_CASTS |= {"float16": "f16", "bfloat16": "bf16"}


#: How expressions of integers begin, as a rule.
_WHOLE = ("u8(", "s8(", "s16(", "s32(")


class Expressions:
    """Expressions of one value, numbers and tensors.

    Args:
        rng: where chance comes from.
        used: names that are somebody else's.
        loops: what indexes tensors.
        value: how the value is written, such as ``acc``.
    """

    def __init__(
        self, rng: np.random.Generator, used: Iterable[str], loops: list[str], value: str = "acc"
    ) -> None:
        self.rng, self.loops, self.value = rng, loops, value
        self.names = Names(rng, 0.2)
        self.names.used = {*used, "acc"}
        self.accesses: dict[str, str] = {}
        self.kinds: dict[str, str] = {}

    def leaf(self) -> str:
        draw = self.rng.random()
        if draw < 0.45:
            return self.value
        if draw < 0.7:
            return str(self.rng.choice(_NUMBERS.split()))
        if self.accesses and chance(self.rng, 0.3):
            return str(self.rng.choice([*self.accesses.values()]))
        return self.tensor([loop for loop in self.loops if chance(self.rng, 0.5)])

    def tensor(self, loops: Sequence[str]) -> str:
        """A new tensor that these index."""
        plain = ["bias", "scale", "skip", "zero", "t0", "t1"]
        name = self.names.draw(plain, [n for n in ODD_TENSORS if n != "acc"])
        indices = [
            loop + ("" if chance(self.rng, 0.9) else f" + {int(self.rng.integers(1, 4))}")
            for loop in loops
        ]
        kinds = ["float32", "float32", "int32", "int16", "uint16", "int8", "uint8"]
        kinds += ["bfloat16", "float16"]
        self.kinds[name] = str(self.rng.choice(kinds))
        self.accesses[name] = f"{name}[{', '.join(indices)}]"
        return self.accesses[name]

    def node(self, depth: int) -> str:
        if depth == 0 or chance(self.rng, 0.15):
            return self.leaf()
        draw = self.rng.random()
        below = [self.node(depth - 1) for _ in range(3)]
        if draw < 0.62:
            sign = str(self.rng.choice(["+", "-", "*", "*", "*", "/"]))
            return f"({below[0]}) {sign} ({below[1]})"
        name = str(self.rng.choice(_FUNCTIONS.split()))
        if name == "s32" and chance(self.rng, 0.5):
            return f"(s32({below[0]}) >> {int(self.rng.integers(32))})"
        count = {"max": 2, "min": 2, "clip": 3, "clamp": 3, "fma": 3}.get(name, 1)
        return f"{name}({', '.join(below[:count])})"

    def read_behind(self, share: float) -> str:
        """An expression of the value, that many times out of one."""
        text = self.node(int(self.rng.integers(1, 4)))
        if chance(self.rng, share) and self.value not in text:
            text = f"{self.value} + ({text})"
        if chance(self.rng, 0.75):
            text = f"{self.rng.choice([*_CASTS.values()])}({text})"
        return text

    def read(self, text: str) -> dict[str, str]:
        """Dtypes of the tensors that a text reads."""
        return {name: kind for name, kind in self.kinds.items() if f"{name}[" in text}


def epilogue(rng: np.random.Generator, start: Problem) -> Problem:
    """The operator with an epilogue."""
    drawn = Expressions(rng, {*start.tensors, *start.extents}, start.spatial)
    text = drawn.read_behind(0.9)
    return replace(start, epilogue=text, extra=drawn.read(text))


def results(rng: np.random.Generator, start: Problem) -> Problem:
    """The operator with further results, which read tensors of their own and of one another."""
    drawn = Expressions(rng, {*start.tensors, *start.extents}, start.spatial)
    for access in re.findall(r"\w+\[[^\]]*\]", start.epilogue):
        name = access.partition("[")[0]
        drawn.accesses[name], drawn.kinds[name] = access, start.extra[name]
    first = start.store.partition("[")[0] or start.output
    problem = start
    for _ in range(int(rng.choice([1, 2, 3], p=[0.6, 0.3, 0.1]))):
        again = start.epilogue if chance(rng, 0.3) and "acc" in start.epilogue else ""
        text = again or drawn.read_behind(1)
        sign, loops = "=", start.spatial
        if loops and chance(rng, 0.6):
            sign = str(rng.choice(["+=", "max=", "min="]))
            gone = str(rng.choice(loops))
            loops = [loop for loop in loops if loop != gone and chance(rng, 0.6)]
        used = problem.tensors | {*drawn.accesses, *start.extents, first, "acc"}
        place, shape, shapes = _place(rng, start, loops, used)
        drawn.names.used.add(place.partition("[")[0])
        read, last = drawn.read(text), ""
        # Floats are added up in any order, and what becomes of that may be anything.
        if sign != "=" and chance(rng, 0.4) and (sign != "+=" or text.startswith(_WHOLE)):
            after = Expressions(rng, used | drawn.names.used, loops)
            last = after.read_behind(1)
            read |= after.read(last)
            drawn.names.used |= after.names.used
        further = Further(place, sign, text, read, shape, shapes, last)
        problem = replace(problem, further=(*problem.further, further))
    return problem


def joined(start: Problem, combiner: str, join: str) -> Problem:
    """The operator with other functions instead of products and their sums."""
    output, sign, sources = re.split(r" (\+?=) ", start.text)
    parts = sources.split(" * ")
    right = f" {join} ".join(parts)
    if join in ("max", "min") and len(parts) > 1:
        right = f"{join}({', '.join(parts)})"
    return replace(start, text=f"{output} {combiner if sign == '+=' else ''}= {right}")


def prologues(
    rng: np.random.Generator, start: Problem, shapes: dict[str, tuple[int, ...]], top: int
) -> Problem:
    """The operator with some of its sources computed.

    Args:
        rng: where chance comes from.
        start: the operator.
        shapes: shape of each of its tensors.
        top: floats are whole numbers up to it, so that their sums are exact.
    """
    problem = start
    for name, kind in start.dtypes.items():
        # An index of several dimensions makes a source of which only a diagonal is read.
        large = int(np.prod(shapes[name], dtype=np.int64)) > 1 << 20
        if name == start.output or kind not in _COMPUTED or chance(rng, 0.3) or large:
            continue
        problem = replace(
            problem,
            prologues=(*problem.prologues, _prologue(rng, problem, name, len(shapes[name]), top)),
        )
    return problem


def _prologue(
    rng: np.random.Generator, start: Problem, source: str, rank: int, top: int
) -> Computed:
    names = Names(rng, 0.2)
    plain = [*"ijkncwhpq", *(f"d{n}" for n in range(rank))]
    dimensions = [names.draw(plain, ODD_LOOPS) for _ in range(rank)]
    used = start.tensors - ({source} if chance(rng, 0.15) else set())
    drawn = Expressions(rng, used, dimensions)
    drawn.value = drawn.tensor([str(name) for name in rng.permutation(dimensions)])
    kind = start.dtypes[source]
    text = drawn.node(int(rng.integers(0, 4)))
    if drawn.value not in text:
        text = f"{drawn.value} + ({text})"
    if kind not in LIMITS:
        text = f"clip(round({text}), -{top}, {top})"
    if kind in _CASTS and chance(rng, 0.4):
        text = f"{_CASTS[kind]}({text})"
    return Computed(source, f"{source}[{', '.join(dimensions)}]", text, drawn.read(text))


def store(rng: np.random.Generator, start: Problem) -> Problem:
    """The operator with results stored elsewhere."""
    used = start.tensors - {start.output}
    place, shape, shapes = _place(rng, start, start.spatial, used, start.output)
    return replace(start, store=place, store_shape=shape, store_shapes=shapes)


def _place(
    rng: np.random.Generator, start: Problem, loops: list[str], used: set[str], *plain: str
) -> tuple[str, tuple[int, ...], dict[str, tuple[int, ...]]]:
    """An access that has an element for each step of these loops, and its tensor's shape.

    The shape is also given by name where it is larger than what is reached.
    """
    digits = [digit for loop in loops for digit in _digits(rng, loop, start.extents[loop])]
    extents = dict(digits)
    indices, shape, larger = [], [], chance(rng, 0.2)
    for group in groups(rng, [*extents]):
        reach, terms, constant = 0, [], int(rng.choice([0, 0, 0, 1, 3]))
        first = constant
        for name in group:
            step = reach + 1 + int(rng.choice([0, 0, 0, 0, 1, 2]))
            reach += step * (extents[name] - 1)
            back = chance(rng, 0.1)
            constant += step * (extents[name] - 1) if back else 0
            terms.append(f"{'-' if back else '+'} {name}" + (f"*{step}" if step > 1 else ""))
        shuffled = " ".join(terms[n] for n in rng.permutation(len(terms)))
        indices.append(f"{constant} {shuffled}" if constant else shuffled.removeprefix("+ "))
        shape.append(first + reach + 1 + int(larger and rng.integers(0, 3)))
    if extents and chance(rng, 0.1):  # a diagonal: what says again what another index says
        again, at = str(rng.choice([*extents])), int(rng.integers(len(indices) + 1))
        indices.insert(at, again)
        shape.insert(at, extents[again])
    names = Names(rng, 0.2)
    names.used = used
    odd = ["out", "x", "Dst", "packed", "stage", "main", "f32"]
    name = names.draw(["y", "result", *(plain or ("top", "mean", "f", "z"))], odd)
    # Without a shape there is room for every value of each digit.
    return f"{name}[{', '.join(indices)}]", tuple(shape), {name: tuple(shape)} if larger else {}


def _digits(rng: np.random.Generator, loop: str, extent: int) -> list[tuple[str, int]]:
    """A loop, whole or in pieces that tell each of its steps from the others, and their extents."""
    if extent == 1 and chance(rng, 0.5):
        return []
    if extent < 3 or chance(rng, 0.6):
        return [(loop, extent)]
    size = int(rng.integers(2, extent))
    above = -(-extent // size)
    low = (f"{loop}%{size}", size)
    if above < 4 or chance(rng, 0.6):
        return [low, (f"{loop}//{size}", above)]
    middle = int(rng.integers(2, above))
    return [
        low,
        (f"{loop}//{size}%{middle}", middle),
        (f"{loop}//{size * middle}", -(-above // middle)),
    ]
