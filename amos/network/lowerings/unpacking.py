"""Loops of products with weights of a few bits: codes are unpacked where they are multiplied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.tir.arrays import held
from amos.codegen.tir.epilogue import finished
from amos.ir import Operator
from amos.network.blocked import WORD_BITS
from amos.network.lowerings.panels import BlockedProduct
from amos.network.lowerings.tiles import list_epilogue_tensors


def write_product(product: BlockedProduct, operator: Operator) -> Any:
    """Return the function of a product: of its rows, its weights, what the epilogue reads.

    Args:
        product: how it is cut.
        operator: with its epilogue.
    """
    load_tvm()
    return _Writer(product, operator).function()


class _Writer:
    """Writes the loops of a product."""

    def __init__(self, product: BlockedProduct, operator: Operator) -> None:
        from tvm import tirx

        self.product, self.operator = product, operator
        buffer = tirx.decl_buffer
        self.x = buffer((product.rows * product.depth,), "float32", "x")
        self.weight = buffer((product.words,), "uint32", "weight")
        self.tensors = {
            each.name: buffer(each.shape, held(str(each.dtype)), each.name)
            for each in list_epilogue_tensors(operator)
        }
        kind = held(str(operator.result_dtype))
        self.result = buffer((product.rows * product.columns,), kind, "result")
        self.vector = f"float32x{product.lanes}"

    def function(self) -> Any:
        from tvm import tirx

        body = self.direct() if self.product.is_direct else self.through_panels()
        function = tirx.PrimFunc([self.x, self.weight, *self.tensors.values(), self.result], body)
        return function.with_attr({"tirx.noalias": True, "s_tir": True})

    def direct(self) -> Any:
        """Panels whose codes are multiplied where they are unpacked."""
        from tvm import tirx

        product, panel = self.product, tirx.Var("panel", "int32")
        sums, of_block, codes, floats = (
            self.local("sums", product.tile_rows * product.vectors),
            self.local("of_block", product.tile_rows * product.vectors),
            self.local("codes", product.vectors, "uint32"),
            self.local("floats", product.vectors),
        )

        def block(number: Any, count: int) -> list[Any]:
            def multiply(at: Any, vector: int, value: Any) -> list[Any]:
                steps = [self.put(floats, vector, value)]
                for row in range(product.tile_rows):
                    factor = self.x[row * product.depth + number * product.format.block + at]
                    place = row * product.vectors + vector
                    steps.append(self.add_product(of_block, place, factor, self.at(floats, vector)))
                return steps

            steps = [self.zeros(of_block), self.codes(panel, number, count, codes, multiply)]
            for place in range(product.tile_rows * product.vectors):
                scale = self.line(panel, number, product.format.words, place % product.vectors)
                total = self.fma(self.at(of_block, place), scale, self.at(sums, place))
                steps.append(self.put(sums, place, total))
            return steps

        steps = [self.zeros(sums), *self.blocks(block), self.store(panel, 0, sums)]
        return self.parallel(panel, product.panels, [sums, of_block, codes, floats], steps)

    def through_panels(self) -> Any:
        """Panels that are written out and multiplied with all rows, which are packed first."""
        from tvm import tirx

        product, panel = self.product, tirx.Var("panel", "int32")
        rows, vectors = product.tile_rows, product.vectors
        packed = tirx.decl_buffer((product.tiles * rows * product.depth,), "float32", "packed")
        depth = product.blocks * product.format.block
        written = tirx.decl_buffer((depth * product.width,), "float32", "written")
        codes = self.local("codes", vectors, "uint32")
        sums, floats = self.local("sums", rows * vectors), self.local("floats", vectors)

        def block(number: Any, _: int) -> list[Any]:
            def write(at: Any, vector: int, value: Any) -> list[Any]:
                scale = self.line(panel, number, product.format.words, vector)
                place = (number * product.format.block + at) * vectors + vector
                return [self.put(written, place, value * scale)]

            return [self.codes(panel, number, product.format.block, codes, write)]

        tile, step = tirx.Var("tile", "int32"), tirx.Var("step", "int32")
        steps = [self.put(floats, v, self.at(written, step * vectors + v)) for v in range(vectors)]
        for place in range(rows * vectors):
            factor = packed[(tile * product.depth + step) * rows + place // vectors]
            value = self.at(floats, place % vectors)
            steps.append(self.add_product(sums, place, factor, value))
        multiply = tirx.For(step, 0, product.depth, tirx.ForKind.SERIAL, _sequence(steps))
        tiles = _sequence([self.zeros(sums), multiply, self.store(panel, tile, sums)])
        loop = tirx.For(tile, 0, product.tiles, tirx.ForKind.SERIAL, tiles)
        unpack = tirx.For(
            number := tirx.Var("block", "int32"), 0, product.blocks, tirx.ForKind.SERIAL,
            _sequence(block(number, 0)),
        )  # fmt: skip
        main = self.parallel(panel, product.panels, [written, codes, sums, floats], [unpack, loop])
        return _sequence([tirx.AllocBuffer(packed), self.pack_rows(packed), main])

    def pack_rows(self, packed: Any) -> Any:
        """Rows of a register tile next to each other; behind the last one it stands again."""
        from tvm import tirx

        product, rows = self.product, self.product.tile_rows
        tile, step, row = (tirx.Var(name, "int32") for name in ("tile", "step", "row"))
        source = tirx.min(tile * rows + row, product.rows - 1) * product.depth + step
        place = (tile * product.depth + step) * rows + row
        move = tirx.BufferStore(packed, self.x[source], [place])
        inner = tirx.For(row, 0, rows, tirx.ForKind.SERIAL, move)
        loop = tirx.For(step, 0, product.depth, tirx.ForKind.SERIAL, inner)
        return tirx.For(tile, 0, product.tiles, tirx.ForKind.PARALLEL, loop)

    def blocks(self, block: Callable[[Any, int], Sequence[Any]]) -> list[Any]:
        """A loop over whole blocks, and the last one where it is shorter."""
        from tvm import tirx

        whole, last = divmod(self.product.depth, self.product.format.block)
        number = tirx.Var("block", "int32")
        body = _sequence(block(number, self.product.format.block))
        steps = [tirx.For(number, 0, whole, tirx.ForKind.SERIAL, body)] if whole else []
        return [*steps, *block(whole, last)] if last else steps

    def codes(
        self,
        panel: Any,
        block: Any,
        count: int,
        codes: Any,
        use: Callable[[Any, int, Any], Sequence[Any]],
    ) -> Any:
        """Unpack the first codes of a block.

        Args:
            panel, block: where they are.
            count: how many.
            codes: a buffer for words.
            use: makes statements of a code's number in its block, its vector and its floats.
        """
        from tvm import tirx

        per_word, vectors = self.product.format.codes_per_word, self.product.vectors

        def word(number: Any, codes_of_word: int) -> Any:
            steps = [
                self.put(codes, v, self.line(panel, block, number, v, "uint32"))
                for v in range(vectors)
            ]
            for code in range(codes_of_word):
                for v in range(vectors):
                    value = self.float_of(self.at(codes, v), code)
                    if self.product.format.has_zeros:
                        zero = self.line(panel, block, self.product.format.words + 1, v)
                        value = value - zero
                    steps += use(number * per_word + code, v, value)
            return _sequence(steps)

        whole, last = divmod(count, per_word)
        number = tirx.Var("word", "int32")
        steps = [tirx.For(number, 0, whole, tirx.ForKind.SERIAL, word(number, per_word))]
        return _sequence([*steps[: bool(whole)], *([word(whole, last)] if last else [])])

    def float_of(self, words: Any, code: int) -> Any:
        """A code of each word of a vector, as a float."""
        from tvm import tirx

        bits, lanes = self.product.format.bits, self.product.lanes
        kind = f"int32x{lanes}"

        def many(value: int, dtype: str = "int32") -> Any:
            return tirx.Broadcast(tirx.const(value, dtype), lanes)

        if bits == 4 and self.product.has_permutes:
            table = tirx.bitwise_and(tirx.Ramp(8, 1, lanes), many(15)) - many(8)
            index = tirx.shift_right(words, many(bits * code, "uint32")) if code else words
            return tirx.call_llvm_pure_intrin(
                self.vector,
                "llvm.x86.avx512.permvar.sf.512",
                table.astype(self.vector),
                tirx.reinterpret(kind, index),
            )
        signed = tirx.reinterpret(kind, words)
        above = WORD_BITS - bits * (code + 1)
        signed = tirx.shift_left(signed, many(above)) if above else signed
        return tirx.shift_right(signed, many(WORD_BITS - bits)).astype(self.vector)

    def line(self, panel: Any, block: Any, number: Any, vector: int, kind: str = "float32") -> Any:
        """A vector of a line of a block."""
        from tvm import tirx

        product = self.product
        line = (panel * product.blocks + block) * product.lines + number
        words = self.at(self.weight, line * product.vectors + vector)
        return words if kind == "uint32" else tirx.reinterpret(self.vector, words)

    def store(self, panel: Any, tile: Any, sums: Any) -> Any:
        """Store the results of a register tile.

        They leave registers first: a loop whose steps read different ones would keep all of them
        in memory, while it is unrolled takes long to compile.
        """
        from tvm import tirx

        product = self.product
        results = self.local("results", product.tile_rows * product.vectors)
        count = product.tile_rows * product.vectors
        row, vector = tirx.Var("row", "int32"), tirx.Var("vector", "int32")
        column = (panel * product.vectors + vector) * product.lanes
        rows = tirx.min(product.rows - tile * product.tile_rows, product.tile_rows)
        body = self.store_vector(tile * product.tile_rows + row, column, results, row, vector)
        vectors = tirx.For(vector, 0, product.vectors, tirx.ForKind.SERIAL, body)
        loop = tirx.For(row, 0, rows, tirx.ForKind.SERIAL, vectors)
        moves = [self.put(results, place, self.at(sums, place)) for place in range(count)]
        return _sequence([tirx.AllocBuffer(results), *moves, loop])

    def store_vector(self, row: Any, column: Any, results: Any, at: Any, vector: Any) -> Any:
        """Store a vector of results, or what of it there is."""
        from tvm import tirx

        product = self.product

        def loop(kind: Any, count: Any) -> Any:
            lane = tirx.Var("lane", "int32")
            value = results[(at * product.vectors + vector) * product.lanes + lane]
            place = self.places(row, column + lane)
            value = finished(self.operator, value, place, self.tensors)
            store = tirx.BufferStore(self.result, value, [row * product.columns + column + lane])
            return tirx.For(lane, 0, count, kind, store)

        whole = loop(tirx.ForKind.VECTORIZED, product.lanes)
        if product.columns % product.width == 0:
            return whole
        edge = loop(tirx.ForKind.SERIAL, tirx.max(product.columns - column, 0))
        return tirx.IfThenElse(column + product.lanes <= product.columns, whole, edge)

    def places(self, row: Any, column: Any) -> Mapping[str, Any]:
        """The iterations of the operator at an element of the result."""
        *outer, last = (index.names[0] for index in self.operator.output.indices)
        places = {last: column}
        for name in reversed(outer):
            extent = self.operator.extents[name]
            places[name] = row if name == outer[0] else row % extent
            row = row // extent
        return places

    def local(self, name: str, vectors: int, kind: str = "float32") -> Any:
        from tvm import tirx

        return tirx.decl_buffer((vectors * self.product.lanes,), kind, name, scope="local")

    def parallel(
        self, variable: Any, count: int, buffers: Sequence[Any], steps: Sequence[Any]
    ) -> Any:
        from tvm import tirx

        body = _sequence([*map(tirx.AllocBuffer, buffers), *steps])
        return tirx.For(variable, 0, count, tirx.ForKind.PARALLEL, body)

    def place(self, number: Any) -> Any:
        from tvm import tirx

        return tirx.Ramp(number * self.product.lanes, 1, self.product.lanes)

    def at(self, buffer: Any, number: Any) -> Any:
        """A vector of a buffer."""
        from tvm import tirx

        return tirx.BufferLoad(buffer, [self.place(number)])

    def put(self, buffer: Any, number: Any, value: Any) -> Any:
        from tvm import tirx

        return tirx.BufferStore(buffer, value, [self.place(number)])

    def zeros(self, buffer: Any) -> Any:
        from tvm import tirx

        zero = tirx.Broadcast(tirx.const(0, "float32"), self.product.lanes)
        count = int(buffer.shape[0]) // self.product.lanes
        return _sequence([self.put(buffer, number, zero) for number in range(count)])

    def fma(self, x: Any, y: Any, total: Any) -> Any:
        from tvm import tirx

        return tirx.call_intrin(self.vector, "tirx.fma", x, y, total)

    def add_product(self, sums: Any, number: Any, factor: Any, values: Any) -> Any:
        """Add a number times a vector."""
        from tvm import tirx

        many = tirx.Broadcast(factor, self.product.lanes)
        return self.put(sums, number, self.fma(many, values, self.at(sums, number)))


def _sequence(steps: Iterable[Any]) -> Any:
    """Statements one after the other, those of sequences among them."""
    from tvm import tirx

    flat = [each for step in steps for each in (step if isinstance(step, tirx.SeqStmt) else [step])]
    return tirx.SeqStmt(flat) if len(flat) > 1 else flat[0]
