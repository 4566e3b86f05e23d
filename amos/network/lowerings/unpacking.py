"""Loops of products with weights of a few bits: codes become floats where they are multiplied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amos._toolchain import tirx
from amos.network.blocked import WORD_BITS
from amos.network.lowerings.panel_writer import PanelWriter, sequence

#: Statements that use a code: of its number in its block, its vector, and its floats.
Use = Callable[[Any, int, Any], Sequence[Any]]


class FloatRowsWriter(PanelWriter):
    """Writes the loops of a product of floats."""

    def write_body(self) -> Any:
        """Write all loops."""
        return self._write_direct() if self.product.is_direct else self._write_through_panels()

    def _write_direct(self) -> Any:
        """Write the loop over panels whose codes are multiplied in registers.

        Sums of a block are scaled once.
        """
        product, panel = self.product, tirx.Var("panel", "int32")
        places = range(product.tile_rows * product.vectors)
        sums = self.declare_vectors("sums", len(places))
        of_block = self.declare_vectors("of_block", len(places))
        codes = self.declare_vectors("codes", product.vectors, "uint32")
        floats = self.declare_vectors("floats", product.vectors)

        def write_block(block: Any, count: int) -> list[Any]:
            def multiply(code: Any, vector: int, value: Any) -> list[Any]:
                steps = [self.store(floats, vector, value)]
                at = block * product.format.block + code
                for row in range(product.tile_rows):
                    factor, place = self.x[row * product.depth + at], row * product.vectors + vector
                    steps.append(self._add_product(of_block, place, factor, floats, vector))
                return steps

            steps = [self.clear(of_block), self._unpack(panel, block, count, codes, multiply)]
            for place in places:
                scale = self.load_scale(panel, block, place % product.vectors)
                total = self.multiply_add(self.load(of_block, place), scale, self.load(sums, place))
                steps.append(self.store(sums, place, total))
            return steps

        whole, last = divmod(product.depth, product.format.block)
        steps = [self.clear(sums)]
        if whole:
            block = tirx.Var("block", "int32")
            body = sequence(write_block(block, product.format.block))
            steps.append(tirx.For(block, 0, whole, tirx.ForKind.SERIAL, body))
        steps += write_block(whole, last) if last else []
        steps.append(self.store_tile(panel, 0, sums))
        return self.loop_over_panels(panel, [sums, of_block, codes, floats], steps)

    def _write_through_panels(self) -> Any:
        """Write the loop over panels that become floats once, for all rows."""
        product, panel = self.product, tirx.Var("panel", "int32")
        rows, vectors, serial = product.tile_rows, product.vectors, tirx.ForKind.SERIAL
        packed = tirx.decl_buffer((product.tiles * rows * product.depth,), "float32", "packed")
        depth = product.blocks * product.format.block
        unpacked = tirx.decl_buffer((depth * product.width,), "float32", "unpacked")
        codes = self.declare_vectors("codes", vectors, "uint32")
        sums = self.declare_vectors("sums", rows * vectors)
        floats = self.declare_vectors("floats", vectors)
        block = tirx.Var("block", "int32")

        def scale(code: Any, vector: int, value: Any) -> list[Any]:
            place = (block * product.format.block + code) * vectors + vector
            return [self.store(unpacked, place, value * self.load_scale(panel, block, vector))]

        unpack = self._unpack(panel, block, product.format.block, codes, scale)
        tile, step = tirx.Var("tile", "int32"), tirx.Var("step", "int32")
        steps = [
            self.store(floats, v, self.load(unpacked, step * vectors + v)) for v in range(vectors)
        ]
        for place in range(rows * vectors):
            factor = packed[(tile * product.depth + step) * rows + place // vectors]
            steps.append(self._add_product(sums, place, factor, floats, place % vectors))
        multiply = tirx.For(step, 0, product.depth, serial, sequence(steps))
        body = sequence([self.clear(sums), multiply, self.store_tile(panel, tile, sums)])
        loops = [
            tirx.For(block, 0, product.blocks, serial, unpack),
            tirx.For(tile, 0, product.tiles, serial, body),
        ]
        panels = self.loop_over_panels(panel, [unpacked, codes, sums, floats], loops)
        return sequence([tirx.AllocBuffer(packed), self._pack_rows(packed), panels])

    def _pack_rows(self, packed: Any) -> Any:
        """Write the loop that moves elements of a register tile's rows next to each other.

        Behind the last row it stands again.
        """
        product, rows = self.product, self.product.tile_rows
        tile, step, row = (tirx.Var(name, "int32") for name in ("tile", "step", "row"))
        source = tirx.min(tile * rows + row, product.rows - 1) * product.depth + step
        place = (tile * product.depth + step) * rows + row
        move = tirx.BufferStore(packed, self.x[source], [place])
        inner = tirx.For(row, 0, rows, tirx.ForKind.SERIAL, move)
        loop = tirx.For(step, 0, product.depth, tirx.ForKind.SERIAL, inner)
        return tirx.For(tile, 0, product.tiles, tirx.ForKind.PARALLEL, loop)

    def _unpack(self, panel: Any, block: Any, count: int, codes: Any, use: Use) -> Any:
        """Write what unpacks the first codes of a block, and what uses each of them."""
        per_word, vectors = self.product.format.codes_per_word, range(self.product.vectors)

        def write_word(word: Any, codes_of_word: int) -> Any:
            steps = [self.store(codes, v, self.load_line(panel, block, word, v)) for v in vectors]
            for code in range(codes_of_word):
                for v in vectors:
                    value = self._decode(self.load(codes, v), code)
                    if self.product.format.has_zeros:
                        value = value - self.load_zero(panel, block, v)
                    steps += use(word * per_word + code, v, value)
            return sequence(steps)

        whole, last = divmod(count, per_word)
        steps = []
        if whole:
            word = tirx.Var("word", "int32")
            body = write_word(word, per_word)
            steps.append(tirx.For(word, 0, whole, tirx.ForKind.SERIAL, body))
        return sequence([*steps, *([write_word(whole, last)] if last else [])])

    def _decode(self, words: Any, code: int) -> Any:
        """Return a code of each word of a vector as a float.

        A permutation looks at the lowest four bits of an index only.
        """
        bits, lanes = self.product.format.bits, self.product.lanes
        kind = f"int32x{lanes}"
        if bits == 4 and self.product.has_permutes:
            low = tirx.bitwise_and(tirx.Ramp(8, 1, lanes), self.broadcast(15, "int32"))
            table = (low - self.broadcast(8, "int32")).astype(self.vector)
            if code:
                words = tirx.shift_right(words, self.broadcast(bits * code, "uint32"))
            index = tirx.reinterpret(kind, words)
            name = "llvm.x86.avx512.permvar.sf.512"
            return tirx.call_llvm_pure_intrin(self.vector, name, table, index)
        signed = tirx.reinterpret(kind, words)
        if above := WORD_BITS - bits * (code + 1):
            signed = tirx.shift_left(signed, self.broadcast(above, "int32"))
        signed = tirx.shift_right(signed, self.broadcast(WORD_BITS - bits, "int32"))
        return signed.astype(self.vector)

    def _add_product(self, sums: Any, place: int, factor: Any, floats: Any, vector: int) -> Any:
        """Add a number times a vector."""
        values, total = self.load(floats, vector), self.load(sums, place)
        return self.store(sums, place, self.multiply_add(self.broadcast(factor), values, total))
