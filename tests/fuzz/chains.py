"""Random chains of two and three statements, in random tiles, against an oracle of its own.

The oracle computes each statement on a grid of all its loops, in doubles, from what was drawn: it
never sees the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from amos.chains import ChainCandidate, ChainKernel, Tiling, simulate_tiling
from amos.chains.records import candidate_from
from amos.errors import ExploreError, ScheduleError
from amos.explore.choosing import Chooser
from amos.ir import Chain
from tests.fuzz.case import Refused, Wrong
from tests.support.chains import best_candidate

__all__ = ["candidate", "kernel", "simulation"]

Array = np.ndarray
#: Functions of the language, by what they are in doubles.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "relu({})": lambda x: np.maximum(x, 0),
    "sigmoid({})": lambda x: 1 / (1 + np.exp(-x)),
    "tanh({})": np.tanh,
    "exp(0 - abs({}))": lambda x: np.exp(-np.abs(x)),
    "{} * 0.5 + 1": lambda x: x * 0.5 + 1,
    "{} + {}": np.add,
    "{} * {}": np.multiply,
    "max({}, {})": np.maximum,
    "min({}, {})": np.minimum,
    "{} - {}": np.subtract,
}
_TOLERANCE = 2e-4


@dataclass(frozen=True)
class Read:
    """An access: for each dimension a loop, its step, and a second loop or nothing."""

    name: str
    indices: tuple[tuple[str, int, str], ...]

    def __str__(self) -> str:
        inner = ",".join(
            f"{loop}*{step}+{more}" if more else loop for loop, step, more in self.indices
        )
        return f"{self.name}[{inner}]"

    def at(self, arrays: Mapping[str, Array], grid: Mapping[str, Array]) -> Array:
        """The elements at all points."""
        places = [grid[a] * step + (grid[b] if b else 0) for a, step, b in self.indices]
        return np.asarray(arrays[self.name][tuple(places)])


@dataclass
class Drawn:
    """A chain as it is drawn.

    Attributes:
        extents: of all loops.
        texts: the statements.
        inputs: by name, in the dtypes of :attr:`dtypes`.
        arrays: what the oracle knows, in doubles.
        dims: the loops of each tensor.
    """

    rng: np.random.Generator
    whole: bool
    extents: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def loop(self, extent: int = 0) -> str:
        """A new loop."""
        name = f"l{len(self.extents)}"
        self.extents[name] = extent or int(self.rng.choice([1, 2, 3, 5, 8, 16, 17, 20, 33, 64, 70]))
        return name

    def tensor(self, shape: Sequence[int], kind: str = "") -> str:
        """A new input."""
        name, kind = f"x{len(self.inputs)}", kind or "float32"
        low, high = (0, 20) if kind == "uint8" else (-16, 17)
        values = self.rng.integers(low, high, shape)
        array = values.astype(kind) if kind.endswith("int8") else (values / 8).astype(np.float32)
        self.inputs[name], self.arrays[name] = array, array.astype(np.float64)
        if kind != "float32":
            self.dtypes[name] = kind
        return name

    def plain(self, name: str, loops: Sequence[str]) -> Read:
        return Read(name, tuple((loop, 1, "") for loop in loops))

    def write(
        self,
        dims: Sequence[str],
        sign: str,
        text: str,
        value: Callable[..., Array],
        reads: Sequence[Read],
    ) -> str:
        """A statement, and what it comes to."""
        name = f"t{len(self.texts)}"
        loops = [
            *dict.fromkeys(
                [*dims, *(n for r in reads for a, _, b in r.indices for n in (a, b) if n)]
            )
        ]
        shape = [self.extents[loop] for loop in loops]
        grid = dict(zip(loops, np.indices(shape, sparse=True), strict=True))
        values = np.broadcast_to(value(*(r.at(self.arrays, grid) for r in reads)), shape)
        axes = tuple(range(len(dims), len(loops)))
        functions = {"+": np.add, "max": np.maximum, "min": np.minimum}
        self.arrays[name] = functions[sign].reduce(values, axis=axes) if sign else np.array(values)
        self.dims[name] = tuple(dims)
        self.texts.append(f"{name}[{','.join(dims)}] {sign}= {text}")
        return name

    def first(self) -> str:
        kind = self.rng.choice(["product", "product", "stencil", "elementwise"])
        loops = [self.loop() for _ in range(int(self.rng.integers(1, 3)))]
        if kind == "elementwise":
            return self.elementwise(self.input_over(loops), loops)
        source = self.input_over([*loops, self.loop()], "uint8" if self.whole else self._half())
        return self.product(source) if kind == "product" else self.stencil(source)

    def _half(self) -> str:
        return str(self.rng.choice(["float32", "float32", "bfloat16"]))

    def input_over(self, loops: Sequence[str], kind: str = "") -> str:
        """An input with a dimension for each loop."""
        plain = "float32" if kind == "bfloat16" else kind
        name = self.tensor([self.extents[loop] for loop in loops], plain)
        if kind == "bfloat16":
            self.dtypes[name] = kind
        self.dims[name] = tuple(loops)
        return name

    def elementwise(self, source: str, dims: Sequence[str]) -> str:
        text = str(self.rng.choice([*FUNCTIONS]))
        reads = [self.plain(source, self.dims[source])]
        if text.count("{}") == 2:
            shared = [loop for loop in dims if self.rng.random() < 0.6]
            reads.append(self.plain(self.input_over(shared), shared))
        order = [*dims]
        if self.rng.random() < 0.3:
            self.rng.shuffle(order)
        return self.write(order, "", text.format(*reads), FUNCTIONS[text], reads)

    def reduction(self, source: str) -> str:
        dims = list(self.dims[source])
        gone = dims.pop(int(self.rng.integers(len(dims))))
        sign = str(self.rng.choice(["+", "max", "min"]))
        read = self.plain(source, self.dims[source])
        del gone
        return self.write(dims, sign, f"{read} * 0.5", lambda x: x * 0.5, [read])

    def softmax(self, source: str) -> str:
        dims = self.dims[source]
        axis = int(self.rng.integers(len(dims)))
        name, values = f"t{len(self.texts)}", self.arrays[source]
        power = np.exp(values - values.max(axis, keepdims=True))
        self.arrays[name] = power / power.sum(axis, keepdims=True)
        self.dims[name] = dims
        self.texts.append(f"{name} = softmax({source}[{','.join(dims)}], axis={dims[axis]})")
        return name

    def product(self, source: str) -> str:
        dims = list(self.dims[source])
        summed = dims.pop(int(self.rng.integers(len(dims))))
        shared = [loop for loop in dims[:1] if self.rng.random() < 0.4]
        fresh = self.loop()
        loops = [*shared, *([summed, fresh] if self.rng.random() < 0.5 else [fresh, summed])]
        whole = self.dtypes.get(source) == "uint8"
        kind = "int8" if whole else self.dtypes.get(source, "float32")
        second = self.input_over(loops, kind)
        reads = [self.plain(source, self.dims[source]), self.plain(second, loops)]
        text = " * ".join(map(str, reads))
        return self.write([*dims, fresh], "+", text, np.multiply, reads)

    def stencil(self, source: str) -> str:
        dims = list(self.dims[source])
        place = int(self.rng.integers(len(dims)))
        size = self.extents[dims[place]]
        taps, step = int(self.rng.integers(1, min(4, size) + 1)), int(self.rng.integers(1, 3))
        moved, tap = self.loop((size - taps) // step + 1), self.loop(taps)
        kind = "int8" if self.dtypes.get(source) == "uint8" else "float32"
        weight = self.input_over([tap], kind)
        indices = [(moved, step, tap) if n == place else (d, 1, "") for n, d in enumerate(dims)]
        reads = [Read(source, tuple(indices)), self.plain(weight, [tap])]
        dims[place] = moved
        return self.write(dims, "+", " * ".join(map(str, reads)), np.multiply, reads)


def _drawn(rng: np.random.Generator) -> Drawn:
    drawn = Drawn(rng, whole=bool(rng.random() < 0.25))
    last = drawn.first()
    for _ in range(int(rng.integers(1, 3))):
        if not drawn.dims[last]:
            break
        kind = str(rng.choice(["elementwise", "reduction", "softmax", "product", "stencil"]))
        last = (
            drawn.elementwise(last, drawn.dims[last])
            if kind == "elementwise"
            else getattr(drawn, kind)(last)
        )
    if len(drawn.texts) < 2:
        raise Refused("one statement")
    return drawn


def _tiling(rng: np.random.Generator, drawn: Drawn, chain: Chain) -> Tiling:
    """Random tiles of the result's loops, and sometimes parts of a row."""
    own = list(drawn.dims[chain.result.name])
    rng.shuffle(own)
    tiles = {n: int(rng.integers(1, drawn.extents[n] + 1)) for n in own if rng.random() < 0.6}
    reduced = sorted({it.name for step in chain.steps for it in step.reduce} - set(own))
    if reduced and rng.random() < 0.5:
        name = str(rng.choice(reduced))
        size = drawn.extents[name]
        tiles[name] = int(rng.choice([n for n in range(1, size + 1) if size % n == 0]))
    if tiles and rng.random() < 0.5:
        with suppress(ScheduleError):  # no rows roll
            return Tiling.of(chain, tiles, str(rng.choice([*tiles])))
    return Tiling.of(chain, tiles)


