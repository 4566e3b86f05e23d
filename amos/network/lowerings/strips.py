"""A cascade of convolutions as one function: each core goes from strip to strip.

*By rows*, the rows between two convolutions stand in buffers of a core. Those of the first one's
results that the next strip reads too are moved to the beginning of their buffer; rows above and
below an image hold its padding.

*By channels*: a depthwise convolution reads of each channel only that channel. So a core makes some
channels of the first convolution's results, for a whole image, and goes on with these: nothing is
computed twice, and what is between stays in the caches near the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.tir.arrays import constant
from amos.codegen.tir.program import Argument
from amos.codegen.tir.statements import rewritten
from amos.ir import BufferLoad, Operator, dtype
from amos.network.lowerings.base import Scheduled
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


def _arguments(
    cascade: Cascade,
    layers: Sequence[Scheduled],
    shape: Callable[[Operator, Argument], tuple[int, ...]],
    result: tuple[int, ...],
) -> tuple[Argument, ...]:
    """The image, what layers read beside it, and the result, in shapes of all strips."""
    every = [
        Argument(argument(number, each.tensor), each.dtype, shape(operator, each), each.packed)
        for number, (operator, layer) in enumerate(zip(cascade.layers, layers, strict=True))
        for each in layer.program.inputs
        if not number or each.tensor != SOURCE
    ]
    every.sort(key=lambda each: each.tensor != argument(0, SOURCE))
    return (*every, Argument("result", str(cascade.result.dtype), result))


def _over_strips(
    cores: int, total: int, memory: Iterable[Any], steps: Callable[[Any, Any], Iterable[Any]]
) -> Any:
    """The loop of all cores, each with memory and about as many strips as any other.

    Steps are those of a strip, by its number, and by how many the core had before.
    """
    from tvm import tirx

    core, step = tirx.Var("core", "int32"), tirx.Var("strip", "int32")
    first, end = (each * total // cores for each in (core, core + 1))
    # TVM takes loops that begin elsewhere for ones from zero, but not in conditions of values.
    strips = tirx.SeqStmt([*steps(first + step, step)])
    loop = tirx.For(step, 0, end - first, tirx.ForKind.SERIAL, strips)
    body = tirx.SeqStmt([*memory, loop])
    return tirx.For(core, 0, cores, tirx.ForKind.PARALLEL, body)


def by_rows(
    cascade: Cascade, rows: int, cores: int, layers: Sequence[Scheduled]
) -> tuple[tuple[Argument, ...], Any]:
    """The function of a cascade.

    Args:
        cascade: what it computes.
        rows: of the result that a strip has.
        cores: how many there are.
        layers: the convolutions, the first one on a single row, the others on a strip.

    Returns:
        Its arguments, the output last, and the function.
    """
    load_tvm()
    from tvm import tirx

    function = _Rows(cascade, rows, layers)
    strips = cascade.images * function.strips
    body = _over_strips(cores, strips, function.memory(), function.steps)
    # Convolutions have names of their own for the rows that they share. So nothing is said of what
    # names stand for different memory: LLVM could load what it is yet to store.
    written = tirx.PrimFunc([*function.buffers.values()], body)
    return function.arguments, written.with_attr("s_tir", True)


def by_channels(
    cascade: Cascade, channels: int, cores: int, layers: Sequence[Scheduled]
) -> tuple[tuple[Argument, ...], Any]:
    """The same of two convolutions by strips of some channels, which both are on."""
    load_tvm()
    from tvm import tirx

    strips = cascade.channels // channels

    def shape(operator: Operator, read: Argument) -> tuple[int, ...]:
        if read.tensor in operator.constants:
            return (strips, *read.shape)
        return _loads_of(operator, read.tensor)[0].tensor.shape

    arguments = _arguments(cascade, layers, shape, cascade.result.shape)
    buffers = {
        each.tensor: tirx.decl_buffer(each.shape, each.dtype, each.tensor.replace(".", "_"))
        for each in arguments
    }
    one, other = layers
    between = tirx.decl_buffer(one.result.shape, one.result.dtype, "between")

    def steps(number: Any, _: Any) -> Iterator[Any]:
        image, strip = number // strips, number % strips
        yield _view(one.result, between)
        yield _view(other.parameters[SOURCE], between)
        yield _view(other.result, buffers["result"], [image, 0, 0, strip * channels])
        for number, (operator, layer) in enumerate(zip(cascade.layers, layers, strict=True)):
            for tensor, own in layer.parameters.items():
                whole = buffers.get(argument(number, tensor))
                if whole is not None:
                    at = _start(operator, tensor, len(whole.shape), image, strip, channels)
                    yield _view(own, whole, at)
        yield from map(_serial, layers)

    memory = [tirx.AllocBuffer(between)]
    body = _over_strips(cores, cascade.images * strips, memory, steps)
    return arguments, tirx.PrimFunc([*buffers.values()], body).with_attr("s_tir", True)


def _start(
    operator: Operator, tensor: str, axes: int, image: Any, strip: Any, channels: int
) -> list[Any]:
    """The element of a whole tensor with which a strip begins."""
    if tensor in operator.constants:
        return [strip, *(0 for _ in range(axes - 1))]
    (load, *_) = _loads_of(operator, tensor)
    at = [image if IMAGES in index.names else 0 for index in load.indices]
    axis = axis_of(load, channel_of(operator))
    return at if axis < 0 else [*at[:axis], strip * channels, *at[axis + 1 :]]


class _Rows:
    """Writes strips of rows."""

    def __init__(self, cascade: Cascade, rows: int, layers: Sequence[Scheduled]) -> None:
        from tvm import tirx

        self.cascade, self.rows, self.layers, self.window = cascade, rows, layers, cascade.window
        images, height, *row = cascade.result.shape
        shape = images * height, prod(row)
        self.arguments = _arguments(cascade, layers, _shape_in_rows, shape)
        #: By the arguments' names; a layer's own where the layer reads it whole.
        self.buffers: dict[str, Any] = {}
        own = {
            argument(number, tensor): buffer
            for number, layer in enumerate(layers)
            for tensor, buffer in layer.parameters.items()
        }
        for each in self.arguments:
            buffer = own.get(each.tensor)
            if buffer is None or tuple(map(int, buffer.shape)) != each.shape:
                name = each.tensor.replace(".", "_")
                buffer = tirx.decl_buffer(each.shape, each.dtype, f"whole_{name}")
            self.buffers[each.tensor] = buffer
        self.strips = cascade.rows // rows
        #: Rows that a strip of the depthwise convolution reads.
        self.needed = self.window.needed(rows)
        #: What stands behind each convolution but the last.
        self.between = [
            tirx.decl_buffer((count, prod(each.result.shape[2:])), str(each.result.dtype), "rows")
            for count, each in zip((self.needed, rows), cascade.layers[:-1], strict=False)
        ]

    def steps(self, strip: Any, step: Any) -> Iterator[Any]:
        """What a core does for a strip."""
        yield self._filled(strip, step.equal(0))
        yield from self._behind(strip)
        yield self._moved

    def memory(self) -> Iterator[Any]:
        """Memory of the rows between convolutions, which all that reads or writes it shares."""
        from tvm import tirx

        memory = [tirx.decl_buffer(x.shape, str(x.dtype), "memory") for x in self.between]
        yield from map(tirx.AllocBuffer, memory)
        for rows, own in zip(self.between, memory, strict=True):
            yield _view(rows, own)

    def _filled(self, strip: Any, begins: Any) -> Any:
        """The rows that a strip needs and that the last one did not leave."""
        from tvm import tirx

        kept = tirx.if_then_else(
            tirx.any(begins, (strip % self.strips).equal(0)), 0, self.window.kept
        )
        step = tirx.Var("row", "int32")
        row = kept + step
        image, number = strip // self.strips, strip % self.strips
        at = number * (self.rows * self.window.stride) - self.window.above + row
        height = self.cascade.layers[0].extents[ROWS]
        layer, buffer = self.layers[0], self.between[0]
        computed = [
            *self._placed(0, image * height + at),
            _view(layer.result, buffer, [row, 0]),
            _serial(layer),
        ]
        inside = tirx.all(at >= 0, at < height)
        filled = tirx.IfThenElse(inside, tirx.SeqStmt(computed), self._padding(row))
        return tirx.For(step, 0, self.needed - kept, tirx.ForKind.SERIAL, filled)

    def _behind(self, strip: Any) -> Iterator[Any]:
        """The other convolutions of a strip."""
        for number, layer in enumerate(self.layers[1:], 1):
            yield from self._placed(number, strip * self.rows)
            yield _view(layer.parameters[SOURCE], self.between[number - 1])
            if layer is self.layers[-1]:
                yield _view(layer.result, self.buffers["result"], [strip * self.rows, 0])
            else:
                yield _view(layer.result, self.between[number])
            yield _serial(layer)

    def _placed(self, number: int, row: Any) -> Iterator[Any]:
        """The rows of tensors that a layer reads from a row on, of all images one by one."""
        for tensor, own in self.layers[number].parameters.items():
            whole = self.buffers.get(argument(number, tensor))
            if whole is not None and not whole.same_as(own):
                yield _view(own, whole, [row, 0])

    def _padding(self, row: Any) -> Any:
        """A row beside the image."""
        load = source_of(self.cascade.layers[1])
        value = constant(load.padding or 0, dtype(str(self.between[0].dtype)).name)
        return self._each(lambda place: (value, row, place), 1)

    @property
    def _moved(self) -> Any:
        """The rows that the next strip reads too, to where it expects them."""
        from tvm import tirx

        buffer, width = self.between[0], int(self.between[0].shape[1])
        forward = self.rows * self.window.stride

        def moved(place: Any) -> tuple[Any, Any, Any]:
            row = place // width
            return tirx.BufferLoad(buffer, [row + forward, place % width]), row, place % width

        return self._each(moved, self.window.kept)

    def _each(self, value: Any, rows: int) -> Any:
        """Stores to some rows of the first buffer, in vectors."""
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


def _view(own: Any, whole: Any, start: Sequence[Any] | None = None) -> Any:
    """Declares a layer's buffer to be another one, or what that has from an element on."""
    from tvm import tirx

    if start is None:
        # TVM drops memory that is only reached by the address of an element.
        return tirx.DeclBuffer(own, data=whole.data)
    return tirx.DeclBuffer(own, data=tirx.address_of(tirx.BufferLoad(whole, start)))


def _shape_in_rows(operator: Operator, read: Argument) -> tuple[int, ...]:
    """The shape of what a layer reads: of what belongs to its rows, rows of all images."""
    load, *more = _loads_of(operator, read.tensor)
    indexed = any(ROWS in index.names for each in (load, *more) for index in each.indices)
    if read.packed is not None or not indexed:
        return read.shape
    shape = load.tensor.shape
    row = next(d for d, index in enumerate(load.indices) if ROWS in index.names)
    return prod(shape[: row + 1]), prod(shape[row + 1 :])


def _loads_of(operator: Operator, tensor: str) -> list[BufferLoad]:
    """The accesses of a layer to a tensor."""
    loads = (*operator.sources, *operator.epilogue_loads)
    return [load for load in loads if load.tensor.name == tensor]


def _serial(layer: Scheduled) -> Any:
    """What a layer does, on the core that calls it."""
    from tvm import tirx

    def serial(loop: Any) -> Any:
        if loop.kind != tirx.ForKind.PARALLEL:
            return None
        body = rewritten(loop.body, "For", serial)
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body)

    return rewritten(layer.function.body, "For", serial)
