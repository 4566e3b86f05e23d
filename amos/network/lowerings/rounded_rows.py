"""Loops of products with weights of a few bits whose rows are rounded to bytes.

Four codes of a column and four bytes of a row are multiplied and added by one instruction. A word
is unpacked into as many vectors of bytes as codes have room in a byte, so that codes that follow
one another lie in different vectors; bytes of rows are stored in that order. Codes are unsigned:
sums begin at the middle of all codes times the sum of the bytes of a block, below zero.
"""

from __future__ import annotations

from typing import Any

from amos._toolchain import tirx
from amos.ir import Operator
from amos.network.lowerings.panel_writer import PanelWriter, sequence
from amos.network.lowerings.panels import MOST_LEVEL, BlockedProduct

#: Elements of a row that are rounded in one step.
_STEP = 16
#: Elements that one core rounds before another one would have started.
_FEW_ELEMENTS = 1 << 14
#: Bytes that are multiplied and added in a lane.
_BYTES = 4


class RoundedRowsWriter(PanelWriter):
    """Writes the loops of a product with rounded rows."""

    def __init__(self, product: BlockedProduct, operator: Operator) -> None:
        super().__init__(product, operator)
        blocks = product.rows * product.blocks
        #: Rows with whole blocks, which are the rows themselves where theirs are.
        self.padded = self.x
        if product.depth % product.format.block:
            self.padded = tirx.decl_buffer((blocks * product.format.block,), "float32", "padded")
        #: Bytes of rows, and of each block their scale, and their sum times the middle, negated.
        self.levels = tirx.decl_buffer((blocks * product.format.block,), "int8", "levels")
        self.scales = tirx.decl_buffer((blocks,), "float32", "scales")
        self.begins = tirx.decl_buffer((blocks,), "int32", "begins")

    @property
    def _passes(self) -> int:
        """Vectors of bytes that a word is unpacked into."""
        return 8 // self.product.format.bits

    def write_body(self) -> Any:
        """Write all loops: rows are rounded, then multiplied."""
        buffers = [self.levels, self.scales, self.begins]
        steps = [self._write_rounding(), self._write_products()]
        if not self.padded.same_as(self.x):
            buffers, steps = [self.padded, *buffers], [self._write_padding(), *steps]
        return sequence([*map(tirx.AllocBuffer, buffers), *steps])

    def _write_padding(self) -> Any:
        """Write the loop that puts zeros behind rows."""
        product, row, at = self.product, tirx.Var("row", "int32"), tirx.Var("at", "int32")
        depth = product.blocks * product.format.block
        value = tirx.if_then_else(
            at < product.depth, self.x[row * product.depth + at], tirx.const(0, "float32")
        )
        store = tirx.BufferStore(self.padded, value, [row * depth + at])
        loop = tirx.For(at, 0, depth, tirx.ForKind.SERIAL, store)
        return self._loop_over_rows(row, product.rows, loop)

    def _loop_over_rows(self, variable: Any, count: int, body: Any) -> Any:
        """Write a loop over rows, or their blocks: parallel if there are many elements."""
        is_small = self.product.rows * self.product.depth < _FEW_ELEMENTS
        kind = tirx.ForKind.SERIAL if is_small else tirx.ForKind.PARALLEL
        return tirx.For(variable, 0, count, kind, body)

    def _write_rounding(self) -> Any:
        """Write the loop that rounds each block of each row."""
        product, block = self.product, tirx.Var("block", "int32")
        count, kind = product.format.block // _STEP, f"float32x{_STEP}"
        most, inverse = (
            tirx.decl_buffer((1,), "float32", name, scope="local") for name in ("most", "inverse")
        )

        def read(step: int) -> Any:
            place = tirx.Ramp(block * product.format.block + step * _STEP, 1, _STEP)
            return tirx.BufferLoad(self.padded, [place])

        sizes = [tirx.call_llvm_pure_intrin(kind, "llvm.fabs", read(n)) for n in range(count)]
        while len(sizes) > 1:
            pairs = [tirx.max(*sizes[n : n + 2]) for n in range(0, len(sizes) - 1, 2)]
            sizes = [*pairs, *sizes[len(pairs) * 2 :]]
        largest = tirx.call_llvm_pure_intrin("float32", "llvm.vector.reduce.fmax", sizes[0])
        top, zero = tirx.const(MOST_LEVEL, "float32"), tirx.const(0, "float32")
        quotient = tirx.Select(most[0] > zero, tirx.div(top, most[0]), zero)
        steps = [
            tirx.BufferStore(most, largest, [0]),
            tirx.BufferStore(inverse, quotient, [0]),
            tirx.BufferStore(self.scales, tirx.div(most[0], top), [block]),
        ]
        total = None
        for n in range(count):
            scaled = read(n) * tirx.Broadcast(inverse[0], _STEP)
            nearest = tirx.call_llvm_pure_intrin(kind, "llvm.rint", scaled)
            levels = nearest.astype(f"int32x{_STEP}")
            total = levels if total is None else total + levels
            order = [tirx.const(at, "int32") for at in self._order()]
            moved = tirx.Shuffle([levels.astype(f"int8x{_STEP}")], order)
            place = tirx.Ramp(block * product.format.block + n * _STEP, 1, _STEP)
            steps.append(tirx.BufferStore(self.levels, moved, [place]))
        summed = tirx.call_llvm_pure_intrin("int32", "llvm.vector.reduce.add", total)
        middle = tirx.const(-1 << (product.format.bits - 1), "int32")
        steps.append(tirx.BufferStore(self.begins, summed * middle, [block]))
        body = sequence([tirx.AllocBuffer(most), tirx.AllocBuffer(inverse), *steps])
        return self._loop_over_rows(block, product.rows * product.blocks, body)

    def _order(self) -> list[int]:
        """Return which element of a step each of its bytes is."""
        per_word = self.product.format.codes_per_word
        return [
            word * per_word + byte * self._passes + number
            for word in range(_STEP // per_word)
            for number in range(self._passes)
            for byte in range(_BYTES)
        ]

    def _write_products(self) -> Any:
        """Write the loop over panels, and over register tiles of rows in each."""
        product = self.product
        panel, tile, block = (tirx.Var(name, "int32") for name in ("panel", "tile", "block"))
        count = product.tile_rows * product.vectors
        sums, codes = (
            self.declare_vectors("sums", count),
            self.declare_vectors("codes", product.vectors, "uint32"),
        )
        integers = self.declare_vectors("integers", count, "int32")
        body = sequence(self._multiply_block(panel, tile, block, sums, integers, codes))
        blocks = tirx.For(block, 0, product.blocks, tirx.ForKind.SERIAL, body)
        steps = sequence([self.clear(sums), blocks, self.store_tile(panel, tile, sums)])
        loop = tirx.For(tile, 0, product.tiles, tirx.ForKind.SERIAL, steps)
        return self.loop_over_panels(panel, [sums, integers, codes], [loop])

    def _multiply_block(
        self, panel: Any, tile: Any, block: Any, sums: Any, integers: Any, codes: Any
    ) -> list[Any]:
        """Return statements that add the products of a block to the sums of a register tile."""
        product = self.product
        rows, vectors = product.tile_rows, product.vectors
        # Behind the last row it is multiplied again.
        at = [tirx.min(tile * rows + row, product.rows - 1) for row in range(rows)]
        places = [row * product.blocks + block for row in at]
        begins = [self.broadcast(self.begins[place]) for place in places]
        steps = [self.store(integers, n, begins[n // vectors]) for n in range(rows * vectors)]
        word = tirx.Var("word", "int32")
        inner = [
            self.store(codes, v, self.load_line(panel, block, word, v)) for v in range(vectors)
        ]
        for number in range(self._passes):
            of_word = (word * self._passes + number) * _BYTES
            for row, place in enumerate(places):
                levels = tirx.Ramp(place * product.format.block + of_word, 1, _BYTES)
                four = tirx.reinterpret("int32", tirx.BufferLoad(self.levels, [levels]))
                for v in range(vectors):
                    n = row * vectors + v
                    value = self._add_bytes(
                        self.load(integers, n), self.load(codes, v), number, four
                    )
                    inner.append(self.store(integers, n, value))
        loop = tirx.For(word, 0, product.format.words, tirx.ForKind.SERIAL, sequence(inner))
        steps.append(loop)
        for n in range(rows * vectors):
            place, v = places[n // vectors], n % vectors
            scale = self.load_scale(panel, block, v)
            scale = scale * self.broadcast(self.scales[place])
            value = self.load(integers, n).astype(self.vector)
            if product.format.has_zeros:
                middle = tirx.const(-1 << (product.format.bits - 1), "float32")
                total = self.broadcast(self.begins[place].astype("float32") / middle)
                value -= self.load_zero(panel, block, v) * total
            steps.append(self.store(sums, n, self.multiply_add(value, scale, self.load(sums, n))))
        return steps

    def _add_bytes(self, total: Any, words: Any, number: int, four: Any) -> Any:
        """Return a sum plus products of bytes: of codes of words, and of four levels of a row."""
        bits, lanes = self.product.format.bits, self.product.lanes
        if bits < 8:
            mask = ((1 << bits) - 1) * 0x01010101
            if number:
                words = tirx.shift_right(words, self.broadcast(bits * number, "uint32"))
            words = tirx.bitwise_and(words, self.broadcast(mask, "uint32"))
        kind = f"int8x{_BYTES * lanes}"
        return tirx.call_llvm_pure_intrin(
            f"int32x{lanes}",
            f"llvm.x86.avx512.vpdpbusd.{32 * lanes}",
            total,
            tirx.reinterpret(f"u{kind}", words),
            tirx.reinterpret(kind, self.broadcast(four)),
        )
