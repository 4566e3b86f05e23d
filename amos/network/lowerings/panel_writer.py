"""Shared parts of loops of products with weights of a few bits: vectors, codes, results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amos._toolchain import tirx
from amos.codegen.tir.arrays import container_dtype
from amos.codegen.tir.epilogue import finish
from amos.ir import Operator
from amos.network.lowerings.base import list_epilogue_tensors
from amos.network.lowerings.panels import BlockedProduct


class PanelWriter(ABC):
    """Writes the loops of a product.

    Attributes:
        x, weight, result: buffers that the function takes, the first ones and the last one.
        tensors: what the epilogue reads, by name.
        vector: dtype of a vector of floats.
    """

    def __init__(self, product: BlockedProduct, operator: Operator) -> None:
        self.product, self.operator = product, operator
        buffer = tirx.decl_buffer
        self.x = buffer((product.rows * product.depth,), "float32", "x")
        self.weight = buffer((product.words,), "uint32", "weight")
        self.tensors = {
            each.name: buffer(each.shape, container_dtype(str(each.dtype)), each.name)
            for each in list_epilogue_tensors(operator)
        }
        kind = container_dtype(str(operator.result_dtype))
        self.result = buffer((product.rows * product.columns,), kind, "result")
        self.vector = f"float32x{product.lanes}"

    @abstractmethod
    def write_body(self) -> Any:
        """Write all loops."""

    def write_function(self) -> Any:
        """Write a function of the rows, the weights, what the epilogue reads, and the result."""
        buffers = [self.x, self.weight, *self.tensors.values(), self.result]
        function = tirx.PrimFunc(buffers, self.write_body())
        return function.with_attr({"tirx.noalias": True, "s_tir": True})

    def loop_over_panels(self, panel: Any, buffers: Sequence[Any], steps: Sequence[Any]) -> Any:
        """Write the parallel loop over panels, with buffers of its own in each step."""
        body = sequence([*map(tirx.AllocBuffer, buffers), *steps])
        return tirx.For(panel, 0, self.product.panels, tirx.ForKind.PARALLEL, body)

    def load_line(self, panel: Any, block: Any, line: Any, vector: int) -> Any:
        """Load a vector of words of a block: of codes, or bits of scales or zero points.

        Behind the last vector of columns it is read again.
        """
        product, number = self.product, panel * self.product.vectors + vector
        if product.column_vectors % product.vectors:
            number = tirx.min(number, product.column_vectors - 1)
        return self.load(self.weight, (number * product.blocks + block) * product.lines + line)

    def load_scale(self, panel: Any, block: Any, vector: int) -> Any:
        """Load the scales of a block."""
        line = self.load_line(panel, block, self.product.format.words, vector)
        return tirx.reinterpret(self.vector, line)

    def load_zero(self, panel: Any, block: Any, vector: int) -> Any:
        """Load the zero points of a block, less the middle of all codes."""
        line = self.load_line(panel, block, self.product.format.words + 1, vector)
        return tirx.reinterpret(self.vector, line)

    def store_tile(self, panel: Any, tile: Any, sums: Any) -> Any:
        """Store the results of a register tile.

        They leave registers first. A loop whose steps read different ones would keep all of them
        in memory, and one that is unrolled takes long to compile.
        """
        product = self.product
        count = product.tile_rows * product.vectors
        results = self.declare_vectors("results", count)
        row, vector = tirx.Var("row", "int32"), tirx.Var("vector", "int32")
        column = (panel * product.vectors + vector) * product.lanes
        rows = tirx.min(product.rows - tile * product.tile_rows, product.tile_rows)
        place = (row * product.vectors + vector) * product.lanes
        body = self._store_vector(tile * product.tile_rows + row, column, results, place)
        vectors = tirx.For(vector, 0, product.vectors, tirx.ForKind.SERIAL, body)
        loop = tirx.For(row, 0, rows, tirx.ForKind.SERIAL, vectors)
        moves = [self.store(results, n, self.load(sums, n)) for n in range(count)]
        return sequence([tirx.AllocBuffer(results), *moves, loop])

    def _store_vector(self, row: Any, column: Any, results: Any, place: Any) -> Any:
        """Store a vector of results, or as much as there is of it at the edge."""
        product = self.product

        def loop(kind: Any, count: Any) -> Any:
            lane = tirx.Var("lane", "int32")
            at = self._locate(row, column + lane)
            value = finish(self.operator, results[place + lane], at, self.tensors)
            store = tirx.BufferStore(self.result, value, [row * product.columns + column + lane])
            return tirx.For(lane, 0, count, kind, store)

        whole = loop(tirx.ForKind.VECTORIZED, product.lanes)
        if product.columns % product.width == 0:
            return whole
        edge = loop(tirx.ForKind.SERIAL, tirx.max(product.columns - column, 0))
        return tirx.IfThenElse(column + product.lanes <= product.columns, whole, edge)

    def _locate(self, row: Any, column: Any) -> Mapping[str, Any]:
        """Return the iterations of the operator at an element of the result."""
        *outer, last = (index.names[0] for index in self.operator.output.indices)
        places = {last: column}
        for name in reversed(outer):
            extent = self.operator.extents[name]
            places[name] = row if name == outer[0] else row % extent
            row = row // extent
        return places

    def declare_vectors(self, name: str, count: int, kind: str = "float32") -> Any:
        """Declare a buffer of vectors, which stay in registers."""
        return tirx.decl_buffer((count * self.product.lanes,), kind, name, scope="local")

    def load(self, buffer: Any, number: Any) -> Any:
        """Load a vector of a buffer."""
        return tirx.BufferLoad(buffer, [self._lanes(number)])

    def store(self, buffer: Any, number: Any, value: Any) -> Any:
        """Store a vector into a buffer."""
        return tirx.BufferStore(buffer, value, [self._lanes(number)])

    def clear(self, buffer: Any) -> Any:
        """Store zeros into all vectors of a buffer."""
        zero = self.broadcast(0, "float32")
        count = int(buffer.shape[0]) // self.product.lanes
        return sequence([self.store(buffer, number, zero) for number in range(count)])

    def broadcast(self, value: Any, kind: str = "") -> Any:
        """Return a vector of one value: an expression, or a number of a dtype."""
        scalar = tirx.const(value, kind) if kind else value
        return tirx.Broadcast(scalar, self.product.lanes)

    def multiply_add(self, x: Any, y: Any, total: Any) -> Any:
        """Return a product of vectors plus another one, rounded once."""
        return tirx.call_intrin(self.vector, "tirx.fma", x, y, total)

    def _lanes(self, number: Any) -> Any:
        return tirx.Ramp(number * self.product.lanes, 1, self.product.lanes)


def sequence(steps: Iterable[Any]) -> Any:
    """Return statements one after the other, also those of sequences among them."""
    flat = [each for step in steps for each in (step if isinstance(step, tirx.SeqStmt) else [step])]
    return tirx.SeqStmt(flat) if len(flat) > 1 else flat[0]
