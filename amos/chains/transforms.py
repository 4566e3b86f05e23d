"""Transforms by literal matrices as TensorIR: tiles in registers, in vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import Any

from amos.chains.loops import LANES, LocalAssignment
from amos.codegen.tir.arrays import constant, decode
from amos.codegen.tir.epilogue import apply_epilogue, cast_result
from amos.codegen.tir.lane_steps import LaneSteps
from amos.ir import Affine, BufferLoad, dtype
from amos.ir.transforms import Literal, Transform, is_copy


@dataclass(frozen=True)
class _Access:
    """An access to memory from within a tile.

    Attributes:
        load: by iterations with values of their own, or from zero on.
        buffer: that it is to.
        starts: added to iterations that begin at zero.
        extents: of the iterations.
    """

    load: BufferLoad
    buffer: Any
    starts: Mapping[str, Any]
    extents: Mapping[str, int]

    def indices(self, place: Mapping[str, Any]) -> list[Any]:
        """Return the indices of an element."""
        from tvm import tirx

        zero = tirx.const(0, "int32")
        own = {name: self.starts.get(name, 0) + place[name] for name in self.load.names}
        return [zero + index.evaluate(own) for index in self.load.indices]

    def conditions(self, indices: Sequence[Any], spans: Mapping[str, int]) -> list[Any]:
        """Return the conditions that an access is within its tensor, where it may not be.

        Args:
            indices: of an element.
            spans: for iterations that run on from there how many values they take.
        """
        conditions = []
        sizes = zip(self.load.indices, self.load.tensor.shape, indices, strict=True)
        for index, size, place in sizes:
            least, largest = index.bounds(self.extents)
            moving = Affine(tuple(term for term in index.terms if term[0] in spans))
            low, high = moving.bounds(spans)
            conditions += [place + low >= 0] * (least < 0)
            conditions += [place + high < size] * (largest >= size)
        return conditions


class _Writer:
    """Writes a transform on a tile.

    Args:
        whole: the transform.
        local: the same on a tile.
        inputs: buffers of what a chain reads and returns.
        memory: buffers of temporaries in a tile.
        parallel: whether cores share the vectors.
    """

    def __init__(
        self,
        whole: Transform,
        local: LocalAssignment,
        inputs: Mapping[str, Any],
        memory: Mapping[str, Any],
        parallel: bool,
    ) -> None:
        from tvm import tirx

        inner = local.step
        assert isinstance(inner, Transform)
        self.whole, self.starts, self.inputs = whole, local.starts, inputs

        def access(own: BufferLoad, local_load: BufferLoad) -> _Access:
            if (name := own.tensor.name) in inputs:
                return _Access(own, inputs[name], local.starts, whole.extents)
            return _Access(local_load, memory[name], {}, inner.extents)

        self.source = access(whole.source, inner.source)
        self.target = access(whole.output, inner.output)
        (self.lane,) = inner.output.indices[-1].names
        self.lanes = gcd(inner.extents[self.lane], LANES)
        self.loops = [it for it in inner.spatial if it.name not in inner.unrolled]
        counts = {it.name: it.extent for it in self.loops}
        counts[self.lane] //= self.lanes
        self.counts, self.step = counts, tirx.Var("step", "int32") if parallel else None
        self.at = {name: tirx.Var(name, "int32") for name in counts}
        if self.step is not None:
            outer = self.step
            for name in reversed(counts):
                self.at[name], outer = outer % counts[name], outer // counts[name]
        self.first = self.at | {self.lane: self.at[self.lane] * self.lanes}

    def write(self) -> Any:
        """Write loops over tiles and vectors; tiles without padding have code of their own."""
        from tvm import tirx

        body = self._vector(is_padded=False)
        if self.source.load.padded:
            indices = self.source.indices(self.first | dict.fromkeys(self.whole.unrolled, 0))
            spans = {name: self.whole.extents[name] for name in self.whole.unrolled}
            if fits := self.source.conditions(indices, spans | {self.lane: self.lanes}):
                body = tirx.IfThenElse(tirx.all(*fits), body, self._vector(is_padded=True))
        if self.step is not None:
            total = prod(self.counts.values())
            return tirx.For(self.step, 0, total, tirx.ForKind.PARALLEL, body)
        for name, count in reversed(self.counts.items()):
            body = tirx.For(self.at[name], 0, count, tirx.ForKind.SERIAL, body)
        return body

    def _vector(self, *, is_padded: bool) -> Any:
        """Write a tile for each lane of a vector."""
        from tvm import tirx

        steps = LaneSteps(self.lanes)
        point = self.first | {self.lane: self.first[self.lane] + steps.lane}
        kind, load = self.whole.sum_dtype, self.source.load

        def element(place: Mapping[str, int]) -> Any:
            indices = self.source.indices(point | dict(place))
            value: Any = tirx.BufferLoad(self.source.buffer, indices)
            own = str(load.tensor.dtype)
            if is_padded:
                fits = tirx.all(*self.source.conditions(indices, {}))
                value = tirx.if_then_else(fits, value, constant(load.padding, own))
            return steps.value(decode(value, own, kind))

        for place, value in _multiply(self.whole.literals, element, steps):
            steps.statements.append(self._store(value, point | place))
        return steps.loop

    def _store(self, value: Any, point: Mapping[str, Any]) -> Any:
        """Write the statement that stores a sum, unless it lies beyond the result."""
        from tvm import tirx

        kind, final = self.whole.sum_dtype, str(self.whole.output.tensor.dtype)
        indices = self.target.indices(point)
        if self.whole.epilogue is not None:
            at = {name: self.starts[name] + place for name, place in point.items()}
            value = apply_epilogue(self.whole.epilogue, value, kind, at, self.inputs)
        elif kind != final:
            value = cast_result(value, kind, final)
        store = tirx.BufferStore(self.target.buffer, value, indices)
        fits = self.target.conditions(indices, {})
        return tirx.IfThenElse(tirx.all(*fits), store, None) if fits else store


def write_transform(
    whole: Transform,
    local: LocalAssignment,
    inputs: Mapping[str, Any],
    memory: Mapping[str, Any],
    *,
    parallel: bool,
) -> Any:
    """Write the loops of a transform on a tile; arguments are those of :class:`_Writer`."""
    return _Writer(whole, local, inputs, memory, parallel).write()


def _multiply(
    literals: Sequence[Literal], element: Callable[[Mapping[str, int]], Any], steps: LaneSteps
) -> Iterator[tuple[dict[str, int], Any]]:
    """Yield places and values of a product of literals with elements.

    Literals along one axis are applied together, so that few values are alive at a time.
    """
    groups = list[list[Literal]]()
    for literal in reversed(literals):
        if groups and groups[-1][-1].row == literal.column:
            groups[-1].append(literal)
        else:
            groups.append([literal])
    rows = {group[-1].row for group in groups}  # of which earlier literals make columns
    columns = {group[0].column: group[0].shape[1] for group in groups}
    extents = {name: size for name, size in columns.items() if name not in rows}
    values = dict[frozenset[tuple[str, int]], Any]()
    for number, group in enumerate(groups):
        first, last, count = group[0].column, group[-1].row, group[0].shape[1]
        del extents[first]
        read, values = dict(values), {}
        for combination in product(*map(range, extents.values())):
            place = dict(zip(extents, combination, strict=True))
            column = [place | {first: n} for n in range(count)]
            vector = [read[frozenset(x.items())] if number else _Scaled(element(x)) for x in column]
            for literal in group:
                vector = _product(literal.values, vector, steps)
            for n, value in enumerate(vector):
                values[frozenset({**place, last: n}.items())] = value
                if number == len(groups) - 1:
                    yield place | {last: n}, value.multiply()
        extents[last] = group[-1].shape[0]


@dataclass(frozen=True)
class _Scaled:
    """A value that is not yet multiplied by a factor.

    Attributes:
        value: in the dtype of sums.
        factor: a whole number; 1 of floats.
    """

    value: Any
    factor: float = 1

    def multiply(self) -> Any:
        """Return the value times the factor."""
        return self.value if self.factor == 1 else _sum([self.factor], [self.value])


def _product(
    matrix: Sequence[Sequence[float]], values: Sequence[_Scaled], steps: LaneSteps
) -> list[_Scaled]:
    """Multiply a vector of values by a matrix."""
    return [
        values[row.index(1)] if is_copy(row) else _combine(row, values, steps) for row in matrix
    ]


def _combine(row: Sequence[float], values: Sequence[_Scaled], steps: LaneSteps) -> _Scaled:
    """Sum values times factors.

    A common factor of integers is left for later: further factors, those of an epilogue among
    them, are one with it.
    """
    factors = [factor * each.factor for factor, each in zip(row, values, strict=True)]
    common = 1
    if dtype(str(values[0].value.ty.dtype)).is_integer and any(factors):
        common = gcd(*map(int, factors))
        if sum(map(bool, factors)) == 1:
            (term,) = (n for n, factor in enumerate(factors) if factor)
            return _Scaled(values[term].value, factors[term])
        factors = [factor // common for factor in factors]
    total = _sum(factors, [each.value for each in values])
    return _Scaled(steps.value(total), common)


def _sum(factors: Sequence[float], values: Sequence[Any]) -> Any:
    """Sum values times factors, modulo 2**32 where these have 32 bits."""
    from tvm import tirx

    kind = str(values[0].ty.dtype)
    # TVM tells LLVM that integers of 32 bits never overflow.
    wide = "int64" if kind == "int32" else kind
    terms = sorted(zip(factors, values, strict=True), key=lambda term: -term[0])
    total: Any = None
    for factor, value in terms:
        if size := _wrap(abs(factor), kind):
            term = value.astype(wide)
            term = term if size == 1 else term * tirx.const(size, wide)
            if total is None:
                total = term if factor > 0 else tirx.const(0, wide) - term
            else:
                total = total + term if factor > 0 else total - term
    if total is None:
        return tirx.const(0, kind)
    return tirx.reinterpret("int32", total.astype("uint32")) if wide == "int64" else total


def _wrap(factor: float, kind: str) -> float:
    """Return the number that equals a factor in the dtype of sums, where integers wrap around."""
    own = dtype(kind)
    return (int(factor) - own.limits[0]) % 2**own.bits + own.limits[0] if own.is_integer else factor
