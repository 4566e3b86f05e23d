"""Assignments of a tile as TensorIR: loops over rows, and vectors along them.

Assignments that follow one another over the same rows share the loops over these, so that a row is
in the nearest cache when the next one reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amos.codegen.tir.comparing import emit_extremum
from amos.codegen.tir.epilogue import applied, element, stored
from amos.errors import BuildError
from amos.ir import Assignment, Epilogue, Iteration, Operator
from amos.ir.expression import Node

#: Elements of a vector, and vectors whose maxima or sums a row is divided among.
LANES, _CHAINS = 16, 4
#: Longest reduction over columns that is unrolled.
_UNROLLED = 16


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
    def rows(self) -> tuple[Iteration, ...]:
        """The loops around the vectors that assignments may share."""
        lane = self.lane
        return tuple(it for it in self.step.spatial if it is not lane)


def write_assignments(run: Sequence[LocalAssignment], buffers: Mapping[str, Any]) -> Iterator[Any]:
    """The statements of assignments, one behind the other.

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
    """Statements one behind the other; of one that itself."""
    from tvm import tirx

    return statements[0] if len(statements) == 1 else tirx.SeqStmt([*statements])


def _extents(rows: Sequence[Iteration]) -> list[tuple[str, int]]:
    return [(it.name, it.extent) for it in rows]


def _fits(local: LocalAssignment, rows: list[tuple[str, int]]) -> bool:
    """Whether an assignment has those rows, or one element for each of them."""
    alone = not local.step.reduce and _extents(local.step.spatial) == rows
    return _extents(local.rows) == rows or alone


def _keeps_rows(run: Sequence[LocalAssignment], local: LocalAssignment) -> bool:
    """Whether an assignment reads of others in a run nothing but what its own row wrote."""
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
    """A nest of loops over rows, with all assignments inside."""
    from tvm import tirx

    at = {it.name: tirx.Var(it.name, "int32") for it in rows}
    body = [each for local in run for each in _Row(local, at, buffers).statements(len(rows))]
    nest = sequence(body)
    for it in reversed(rows):
        nest = tirx.For(at[it.name], 0, it.extent, tirx.ForKind.SERIAL, nest)
    return nest


class _Row:
    """Writes one assignment for a row."""

    def __init__(
        self, local: LocalAssignment, at: Mapping[str, Any], buffers: Mapping[str, Any]
    ) -> None:
        self.local, self.step, self.at, self.buffers = local, local.step, dict(at), buffers
        self.kind = self.step.kind

    def statements(self, row_count: int) -> Iterator[Any]:
        """What computes a row."""
        lane = self.local.lane
        if lane is None or len(self.step.spatial) == row_count and not self.step.reduce:
            yield self._stored(self._value({}), {})
        elif self.local.is_row:
            yield from self._reduced(lane)
        elif self.step.reduce:
            yield from self._accumulated(lane)
        else:
            yield from self._vectors(lane, lambda at: self._stored(self._value(at), at))

    def _value(self, at: Mapping[str, Any]) -> Any:
        """The expression at a point."""
        places = self.at | dict(at)
        values = {name: self.local.starts[name] + place for name, place in places.items()}
        return element(self.step.expression, places, self.buffers, values)

    def _target(self, at: Mapping[str, Any]) -> Any:
        indices = [index.evaluate(self.at | dict(at)) for index in self.step.output.indices]
        return self.buffers[self.step.output.tensor.name], indices or [0]

    def _stored(self, value: Any, at: Mapping[str, Any]) -> Any:
        from tvm import tirx

        buffer, indices = self._target(at)
        kind = str(self.step.output.tensor.dtype)
        if self.local.epilogue is not None:
            value = applied(self.local.epilogue, value, kind, self.at | dict(at), self.buffers)
        else:
            value = stored(value, self.kind, kind)
        return tirx.BufferStore(buffer, value, indices)

    def _vectors(self, lane: Iteration, body: Any) -> Iterator[Any]:
        """Loops over an iteration in vectors, the last ones shorter."""
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

    def _combined(self, first: Any, second: Any) -> Any:
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

    def _reduced(self, lane: Iteration) -> Iterator[Any]:
        """A row that is combined in vectors, which are combined in the end."""
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
            value = self._combined(element_at(place), element_at(size + place))
            yield tirx.For(place, 0, size, tirx.ForKind.VECTORIZED, put(place, value))
        yield self._stored(element_at(0), {})

    def _inner(
        self, lane: Iteration, chains: int, width: int, vectors: Any, put: Any, element_at: Any
    ) -> Iterator[Any]:
        """The loops of a row, those of outer reductions included."""
        from tvm import tirx

        outer = {it.name: tirx.Var(it.name, "int32") for it in self.step.reduce[:-1]}

        def taking(position: Any, at: Any) -> Any:
            value = self._value(outer | {lane.name: at})
            return put(position, self._combined(element_at(position), value))

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

    def _accumulated(self, lane: Iteration) -> Iterator[Any]:
        """Elements side by side, each combined over the same reductions, in registers."""
        from tvm import tirx

        start, width = 0, LANES
        while start < lane.extent:
            chains = _CHAINS if lane.extent - start >= _CHAINS * width else 1
            if count := (lane.extent - start) // (chains * width):
                step = tirx.Var("step", "int32")
                place = start + step * (chains * width)
                body = sequence([*self._columns(lane, place, chains, width)])
                yield tirx.For(step, 0, count, tirx.ForKind.SERIAL, body)
                start += count * chains * width
            else:
                width //= 2

    def _columns(self, lane: Iteration, start: Any, chains: int, width: int) -> Iterator[Any]:
        """Some vectors of elements, from one on."""
        from tvm import tirx

        sums = tirx.decl_buffer((chains * width,), self.kind, "sums", scope="local")
        outer = {it.name: tirx.Var(it.name, "int32") for it in self.step.reduce}

        def vectors(body: Any) -> Iterator[Any]:
            for chain in range(chains):
                place = tirx.Var("lane", "int32")
                inner = body(chain * width + place)
                yield tirx.For(place, 0, width, tirx.ForKind.VECTORIZED, inner)

        def taking(place: Any) -> Any:
            value = self._value(outer | {lane.name: start + place})
            return tirx.BufferStore(
                sums, self._combined(tirx.BufferLoad(sums, [place]), value), [place]
            )

        yield tirx.AllocBuffer(sums)
        yield from vectors(lambda place: tirx.BufferStore(sums, self._neutral(), [place]))
        nest = sequence([*vectors(taking)])
        for it in reversed(self.step.reduce):
            kind = tirx.ForKind.UNROLLED if it.extent <= _UNROLLED else tirx.ForKind.SERIAL
            nest = tirx.For(outer[it.name], 0, it.extent, kind, nest)
        yield nest
        yield from vectors(
            lambda place: self._stored(tirx.BufferLoad(sums, [place]), {lane.name: start + place})
        )


def assignment_of(operator: Operator) -> Assignment:
    """A product as an assignment, for which no instruction is needed.

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
