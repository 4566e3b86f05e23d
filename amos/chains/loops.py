"""Assignments of a tile as TensorIR: loops over rows, and vectors along them.

Assignments that follow one another over the same rows share the loops over these, so that a row is
in the nearest cache when the next one reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from amos.codegen.tir.comparing import emit_extremum
from amos.codegen.tir.epilogue import apply_epilogue, cast_result, element
from amos.errors import BuildError
from amos.ir import Assignment, Epilogue, Iteration, Operator
from amos.ir.expression import Node

#: Elements of a vector, and vectors whose maxima or sums a row is divided among.
LANES, _CHAINS = 16, 4
#: Longest reduction over columns that is unrolled.
_UNROLLED = 16
#: Rows whose columns are combined together, so that they share what they read, and vectors then.
_JAM, _JAMMED = 4, 2


@dataclass(frozen=True)
class LocalAssignment:
    """An assignment on a tile, and where its iterations begin.

    Attributes:
        step: with iterations from zero on.
        starts: the value of each iteration where it is zero.
        epilogue: what is stored of what its reductions come to.
    """

    step: Assignment
    starts: Mapping[str, Any]
    epilogue: Epilogue | None = None

    @property
    def lane(self) -> Iteration | None:
        """The iteration that vectors run along, if there is one."""
        step = self.step
        if not step.spatial and not step.reduce:
            return None
        if self.is_row:
            return step.reduce[-1]
        return step.spatial[-1] if step.spatial else None

    @property
    def is_row(self) -> bool:
        """Whether what is reduced lies side by side."""
        if not self.step.reduce:
            return False
        last = [load.indices[-1] for load in self.step.loads if load.indices]
        own = {it.name for it in self.step.spatial}
        reduced = any(index.coefficient(self.step.reduce[-1].name) == 1 for index in last)
        return reduced and not any(own.intersection(index.names) for index in last)

    @property
    def is_accumulated(self) -> bool:
        """Whether elements side by side are combined over the same reductions."""
        return bool(self.step.reduce) and not self.is_row and self.lane is not None

    @property
    def rows(self) -> tuple[Iteration, ...]:
        """The loops around the vectors that assignments may share."""
        lane = self.lane
        return tuple(it for it in self.step.spatial if it is not lane)


def write_assignments(run: Sequence[LocalAssignment], buffers: Mapping[str, Any]) -> Iterator[Any]:
    """Write the statements of assignments in order.

    Args:
        run: the assignments.
        buffers: of all tensors, by name.
    """
    start = 0
    while start < len(run):
        rows = _extents(run[start].rows)
        end = start + 1
        while end < len(run) and _fits(run[end], rows) and _keeps_rows(run[start:end], run[end]):
            end += 1
        yield _over_rows(run[start:end], run[start].rows, buffers)
        start = end


def sequence(statements: Sequence[Any]) -> Any:
    """Join statements in order; return a single one as it is."""
    from tvm import tirx

    return statements[0] if len(statements) == 1 else tirx.SeqStmt([*statements])


def _extents(rows: Sequence[Iteration]) -> list[tuple[str, int]]:
    return [(it.name, it.extent) for it in rows]


def _fits(local: LocalAssignment, rows: list[tuple[str, int]]) -> bool:
    """Return whether an assignment has those rows, or one element for each of them."""
    alone = not local.step.reduce and _extents(local.step.spatial) == rows
    return _extents(local.rows) == rows or alone


def _keeps_rows(run: Sequence[LocalAssignment], local: LocalAssignment) -> bool:
    """Return whether each row of an assignment reads only itself of a run's results."""
    written = {member.step.output.tensor.name: member.step.output for member in run}
    rows = {it.name for it in run[0].rows}
    for load in local.step.loads:
        if (output := written.get(load.tensor.name)) is None:
            continue
        pairs = zip(output.indices, load.indices, strict=True)
        if any(own != index for own, index in pairs if rows.intersection(own.names)):
            return False
    return True


def _over_rows(
    run: Sequence[LocalAssignment], rows: Sequence[Iteration], buffers: Mapping[str, Any]
) -> Any:
    """Wrap all assignments in one nest of loops over rows."""
    from tvm import tirx

    at = {it.name: tirx.Var(it.name, "int32") for it in rows}
    if not rows:
        return sequence([x for each in run for x in _Row(each, at, buffers).statements(rows)])
    *outer, last = rows
    jam = _JAM if len(run) == 1 and run[0].is_accumulated else 1
    nests, start = [], 0
    while start < last.extent:
        if count := (last.extent - start) // jam:
            step = tirx.Var(last.name, "int32")
            own = at | {last.name: start + step * jam}
            body = [x for each in run for x in _Row(each, own, buffers, jam).statements(rows)]
            nests.append(tirx.For(step, 0, count, tirx.ForKind.SERIAL, sequence(body)))
            start += count * jam
        jam = 1
    nest = sequence(nests)
    for it in reversed(outer):
        nest = tirx.For(at[it.name], 0, it.extent, tirx.ForKind.SERIAL, nest)
    return nest