def _case(rng: np.random.Generator, about: Callable[[str], None]) -> tuple[Drawn, Tiling]:
    drawn = _drawn(rng)
    text = "; ".join(drawn.texts)
    used = {n: s for n, s in drawn.extents.items() if n in text}
    source = f"Chain.parse({text!r}, {used}, {drawn.dtypes})"
    about(source)
    shapes = {name: array.shape for name, array in drawn.inputs.items() if array.shape}
    chain = Chain.parse(text, used, drawn.dtypes, shapes=shapes)
    try:
        tiling = _tiling(rng, drawn, chain)
    except ScheduleError as error:
        raise Refused(str(error)) from None
    about(f"{source}; tiles {tiling.tiles} rolling {tiling.rolling_loop!r}")
    return drawn, tiling


def _compare(drawn: Drawn, chain: Chain, got: Array) -> None:
    expected = drawn.arrays[chain.result.name]
    scale = max(1.0, float(np.abs(expected).max()))
    kinds = (*drawn.dtypes.values(), *(str(t.dtype) for t in chain.temporaries))
    allowed = _TOLERANCE * scale * (50 if "bfloat16" in kinds else 1)
    if got.shape != expected.shape:
        raise Wrong(f"shape {got.shape}, expected {expected.shape}")
    difference = float(np.abs(got.astype(np.float64) - expected).max())
    if not difference <= allowed:
        raise Wrong(f"largest difference {difference:g} of {scale:g}")


