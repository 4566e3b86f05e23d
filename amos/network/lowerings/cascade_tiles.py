"""A cascade of convolutions as one function, in which each core computes band after band.

The intermediate rows of a band are in buffers of the core. The halo, rows of the first convolution
that the next band reads too, is moved to the beginning of its buffer; rows above and below an image
hold its padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.tir.arrays import constant, container_dtype
from amos.codegen.tir.program import Argument
from amos.codegen.tir.statements import serialize
from amos.ir import BufferLoad, Operator, dtype
from amos.network.lowerings.base import ScheduledProduct
from amos.operators.cascade import (
    ROWS,
    SOURCE,
    Cascade,
    argument,
    source_of,
)

#: Bytes of the longest vector.
_VECTOR = 64


def _list_arguments(cascade: Cascade, layers: Sequence[ScheduledProduct]) -> tuple[Argument, ...]:
    """List the image, further operands of layers, and the result, in shapes of all bands."""
    operands = [
        Argument(
            argument(number, each.tensor), each.dtype, _shape_in_rows(operator, each), each.packed
        )
        for number, (operator, layer) in enumerate(zip(cascade.layers, layers, strict=True))
        for each in layer.program.inputs
        if not number or each.tensor != SOURCE
    ]
    operands.sort(key=lambda operand: operand.tensor != argument(0, SOURCE))
    images, height, *row = cascade.result.shape
    shape = images * height, prod(row)
    return (*operands, Argument("result", str(cascade.result.dtype), shape))


def write_bands(
    cascade: Cascade, rows: int, cores: int, layers: Sequence[ScheduledProduct]
) -> tuple[tuple[Argument, ...], Any]:
    """Write the function of a cascade in bands of rows.

    Args:
        cascade: what it computes.
        rows: of the result in a band.
        cores: number of cores.
        layers: the convolutions, the first one of a single row, the others of a band.

    Returns:
        Its arguments, the output last, and the function.
    """
    load_tvm()
    from tvm import tirx

    writer = _BandWriter(cascade, rows, layers)
    core, step = tirx.Var("core", "int32"), tirx.Var("band", "int32")
    first, end = (each * cascade.images * writer.bands // cores for each in (core, core + 1))
    # TVM takes loops that begin elsewhere for ones from zero, but not in conditions of values.
    band = tirx.SeqStmt([*writer.steps(first + step, step)])
    loop = tirx.For(step, 0, end - first, tirx.ForKind.SERIAL, band)
    body = tirx.SeqStmt([*writer.memory(), loop])
    body = tirx.For(core, 0, cores, tirx.ForKind.PARALLEL, body)
    # ``noalias`` would be unsound: convolutions name the rows that they share differently.
    function = tirx.PrimFunc([*writer.buffers.values()], body)
    return writer.arguments, function.with_attr("s_tir", True)


class _BandWriter:
    """Writes bands of rows."""

    def __init__(self, cascade: Cascade, rows: int, layers: Sequence[ScheduledProduct]) -> None:
        self.cascade, self.rows, self.layers, self.window = cascade, rows, layers, cascade.window
        self.arguments = _list_arguments(cascade, layers)
        #: By the arguments' names; a layer's own buffer where the layer reads all of it.
        self.buffers: dict[str, Any] = {}
        own = {
            argument(number, tensor): buffer
            for number, layer in enumerate(layers)
            for tensor, buffer in layer.parameters.items()
        }
        for operand in self.arguments:
            buffer = own.get(operand.tensor)
            if buffer is None or tuple(map(int, buffer.shape)) != operand.shape:
                name = operand.tensor.replace(".", "_")
                buffer = _declare(operand.shape, operand.dtype, f"whole_{name}")
            self.buffers[operand.tensor] = buffer
        self.bands = cascade.rows // rows
        #: Rows that a band of the depthwise convolution reads.
        self.needed = self.window.needed(rows)
        #: Intermediate rows, of each convolution but the last.
        self.between = [
            _declare((count, prod(each.result.shape[2:])), str(each.result.dtype), "rows")
            for count, each in zip((self.needed, rows), cascade.layers[:-1], strict=False)
        ]

    def steps(self, band: Any, step: Any) -> Iterator[Any]:
        """Write what a core does for a band."""
        yield self._fill_source(band, step.equal(0))
        yield from self._compute_layers(band)
        yield self._move_halo()

    def memory(self) -> Iterator[Any]:
        """Allocate the intermediate rows; producers and consumers share a buffer."""
        from tvm import tirx

        memory = [tirx.decl_buffer(x.shape, str(x.dtype), "memory") for x in self.between]
        yield from map(tirx.AllocBuffer, memory)
        for rows, own in zip(self.between, memory, strict=True):
            yield _view(rows, own)

    def _fill_source(self, band: Any, is_first: Any) -> Any:
        """Compute the rows that a band reads beyond the halo; the first of an image has none."""
        from tvm import tirx

        halo = tirx.if_then_else(
            tirx.any(is_first, (band % self.bands).equal(0)), 0, self.window.halo
        )
        step = tirx.Var("row", "int32")
        row = halo + step
        image, number = band // self.bands, band % self.bands
        at = number * (self.rows * self.window.stride) - self.window.above + row
        height = self.cascade.layers[0].extents[ROWS]
        layer, buffer = self.layers[0], self.between[0]
        computed = [
            *self._view_rows(0, image * height + at),
            _view(layer.result, buffer, [row, 0]),
            serialize(layer.function),
        ]
        is_row = tirx.all(at >= 0, at < height)
        filled = tirx.IfThenElse(is_row, tirx.SeqStmt(computed), self._fill_padding(row))
        return tirx.For(step, 0, self.needed - halo, tirx.ForKind.SERIAL, filled)

    def _compute_layers(self, band: Any) -> Iterator[Any]:
        """Compute the convolutions of a band behind the first."""
        for number, layer in enumerate(self.layers[1:], 1):
            yield from self._view_rows(number, band * self.rows)
            yield _view(layer.parameters[SOURCE], self.between[number - 1])
            if layer is self.layers[-1]:
                yield _view(layer.result, self.buffers["result"], [band * self.rows, 0])
            else:
                yield _view(layer.result, self.between[number])
            yield serialize(layer.function)

    def _view_rows(self, number: int, row: Any) -> Iterator[Any]:
        """Declare the operands of a layer to begin at a row, counted over all images."""
        for tensor, own in self.layers[number].parameters.items():
            whole = self.buffers.get(argument(number, tensor))
            if whole is not None and not whole.same_as(own):
                yield _view(own, whole, [row, 0])

    def _fill_padding(self, row: Any) -> Any:
        """Fill a row above or below the image."""
        load = source_of(self.cascade.layers[1])
        value = constant(load.padding or 0, str(self.cascade.layers[0].result.dtype))
        return self._store(lambda place: (value, row, place), 1)

    def _move_halo(self) -> Any:
        """Move the rows that the next band reads too to the beginning of the buffer."""
        from tvm import tirx

        buffer, width = self.between[0], int(self.between[0].shape[1])
        forward = self.rows * self.window.stride

        def moved(place: Any) -> tuple[Any, Any, Any]:
            row = place // width
            return tirx.BufferLoad(buffer, [row + forward, place % width]), row, place % width

        return self._store(moved, self.window.halo)

    def _store(self, value: Any, rows: int) -> Any:
        """Store to the first rows of the first buffer, in vectors."""
        from tvm import tirx

        buffer = self.between[0]
        width = int(buffer.shape[1])
        longest = _VECTOR * 8 // dtype(str(buffer.dtype)).bits
        lanes = next(n for n in (longest, longest // 2, longest // 4, 1) if width % n == 0)
        step, lane = tirx.Var("step", "int32"), tirx.Var("lane", "int32")
        stored, *place = value(step * lanes + lane)
        store = tirx.BufferStore(buffer, stored, place)
        vector = tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, store)
        return tirx.For(step, 0, rows * width // lanes, tirx.ForKind.SERIAL, vector)


def _declare(shape: Sequence[int], kind: str, name: str) -> Any:
    """Declare a buffer that holds values of a dtype."""
    from tvm import tirx

    return tirx.decl_buffer(shape, container_dtype(kind), name)


def _view(own: Any, whole: Any, start: Sequence[Any] | None = None) -> Any:
    """Declare a layer's buffer to be another one, or its elements from one on."""
    from tvm import tirx

    if start is None:
        # TVM drops memory that is only reached by the address of an element.
        return tirx.DeclBuffer(own, data=whole.data)
    return tirx.DeclBuffer(own, data=tirx.address_of(tirx.BufferLoad(whole, start)))


def _shape_in_rows(operator: Operator, read: Argument) -> tuple[int, ...]:
    """Return the shape of an operand: of one that is indexed by rows, rows of all images."""
    load, *more = _loads_of(operator, read.tensor)
    indexed = any(ROWS in index.names for each in (load, *more) for index in each.indices)
    if read.packed is not None or not indexed:
        return read.shape
    shape = load.tensor.shape
    row = next(d for d, index in enumerate(load.indices) if ROWS in index.names)
    return prod(shape[: row + 1]), prod(shape[row + 1 :])


def _loads_of(operator: Operator, tensor: str) -> list[BufferLoad]:
    """Return the accesses of a layer to a tensor."""
    loads = (*operator.sources, *operator.epilogue_loads)
    return [load for load in loads if load.tensor.name == tensor]