class _Row:
    """Writes one assignment for a row."""

    def __init__(
        self,
        local: LocalAssignment,
        at: Mapping[str, Any],
        buffers: Mapping[str, Any],
        jam: int = 1,
    ) -> None:
        self.local, self.step, self.at, self.buffers = local, local.step, dict(at), buffers
        self.kind, self.jam = self.step.kind, jam

    def statements(self, rows: Sequence[Iteration]) -> Iterator[Any]:
        """Write the statements that compute one row, or several together."""
        lane = self.local.lane
        if lane is None or len(self.step.spatial) == len(rows) and not self.step.reduce:
            yield self._store(self._value({}), {})
        elif self.local.is_row:
            yield from self._reduce_row(lane)
        elif self.step.reduce:
            yield from self._accumulate(lane, rows)
        else:
            yield from self._vectors(lane, lambda at: self._store(self._value(at), at))

    def _value(self, at: Mapping[str, Any]) -> Any:
        """Write the expression at a point."""
        places = self.at | dict(at)
        values = {name: self.local.starts[name] + place for name, place in places.items()}
        return element(self.step.expression, places, self.buffers, values)

    def _target(self, at: Mapping[str, Any]) -> Any:
        indices = [index.evaluate(self.at | dict(at)) for index in self.step.output.indices]
        return self.buffers[self.step.output.tensor.name], indices or [0]

    def _store(self, value: Any, at: Mapping[str, Any]) -> Any:
        from tvm import tirx

        buffer, indices = self._target(at)
        kind = str(self.step.output.tensor.dtype)
        if self.local.epilogue is not None:
            at = self.at | dict(at)
            value = apply_epilogue(self.local.epilogue, value, self.kind, at, self.buffers)
        else:
            value = cast_result(value, self.kind, kind)
        return tirx.BufferStore(buffer, value, indices)

    def _vectors(self, lane: Iteration, body: Any) -> Iterator[Any]:
        """Loop over an iteration in vectors, the last ones shorter."""
        from tvm import tirx

        start, lanes = 0, LANES
        while start < lane.extent:
            count = (lane.extent - start) // lanes
            if count:
                step, place = tirx.Var("step", "int32"), tirx.Var("lane", "int32")
                at = {lane.name: start + step * lanes + place}
                inner = tirx.For(place, 0, lanes, tirx.ForKind.VECTORIZED, body(at))
                yield tirx.For(step, 0, count, tirx.ForKind.SERIAL, inner)
                start += count * lanes
            lanes //= 2

    def _combine(self, first: Any, second: Any) -> Any:
        from tvm import tirx

        if self.step.combiner == "+":
            return first + second
        # Of softmax and logsumexp it does not matter: their exponentials are NaN, too.
        if ".max" not in self.step.output.tensor.name:
            return emit_extremum(self.step.combiner, first, second)
        return (tirx.max if self.step.combiner == "max" else tirx.min)(first, second)

    def _neutral(self) -> Any:
        from tvm import tirx

        if self.step.combiner == "+":
            return tirx.const(0, self.kind)
        if self.kind == "int32":
            return tirx.const(-(2**31) if self.step.combiner == "max" else 2**31 - 1, "int32")
        infinite = float("-inf" if self.step.combiner == "max" else "inf")
        return tirx.const(infinite, self.kind)

    def _reduce_row(self, lane: Iteration) -> Iterator[Any]:
        """Combine a row in vectors, and these at the end."""
        from tvm import tirx

        width = LANES
        while width > max(1, lane.extent):
            width //= 2
        chains = 1
        while chains < _CHAINS and 2 * chains * width <= lane.extent:
            chains *= 2
        parts = tirx.decl_buffer((chains * width,), self.kind, "parts", scope="local")

        def vectors(body: Any) -> Any:
            place = tirx.Var("lane", "int32")
            return tirx.For(place, 0, width, tirx.ForKind.VECTORIZED, body(place))

        def put(position: Any, value: Any) -> Any:
            return tirx.BufferStore(parts, value, [position])

        def element_at(position: Any) -> Any:
            return tirx.BufferLoad(parts, [position])

        yield tirx.AllocBuffer(parts)
        for chain in range(chains):
            yield vectors(lambda p, c=chain: put(c * width + p, self._neutral()))
        yield from self._inner(lane, chains, width, vectors, put, element_at)
        size = chains * width
        while size > 1:
            size //= 2
            place = tirx.Var("lane", "int32")
            value = self._combine(element_at(place), element_at(size + place))
            yield tirx.For(place, 0, size, tirx.ForKind.VECTORIZED, put(place, value))
        yield self._store(element_at(0), {})

    def _inner(
        self, lane: Iteration, chains: int, width: int, vectors: Any, put: Any, element_at: Any
    ) -> Iterator[Any]:
        """Return the loops of a row, those of outer reductions included."""
        from tvm import tirx

        outer = {it.name: tirx.Var(it.name, "int32") for it in self.step.reduce[:-1]}

        def taking(position: Any, at: Any) -> Any:
            value = self._value(outer | {lane.name: at})
            return put(position, self._combine(element_at(position), value))

        body: list[Any] = []
        count = lane.extent // (chains * width)
        step = tirx.Var("step", "int32")
        steps = [
            vectors(lambda p, c=c: taking(c * width + p, (step * chains + c) * width + p))
            for c in range(chains)
        ]
        body.append(tirx.For(step, 0, count, tirx.ForKind.SERIAL, sequence(steps)))
        start = count * chains * width
        if (more := (lane.extent - start) // width) > 0:
            again = tirx.Var("step", "int32")
            vector = vectors(lambda p: taking(p, start + again * width + p))
            body.append(tirx.For(again, 0, more, tirx.ForKind.SERIAL, vector))
            start += more * width
        if start < lane.extent:
            last = tirx.Var("step", "int32")
            vector = taking(last, start + last)
            body.append(tirx.For(last, 0, lane.extent - start, tirx.ForKind.SERIAL, vector))
        nest = sequence(body)
        for it in reversed(self.step.reduce[:-1]):
            nest = tirx.For(outer[it.name], 0, it.extent, tirx.ForKind.SERIAL, nest)
        yield nest

    def _accumulate(self, lane: Iteration, rows: Sequence[Iteration]) -> Iterator[Any]:
        """Combine neighbouring elements over the same reductions in registers.

        Those of some rows together share what they read.
        """
        from tvm import tirx

        start, width = 0, LANES
        while start < lane.extent:
            most = _CHAINS if self.jam == 1 else _JAMMED
            chains = most if lane.extent - start >= most * width else 1
            if count := (lane.extent - start) // (chains * width):
                step = tirx.Var("step", "int32")
                place = start + step * (chains * width)
                body = sequence([*self._columns(lane, place, chains, width, rows)])
                yield tirx.For(step, 0, count, tirx.ForKind.SERIAL, body)
                start += count * chains * width
            else:
                width //= 2

    def _columns(
        self, lane: Iteration, start: Any, chains: int, width: int, rows: Sequence[Iteration]
    ) -> Iterator[Any]:
        """Write some vectors of elements in each of the rows."""
        from tvm import tirx

        size = chains * width
        sums = tirx.decl_buffer((self.jam * size,), self.kind, "sums", scope="local")
        outer = {it.name: tirx.Var(it.name, "int32") for it in self.step.reduce}

        def place_of(row: int, place: Any) -> dict[str, Any]:
            own = {rows[-1].name: self.at[rows[-1].name] + row} if row else {}
            return own | {lane.name: start + place}

        def vectors(body: Any) -> Iterator[Any]:
            for row in range(self.jam):
                for chain in range(chains):
                    place = tirx.Var("lane", "int32")
                    inner = body(row, chain * width + place)
                    yield tirx.For(place, 0, width, tirx.ForKind.VECTORIZED, inner)

        def taking(row: int, place: Any) -> Any:
            value, at = self._value(outer | place_of(row, place)), row * size + place
            return tirx.BufferStore(sums, self._combine(tirx.BufferLoad(sums, [at]), value), [at])

        yield tirx.AllocBuffer(sums)
        yield from vectors(
            lambda row, place: tirx.BufferStore(sums, self._neutral(), [row * size + place])
        )
        nest = sequence([*vectors(taking)])
        for it in reversed(self.step.reduce):
            kind = tirx.ForKind.UNROLLED if it.extent <= _UNROLLED else tirx.ForKind.SERIAL
            nest = tirx.For(outer[it.name], 0, it.extent, kind, nest)
        yield nest
        yield from vectors(
            lambda row, place: self._store(
                tirx.BufferLoad(sums, [row * size + place]), place_of(row, place)
            )
        )


def suits_loops(operator: Operator) -> bool:
    """Return whether loops may compute a product as fast as an instruction.

    They unroll short sums, and read vectors of elements that lie side by side.
    """
    if prod(it.extent for it in operator.reduce) > _UNROLLED or not operator.spatial:
        return False
    lane = operator.spatial[-1].name
    return not any(
        load.padded
        or any(index.coefficient(lane) for index in load.indices[:-1])
        or load.indices[-1].coefficient(lane) not in (0, 1)
        for load in operator.sources
    )


def assignment_of(operator: Operator) -> Assignment:
    """Return a product as an assignment, for which no instruction is needed.

    Raises:
        BuildError: it reads beyond its sources.
    """
    if padded := [load for load in operator.sources if load.padded]:
        raise BuildError(f"{operator.name}: no instruction computes it, and {padded[0]} is padded")
    first, *more = (Node("read", load=load) for load in operator.sources)
    for factor in more:
        first = Node("multiply", (first, factor))
    return Assignment(
        expression=first,
        destination=operator.output,
        iterations=operator.iterations,
        combiner=operator.compute.combiner,
    )
