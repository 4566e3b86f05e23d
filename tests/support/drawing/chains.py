"""Chains that grow by one statement at a time, computed as they are drawn.

Each statement is computed on a grid of all its loops, in doubles, from what was drawn: nothing
here sees its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.support.drawing.chain_reads import Layer, Read
from tests.support.drawing.chain_state import INTEGERS, ChainState
from tests.support.oracle.bounds import Bounded, combined, computed, softmax

__all__ = ["DrawnChain"]

#: Functions of the language, by what they are in doubles; those of floats first.
_FLOATS: Mapping[str, Callable[..., Any]] = {
    "sigmoid({})": lambda x: 1 / (1 + np.exp(-x)),
    "tanh({})": np.tanh,
    "exp(0 - abs({}))": lambda x: np.exp(-np.abs(x)),
    "{} * 0.5 + 1": lambda x: x * 0.5 + 1,
    "sqrt(abs({}))": lambda x: np.sqrt(np.abs(x)),
}
_BOTH: Mapping[str, Callable[..., Any]] = {
    "relu({})": lambda x: np.maximum(x, 0),
    "clip({}, 0 - 2, 3)": lambda x: np.clip(x, -2, 3),
    "{} + {}": np.add,
    "{} * {}": np.multiply,
    "max({}, {})": np.maximum,
    "min({}, {})": np.minimum,
    "{} - {}": np.subtract,
}
_CASTS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "u8({} * 0.5)": ("uint8", lambda x: np.clip(np.rint(x * 0.5), 0, 255)),
    "s8({} * 0.25)": ("int8", lambda x: np.clip(np.rint(x * 0.25), -128, 127)),
}
_FUNCTIONS = {**_FLOATS, **_BOTH}


class DrawnChain(ChainState):
    """A chain that grows by a statement of any kind."""

    def start(self) -> str:
        """The first statement."""
        kinds = ["product", "product", "stencil"]
        kind = self.rng.choice(kinds if self.layered else [*kinds, "elementwise", "rows"])
        loops = [self.loop() for _ in range(int(self.rng.integers(1, 4)))]
        if kind == "elementwise":
            return self.elementwise(self.input_over(loops, self._half()))
        if kind == "rows":
            return self.rows(self.input_over(loops))
        source = self.input_over([*loops, self.loop()], "uint8" if self.whole else self._half())
        return self.product(source) if kind == "product" else self.stencil(source)

    def grow(self, source: str) -> str:
        """Another statement."""
        kinds = ["product", "stencil"]
        if not self.layered:
            kinds += ["elementwise", "reduction", "rows", "elementwise", "powers", "cast", "causal"]
            kinds += ["transform"]
        return str(getattr(self, str(self.rng.choice(kinds)))(source))

    def elementwise(self, source: str) -> str:
        text = str(self.rng.choice([*_FUNCTIONS]))
        dims = self.dims[source]
        reads = [self._plain(source)]
        if text.count("{}") == 2:
            reads.append(self._second(dims))
        order = [*dims]
        if self.rng.random() < 0.3:
            self.rng.shuffle(order)
        kind = self._kind(reads, text in _BOTH)
        return self._write(
            order, "", text.format(*map(self._short, reads)), _FUNCTIONS[text], reads, kind
        )

    def cast(self, source: str) -> str:
        text = str(self.rng.choice([*_CASTS]))
        kind, function = _CASTS[text]
        read, dims = self._plain(source), self.dims[source]
        value = self._values(dims, function, [read], True)
        # An integer of NaN is the smallest of its dtype.
        low = 0 if kind == "uint8" else -128
        value = Bounded(np.where(np.isnan(value.value), low, value.value), value.error)
        return self._keep(dims, f"@[{','.join(dims)}] = {text.format(read)}", value, kind)

    def causal(self, source: str) -> str:
        """Hide what comes later along two loops, as a mask does."""
        dims = self.dims[source]
        if len(dims) < 2 or self.kinds[source] in INTEGERS:
            return self.elementwise(source)
        q, k = dims[-2:]
        read = Read(source, tuple((loop, 1, "", 0) for loop in dims))
        grid = self._grid(dims)
        hidden = np.minimum(grid[q] - grid[k], 0) * 1e30
        value = self._values(dims, lambda x: x + hidden, [read], False)
        text = f"@[{','.join(dims)}] = {self._short(read)} + min({q} - {k}, 0) * 1e30"
        return self._keep(dims, text, value, "float32")

    def reduction(self, source: str) -> str:
        dims, read = [*self.dims[source]], self._plain(source)
        for _ in range(int(self.rng.choice([1, 1, 1, 2]))):
            if dims:
                dims.pop(int(self.rng.integers(len(dims))))
        sign = str(self.rng.choice(["+", "max", "min"]))
        text = f"{self._short(read)} * 0.5"
        return self._write(dims, sign, text, lambda x: x * 0.5, [read])

    def rows(self, source: str) -> str:
        """A function of rows, of an expression."""
        dims, read = [*self.dims[source]], self._plain(source)
        if not dims:
            return self.elementwise(source)
        axis = int(self.rng.integers(len(dims)))
        name = str(
            self.rng.choice(["softmax", "softmax", "safe_softmax", "logsumexp", "sum", "max"])
        )
        reads, text = [read], f"{self._short(read)} * 0.5"
        if self.rng.random() < 0.3:
            reads.append(self._second(dims))
            text = f"{text} + {reads[1]}"
        value = self._values(dims, lambda x, *more: x * 0.5 + sum(more), reads, False)
        if name in ("sum", "max"):
            value = combined("+" if name == "sum" else name, value, (axis,))
        else:
            value = softmax(name, value, axis)
        text = f"{name}({text}, axis={dims[axis]})"
        if name not in ("softmax", "safe_softmax"):
            dims.pop(axis)
        # Without indices they are those that the text mentions first.
        return self._keep(dims, f"@[{','.join(dims)}] = {text}", value, "float32")

    def powers(self, source: str) -> str:
        """A maximum of rows, and exponentials relative to it."""
        dims = [*self.dims[source]]
        if not dims or self.kinds[source] in INTEGERS:
            return self.elementwise(source)
        row = [*dims]
        row.pop(int(self.rng.integers(len(row))))
        read = Read(source, tuple((loop, 1, "", 0) for loop in dims))
        top = self._write(row, "max", str(read), lambda x: x, [read])
        reads = [read, Read(top, tuple((loop, 1, "", 0) for loop in row))]
        text = f"exp({self._short(reads[0])} - {self._short(reads[1])})"
        return self._write(dims, "", text, lambda x, m: np.exp(np.clip(x - m, -104, 89)), reads)

    def transform(self, source: str, *, merged: bool = False) -> str:
        """A product with literals along a dimension, in tiles that may overlap.

        Args:
            merged: rows of tiles are a dimension of the result, of which an expression is stored.
        """
        dims = [*self.dims[source]]
        if len(dims) < 2:
            return self.elementwise(source)
        place = int(self.rng.integers(len(dims) - 1))
        size = self.extents[dims[place]]
        taps = int(self.rng.integers(1, min(4, size) + 1))
        offset = -int(self.rng.integers(0, taps)) if self.rng.random() < 0.4 else 0
        step = int(self.rng.integers(1, taps + 1))
        count = (size - 1) // step + 1 if offset else (size - taps) // step + 1
        moved, tap = self.loop(count), self.loop(taps)
        padded = bool(offset) or (count - 1) * step + taps + offset > size
        indices = [
            (moved, step, tap, offset) if n == place else (d, 1, "", 0) for n, d in enumerate(dims)
        ]
        read = Read(source, tuple(indices), padded)
        kind = self._kind([read], True)
        factors, last = list[tuple[str, str, str]](), tap
        for _ in range(int(self.rng.integers(1, 3))):
            row = self.loop(int(self.rng.integers(1, 5)))
            name = f"m{len(self.literals)}"
            shape = (self.extents[row], self.extents[last])
            numbers = self.rng.choice([-3, -1, -1, 0, 0, 1, 1, 2], shape)
            self.literals[name] = numbers if kind == "int32" else numbers * 0.5
            factors.insert(0, (name, row, last))
            last = row
        between = [place + 1] if merged else [*range(len(dims))]
        dims[place] = moved
        dims.insert(int(self.rng.choice(between)), last)
        loops = [*dims, *(column for _, _, column in factors)]
        grid = self._grid(loops)
        values = self._values(loops, lambda x: x, [read], kind == "int32")
        for name, row, column in factors:
            scale = self.literals[name][grid[row], grid[column]]
            # Zeros add nothing, whatever they are multiplied by.
            pair = (np.where(scale == 0, 0, x) for x in (values.value, values.error))
            values = Bounded(*(x * y for x, y in zip(pair, (scale, np.abs(scale)), strict=True)))
        value = combined("+", values, (*range(len(dims), len(loops)),), exact=kind == "int32")
        product = " * ".join([*(f"{name}[{a},{b}]" for name, a, b in factors), str(read)])
        if not merged:
            return self._keep(dims, f"@[{','.join(dims)}] += {product}", value, kind)
        index = [*dims[:place], f"{moved}*{self.extents[last]}+{last}", *dims[place + 2 :]]
        target = ",".join(index)
        shape = value.value.shape
        whole = (*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :])
        value = Bounded(value.value.reshape(whole), value.error.reshape(whole))
        if self.rng.random() < 0.5:
            return self._keep(dims, f"@[{target}] += {product}", value, kind)
        axis = dims[-1]
        bias = self.input_over([axis])
        value = computed(lambda x, y: np.maximum(x, 0) + y, value, self.arrays[bias])
        text = f"s[{target}] += {product}; @[{target}] = relu(s) + {bias}[{axis}]"
        return self._keep(dims, text, value, "float32")

    def product(self, source: str) -> str:
        """A sum of products with an input, or with what an earlier statement wrote."""
        dims, read = [*self.dims[source]], self._plain(source)
        if not dims:
            return self.elementwise(source)
        summed = dims.pop(int(self.rng.integers(len(dims))))
        shared = [loop for loop in dims if self.rng.random() < 0.25]
        fresh = [self.loop()] if self.rng.random() < 0.9 else []
        loops = [*shared, *fresh, summed]
        if self.rng.random() < 0.7:
            self.rng.shuffle(loops)
        kind = self._partner(source)
        name = "weight" if self.rng.random() < 0.3 else "x"
        second = self.input_over(loops, kind, name)
        fixed = Read(second, tuple((loop, 1, "", 0) for loop in loops))
        dims = [*dims, *fresh]
        if self.rng.random() < 0.2:
            self.rng.shuffle(dims)
        return self._sum(dims, [read, fixed])

    def _partner(self, source: str) -> str:
        """The dtype of what a source is multiplied by."""
        kind = self.kinds[source]
        if kind in ("uint8", "int8"):
            return "int8"
        return "float32" if kind in INTEGERS else kind

    def stencil(self, source: str) -> str:
        """A sum over neighbours, with padding perhaps."""
        dims = list(self.dims[source])
        if not dims:
            return self.elementwise(source)
        place = int(self.rng.integers(len(dims)))
        size = self.extents[dims[place]]
        taps, step = int(self.rng.integers(1, min(4, size) + 1)), int(self.rng.integers(1, 3))
        offset = -int(self.rng.integers(0, taps)) if self.rng.random() < 0.3 else 0
        count = (size - taps) // step + 1
        if offset:  # as many results as windows begin within the tensor
            count = (size - 1) // step + 1
        moved, tap = self.loop(count), self.loop(taps)
        loops = [tap, *(d for d in dims if d != dims[place] and self.rng.random() < 0.2)]
        weight = self.input_over(loops, self._partner(source))
        indices = [
            (moved, step, tap, offset) if n == place else (d, 1, "", 0) for n, d in enumerate(dims)
        ]
        padded = bool(offset) or (count - 1) * step + taps + offset > size
        reads = [
            Read(source, tuple(indices), padded),
            Read(weight, tuple((loop, 1, "", 0) for loop in loops)),
        ]
        dims[place] = moved
        return self._sum(dims, reads)

    def _sum(self, dims: Sequence[str], reads: Sequence[Read]) -> str:
        """A product, perhaps with an epilogue."""
        kind = self._kind(reads, True)
        text = " * ".join(map(str, reads))
        name = f"t{len(self.texts)}"
        own = {read.name: self.kinds[read.name] for read in reads} | {name: kind}
        target = self._write(dims, "+", text, np.multiply, reads, kind)
        if self.layered:
            epilogue, more = self._epilogue(target) if self.rng.random() < 0.7 else ("", {})
            sources = tuple(read.name for read in reads)
            self.layers.append(Layer(self.texts[-1], sources, own, epilogue, more))
        return target

    def _epilogue(self, target: str) -> tuple[str, dict[str, str]]:
        """Replace a sum by an expression of it."""
        dims, kind = self.dims[target], self.kinds[target]
        value = self.arrays[target]
        if self.rng.random() < (0.6 if kind == "int32" else 0.1):
            text = str(self.rng.choice([*_CASTS]))
            kind, function = _CASTS[text]
            value = computed(function, value, exact=True)
            low = 0 if kind == "uint8" else -128
            value = Bounded(np.where(np.isnan(value.value), low, value.value), value.error)
            self.arrays[target], self.kinds[target] = value, kind
            return text.format("acc"), {}
        text, more, args = str(self.rng.choice([*_FUNCTIONS])), dict[str, str](), [value]
        places, reads = ["acc"], []
        if text.count("{}") == 2:
            shared = [loop for loop in dims if self.rng.random() < 0.6]
            reads = [self._plain(self.input_over(shared))]
            places += [str(reads[0])]
            more[reads[0].name] = "float32"
            args.append(reads[0].at(self.arrays, self._grid(dims)))
        whole = kind == "int32" and text in _BOTH and not more
        value = computed(_FUNCTIONS[text], *args, exact=whole)
        self.kinds[target] = "int32" if whole else "float32"
        self.arrays[target] = value.spread([self.extents[loop] for loop in dims])
        return text.format(*places), more
