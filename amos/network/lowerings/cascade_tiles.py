"""A cascade of convolutions as one function, in which each core computes tile after tile.

*Bands of rows*: the intermediate rows of a band are in buffers of the core. The halo, rows of the
first convolution that the next band reads too, is moved to the beginning of its buffer; rows above
and below an image hold its padding.

*Channel blocks*: a depthwise convolution reads of each channel only that channel. A core computes
a block of the first convolution's channels for a whole image, and feeds it to the second one:
nothing is computed twice, and the intermediate tensor stays in the core's private cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.tir.arrays import constant, container_dtype
from amos.codegen.tir.program import Argument
from amos.codegen.tir.statements import serialize
from amos.ir import BufferLoad, Operator, dtype
from amos.network.lowerings.base import ScheduledProduct
from amos.operators.cascade import (
    IMAGES,
    ROWS,
    SOURCE,
    Cascade,
    argument,
    axis_of,
    channel_of,
    source_of,
)

#: Bytes of the longest vector.
_VECTOR = 64


def _list_arguments(
    cascade: Cascade,
    layers: Sequence[ScheduledProduct],
    shape: Callable[[Operator, Argument], tuple[int, ...]],
    result: tuple[int, ...],
) -> tuple[Argument, ...]:
    """List the image, further operands of layers, and the result, in shapes of all tiles."""
    operands = [
        Argument(argument(number, each.tensor), each.dtype, shape(operator, each), each.packed)
        for number, (operator, layer) in enumerate(zip(cascade.layers, layers, strict=True))
        for each in layer.program.inputs
        if not number or each.tensor != SOURCE
    ]
    operands.sort(key=lambda operand: operand.tensor != argument(0, SOURCE))
    return (*operands, Argument("result", str(cascade.result.dtype), result))


def _loop_over_tiles(
    cores: int, total: int, memory: Iterable[Any], steps: Callable[[Any, Any], Iterable[Any]]
) -> Any:
    """Write the loop over cores, each with its memory and an even share of the tiles.

    ``steps`` writes a tile from its number, and the number of tiles that the core had before.
    """
    from tvm import tirx

    core, step = tirx.Var("core", "int32"), tirx.Var("tile", "int32")
    first, end = (each * total // cores for each in (core, core + 1))
    # TVM takes loops that begin elsewhere for ones from zero, but not in conditions of values.
    tile = tirx.SeqStmt([*steps(first + step, step)])
    loop = tirx.For(step, 0, end - first, tirx.ForKind.SERIAL, tile)
    body = tirx.SeqStmt([*memory, loop])
    return tirx.For(core, 0, cores, tirx.ForKind.PARALLEL, body)


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
    bands = cascade.images * writer.bands
    body = _loop_over_tiles(cores, bands, writer.memory(), writer.steps)
    # ``noalias`` would be unsound: convolutions name the rows that they share differently.
    function = tirx.PrimFunc([*writer.buffers.values()], body)
    return writer.arguments, function.with_attr("s_tir", True)


def write_channel_blocks(
    cascade: Cascade, channels: int, cores: int, layers: Sequence[ScheduledProduct]
) -> tuple[tuple[Argument, ...], Any]:
    """Write the function of a cascade of two convolutions in channel blocks; see `write_bands`."""
    load_tvm()
    from tvm import tirx

    blocks = cascade.channels // channels

    def shape(operator: Operator, read: Argument) -> tuple[int, ...]:
        if read.tensor in operator.constants:
            return (blocks, *read.shape)
        return _loads_of(operator, read.tensor)[0].tensor.shape

    arguments = _list_arguments(cascade, layers, shape, cascade.result.shape)
    buffers = {
        each.tensor: _declare(each.shape, each.dtype, each.tensor.replace(".", "_"))
        for each in arguments
    }
    first, second = layers
    between = tirx.decl_buffer(first.result.shape, first.result.dtype, "between")

    def steps(number: Any, _: Any) -> Iterator[Any]:
        image, block = number // blocks, number % blocks
        yield _view(first.result, between)
        yield _view(second.parameters[SOURCE], between)
        yield _view(second.result, buffers["result"], [image, 0, 0, block * channels])
        for number, (operator, layer) in enumerate(zip(cascade.layers, layers, strict=True)):
            for tensor, own in layer.parameters.items():
                whole = buffers.get(argument(number, tensor))
                if whole is not None:
                    at = _start_of_block(operator, tensor, len(whole.shape), image, block, channels)
                    yield _view(own, whole, at)
        yield from (serialize(layer.function) for layer in layers)

    memory = [tirx.AllocBuffer(between)]
    body = _loop_over_tiles(cores, cascade.images * blocks, memory, steps)
    return arguments, tirx.PrimFunc([*buffers.values()], body).with_attr("s_tir", True)


def _start_of_block(
    operator: Operator, tensor: str, axes: int, image: Any, block: Any, channels: int
) -> list[Any]:
    """Return the index of a channel block's first element in a tensor."""
    if tensor in operator.constants:
        return [block, *(0 for _ in range(axes - 1))]
    (load, *_) = _loads_of(operator, tensor)
    at = [image if IMAGES in index.names else 0 for index in load.indices]
    axis = axis_of(load, channel_of(operator))
    return at if axis < 0 else [*at[:axis], block * channels, *at[axis + 1 :]]


class _BandWriter:
    """Writes bands of rows."""

    def __init__(self, cascade: Cascade, rows: int, layers: Sequence[ScheduledProduct]) -> None:
        self.cascade, self.rows, self.layers, self.window = cascade, rows, layers, cascade.window
        images, height, *row = cascade.result.shape
        shape = images * height, prod(row)
        self.arguments = _list_arguments(cascade, layers, _shape_in_rows, shape)
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