def simulation(rng: np.random.Generator, about: Callable[[str], None]) -> str:
    """The chain and its tiles in NumPy."""
    drawn, tiling = _case(rng, about)
    _compare(drawn, tiling.chain, simulate_tiling(tiling, drawn.inputs))
    return "right"


@cache
def _chooser() -> Chooser:
    return Chooser("host", core=True)


def kernel(rng: np.random.Generator, about: Callable[[str], None]) -> str:
    """A kernel of it, and the kernel of its record."""
    drawn, best = _candidate(rng, about)
    again = candidate_from(best.chain, best.values())
    if str(again) != str(best) or again.values() != best.values():
        raise Wrong(f"its record is of {again}")
    _compare(drawn, best.chain, ChainKernel(best)(**drawn.inputs))
    return "right"


def candidate(rng: np.random.Generator, about: Callable[[str], None]) -> ChainCandidate:
    """A chain, its tiles, and the best kernels of its products."""
    return _candidate(rng, about)[1]


def _candidate(
    rng: np.random.Generator, about: Callable[[str], None]
) -> tuple[Drawn, ChainCandidate]:
    drawn, tiling = _case(rng, about)
    try:
        best = best_candidate(_chooser(), tiling, packs=bool(rng.random() < 0.7))
    except ExploreError as error:
        raise Refused(str(error)) from None
    about(f"{tiling.chain}; {best}")
    return drawn, best
