"""A cascade of convolutions as one function: each core goes from strip to strip of rows.

The rows between two convolutions stand in buffers of a core. Those of the first one's results that
the next strip reads too are moved to the beginning of their buffer; rows above and below an image
hold its padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.tir.arrays import constant
from amos.codegen.tir.program import Argument, Program
from amos.codegen.tir.statements import rewritten
from amos.ir import BufferLoad, Operator, dtype
from amos.operators.cascade import ROWS, SOURCE, Cascade, argument, source_of

#: Bytes of the longest vector.
_VECTOR = 64


@dataclass(frozen=True)
class Layer:
    """A convolution of a cascade on a strip, scheduled for one core.

    Attributes:
        program: its arguments.
        function: its TensorIR.
    """

    program: Program
    function: Any

    @property
    def parameters(self) -> dict[str, Any]:
        """Buffers of the function by the names of the operator's tensors."""
        names = [each.tensor for each in self.program.arguments]
        return dict(zip(names, self.function.params, strict=True))

    @property
    def result(self) -> Any:
        """The buffer of the results."""
        return self.function.params[-1]

    @property
    def body(self) -> Any:
        """What it does, on the core that calls it."""
        from tvm import tirx

        def serial(loop: Any) -> Any:
            if loop.kind != tirx.ForKind.PARALLEL:
                return None
            body = rewritten(loop.body, "For", serial)
            return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body)

        return rewritten(self.function.body, "For", serial)


def _arguments(cascade: Cascade, layers: Sequence[Layer]) -> tuple[Argument, ...]:
    """The image, what layers read beside it, and the result."""
    every = []
    for number, (operator, layer) in enumerate(zip(cascade.layers, layers, strict=True)):
        for each in layer.program.inputs:
            if number and each.tensor == SOURCE:
                continue
            name, shape = argument(number, each.tensor), each.shape
            if each.packed is None and _has_rows(operator, each.tensor):
                shape = _rows_of_all(operator, each.tensor)
            every.append(Argument(name, each.dtype, shape, each.packed))
    result = cascade.result
    last = Argument("result", str(result.dtype), _rows_and(result.shape))
    image = argument(0, SOURCE)
    every.sort(key=lambda each: each.tensor != image)
    return (*every, last)


def by_rows(
    cascade: Cascade, rows: int, cores: int, layers: Sequence[Layer]
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

    function = _Strips(cascade, rows, cores, layers)
    # Convolutions have names of their own for the rows that they share. So nothing is said of what
    # names stand for different memory: LLVM could load what it is yet to store.
    written = tirx.PrimFunc([*function.buffers.values()], function.body)
    return function.arguments, written.with_attr("s_tir", True)


class _Strips:
    """Writes the function."""

    def __init__(self, cascade: Cascade, rows: int, cores: int, layers: Sequence[Layer]) -> None:
        from tvm import tirx

        self.cascade, self.rows, self.cores, self.layers = cascade, rows, cores, layers
        self.window, self.arguments = cascade.window, _arguments(cascade, layers)
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

    @property
    def body(self) -> Any:
        from tvm import tirx

        core, step = tirx.Var("core", "int32"), tirx.Var("strip", "int32")
        total = self.cascade.images * self.strips
        first, end = (each * total // self.cores for each in (core, core + 1))
        strip = first + step
        steps = [
            self._filled(strip, step.equal(0)),
            *self._behind(strip),
            self._moved,
        ]
        serial, parallel = tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL
        # TVM takes loops that begin elsewhere for ones from zero, but not in conditions of values.
        loop = tirx.For(step, 0, end - first, serial, tirx.SeqStmt(steps))
        body = tirx.SeqStmt([*self._allocated(), loop])
        return tirx.For(core, 0, self.cores, parallel, body)

    def _allocated(self) -> Iterator[Any]:
        """Memory of the rows between convolutions, which all that reads or writes it shares."""
        from tvm import tirx

        memory = [tirx.decl_buffer(x.shape, str(x.dtype), "memory") for x in self.between]
        yield from map(tirx.AllocBuffer, memory)
        for rows, own in zip(self.between, memory, strict=True):
            yield view(rows, own)

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
            view(layer.result, buffer, [row, 0]),
            layer.body,
        ]
        inside = tirx.all(at >= 0, at < height)
        filled = tirx.IfThenElse(inside, tirx.SeqStmt(computed), self._padding(row))
        return tirx.For(step, 0, self.needed - kept, tirx.ForKind.SERIAL, filled)

    def _behind(self, strip: Any) -> Iterator[Any]:
        """The other convolutions of a strip."""
        for number, layer in enumerate(self.layers[1:], 1):
            yield from self._placed(number, strip * self.rows)
            yield view(layer.parameters[SOURCE], self.between[number - 1])
            if layer is self.layers[-1]:
                yield view(layer.result, self.buffers["result"], [strip * self.rows, 0])
            else:
                yield view(layer.result, self.between[number])
            yield layer.body

    def _placed(self, number: int, row: Any) -> Iterator[Any]:
        """The rows of tensors that a layer reads from a row on, of all images one by one."""
        for tensor, own in self.layers[number].parameters.items():
            whole = self.buffers.get(argument(number, tensor))
            if whole is not None and not whole.same_as(own):
                yield view(own, whole, [row, 0])

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


def view(own: Any, whole: Any, start: Sequence[Any] | None = None) -> Any:
    """Declares a layer's buffer to be another one, or what that has from an element on."""
    from tvm import tirx

    if start is None:
        # TVM drops memory that is only reached by the address of an element.
        return tirx.DeclBuffer(own, data=whole.data)
    return tirx.DeclBuffer(own, data=tirx.address_of(tirx.BufferLoad(whole, start)))


def _has_rows(operator: Operator, tensor: str) -> bool:
    """Whether a layer reads rows of a tensor that belong to its own rows of results."""
    return any(ROWS in index.names for load in loads_of(operator, tensor) for index in load.indices)


def _rows_of_all(operator: Operator, tensor: str) -> tuple[int, int]:
    """The shape of a tensor as rows of all images, each as one."""
    (load, *_) = loads_of(operator, tensor)
    shape = load.tensor.shape
    row = next(d for d, index in enumerate(load.indices) if ROWS in index.names)
    return prod(shape[: row + 1]), prod(shape[row + 1 :])


def loads_of(operator: Operator, tensor: str) -> list[BufferLoad]:
    """The accesses of a layer to a tensor."""
    loads = (*operator.sources, *operator.epilogue_loads)
    return [load for load in loads if load.tensor.name == tensor]


def _rows_and(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape of images as rows of all of them, each as one."""
    return shape[0] * shape[1], prod(shape[2:])
