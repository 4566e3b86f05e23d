"""The state of a drawn chain: its tensors, what the oracle knows of them, and its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from tests.support.drawing.chain_reads import Layer, Read
from tests.support.oracle.bounds import Bounded, combined, computed, stored

__all__ = ["INTEGERS", "ChainState"]

Array = np.ndarray
INTEGERS = ("uint8", "int8", "int32")
_SIZES = (1, 2, 3, 5, 8, 16, 17, 20, 33, 48, 64, 70)
_LARGEST = 2.0**30


@dataclass
class ChainState:
    """A chain as it is drawn, without the kinds of statements.

    Attributes:
        whole: begins with a product of bytes.
        layered: consists of products, with epilogues.
        infinite: has NaN and infinities in some inputs.
        extents: of all loops.
        literals: matrices by name.
        texts: the statements.
        layers: the products, as operators.
        inputs: by name, in the dtypes of :attr:`dtypes`.
        arrays: what the oracle knows.
        dims: the loops of each tensor.
        kinds: the dtype of each tensor.
        dtypes: those that a text has to state.
    """

    rng: np.random.Generator
    whole: bool = False
    layered: bool = False
    infinite: bool = False
    extents: dict[str, int] = field(default_factory=dict)
    literals: dict[str, Array] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    arrays: dict[str, Bounded] = field(default_factory=dict)
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """Of all integers between statements."""
        own = [x.value for name, x in self.arrays.items() if self.kinds[name] in INTEGERS]
        return max((float(np.abs(x).max()) for x in own if x.size), default=0.0)

    @property
    def fits(self) -> bool:
        """Whether no integer is near the end of its dtype."""
        return self.largest < _LARGEST

    @property
    def text(self) -> str:
        """All statements, behind the literals."""
        matrices = [f"{name} = {x.tolist()}" for name, x in self.literals.items()]
        return "; ".join([*matrices, *self.texts])

    def loop(self, extent: int = 0) -> str:
        """A new loop."""
        name = f"l{len(self.extents)}"
        self.extents[name] = extent or int(self.rng.choice(_SIZES))
        return name

    def input_over(self, loops: Sequence[str], kind: str = "float32", name: str = "x") -> str:
        """An input with a dimension for each loop; halves of numbers that all floats have."""
        shape = [self.extents[loop] for loop in loops]
        name = f"{name}{len(self.inputs)}"
        low, high = (0, 20) if kind == "uint8" else (-16, 17)
        values = np.asarray(self.rng.integers(low, high, shape))
        array = values.astype(kind) if kind in INTEGERS else (values / 8).astype(np.float32)
        array = array.astype(np.float16) if kind == "float16" else array
        if self.infinite and kind not in INTEGERS and self.rng.random() < 0.4:
            self._spoil(array)
        self.inputs[name], self.arrays[name] = array, Bounded.exact(array)
        self.dims[name], self.kinds[name] = tuple(loops), kind
        if kind != "float32":
            self.dtypes[name] = kind
        return name

    def _spoil(self, array: Array) -> None:
        """Put some NaN and infinities into an array, or hide a row of it."""
        if array.ndim and self.rng.random() < 0.2:
            rows = array.reshape(-1, array.shape[-1])
            rows[int(self.rng.integers(len(rows)))] = -np.inf
            return
        for _ in range(int(self.rng.integers(1, 4))):
            place = int(self.rng.integers(array.size))
            array.reshape(-1)[place] = self.rng.choice([np.nan, np.inf, -np.inf])

    def _half(self) -> str:
        return str(self.rng.choice(["float32", "float32", "bfloat16", "float16"]))

    def _plain(self, name: str) -> Read:
        """A tensor at its own loops, of which those of one extent may be exchanged."""
        loops = [*self.dims[name]]
        for n, (a, b) in enumerate(pairwise(self.dims[name])):
            is_square = self.extents[a] == self.extents[b] and name not in self.inputs
            if is_square and self.rng.random() < 0.3:
                loops[n], loops[n + 1] = loops[n + 1], loops[n]
                break
        return Read(name, tuple((loop, 1, "", 0) for loop in loops))

    def _short(self, read: Read) -> str:
        """A temporary at its own loops may go without these."""
        own = read.loops == [*self.dims[read.name]] and read.name not in self.inputs
        return read.name if own and self.rng.random() < 0.3 else str(read)

    def _grid(self, loops: Sequence[str]) -> dict[str, Array]:
        shape = [self.extents[loop] for loop in loops]
        return dict(zip(loops, np.indices(shape, sparse=True), strict=True))

    def _values(
        self, loops: Sequence[str], function: Callable[..., Any], reads: Sequence[Read], exact: bool
    ) -> Bounded:
        """A function of reads at all points of some loops."""
        grid = self._grid(loops)
        terms = computed(function, *(x.at(self.arrays, grid) for x in reads), exact=exact)
        return terms.spread([self.extents[loop] for loop in loops])

    def _keep(self, dims: Sequence[str], text: str, value: Bounded, kind: str) -> str:
        """Append a statement."""
        name = f"t{len(self.texts)}"
        if kind == "float32" and not self.layered and self.rng.random() < 0.15:
            kind = str(self.rng.choice(["bfloat16", "float16"]))
            self.dtypes[name] = kind
        self.texts.append(text.replace("@", name, 1))
        self.arrays[name], self.dims[name] = stored(value, kind), tuple(dims)
        self.kinds[name] = kind
        return name

    def _write(
        self,
        dims: Sequence[str],
        sign: str,
        text: str,
        function: Callable[..., Any],
        reads: Sequence[Read],
        kind: str = "float32",
    ) -> str:
        """A statement, and what it comes to."""
        loops = [*dict.fromkeys([*dims, *(n for read in reads for n in read.loops)])]
        value = self._values(loops, function, reads, kind == "int32")
        if sign:
            axes = tuple(range(len(dims), len(loops)))
            value = combined(sign, value, axes, exact=kind == "int32")
        return self._keep(dims, f"@[{','.join(dims)}] {sign}= {text}", value, kind)

    def _second(self, dims: Sequence[str]) -> Read:
        """A further operand over some loops: an input, or what a statement before wrote."""
        fitting = [n for n in self.dims if n[0] == "t" and {*self.dims[n]} <= {*dims}]
        if fitting and self.rng.random() < 0.3:
            return self._plain(str(self.rng.choice(fitting)))
        shared = [loop for loop in dims if self.rng.random() < 0.6]
        return self._plain(self.input_over(shared))

    def _kind(self, reads: Sequence[Read], integers: bool) -> str:
        whole = all(self.kinds[read.name] in INTEGERS for read in reads)
        return "int32" if whole and integers else "float32"
