"""A compiled network as a straight line of calls on buffers whose places are decided.

Shapes are static, so that what Relax's virtual machine would decide at run time is decided here,
once: which function runs when, and where each tensor lies. C prints it as tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from amos._toolchain import load_tvm
from amos.errors import NetworkError


class Unsupported(NetworkError):
    """A network does something that cannot be decided ahead."""


#: Bytes of which the place of each tensor is a multiple: those of a cache line.
ALIGNMENT_BYTES = 64
#: Copies the first buffer to the second one.
COPY = ""


class Place(Enum):
    """Where a buffer lies."""

    INPUT = 0
    OUTPUT = 1
    ARENA = 2
    CONSTANT = 3


@dataclass(frozen=True)
class Buffer:
    """A tensor of a program.

    Attributes:
        place: the memory that holds it.
        index: number of the input or output, offset in bytes in the arena, number of the constant.
        shape: extents.
        dtype: of its elements.
    """

    place: Place
    index: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Step:
    """A call of a function.

    Attributes:
        function: its name, or :data:`COPY`.
        buffers: arguments in order.
    """

    function: str
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True, eq=False)
class StraightLine:
    """What a network does, in order.

    Attributes:
        name: of the network's function.
        steps: calls in order.
        arena_bytes: size of the memory of intermediate tensors.
        constants: tensors of TVM, by their number.
    """

    name: str
    steps: tuple[Step, ...]
    arena_bytes: int
    constants: tuple[Any, ...]


def plan_memory(module: Any) -> Any:
    """Lower Relax functions to calls that write into memory whose size is planned."""
    load_tvm()
    import tvm
    from tvm import relax

    from amos.codegen.tir.target import host_target

    passes = relax.transform
    with host_target():
        return tvm.transform.Sequential(
            [
                passes.RewriteDataflowReshape(),
                passes.ToNonDataflow(),
                passes.RemovePurityChecking(),
                passes.CallTIRRewrite(),
                passes.StaticPlanBlockMemory(),
                passes.AttachGlobalSymbol(),
            ]
        )(module)


def straight_line(name: str, function: Any) -> StraightLine:
    """Read the program of a Relax function whose memory is planned.

    Args:
        name: of the function.
        function: as :func:`plan_memory` leaves it.

    Raises:
        Unsupported: it does something whose place or time is decided at run time.
    """
    return _Reader(name).read(function)


@dataclass(frozen=True)
class _Storage:
    """A block of the arena; the place of an output is known when the function ends."""

    offset: int
    output: bool = False


@dataclass(frozen=True)
class _View:
    """A tensor in a storage, a constant or an input."""

    owner: Any
    shape: tuple[int, ...]
    dtype: str
    offset: int = 0


class _Reader:
    """One pass over a function."""

    def __init__(self, name: str) -> None:
        self.name, self.values, self.calls = name, dict[Any, Any](), list[tuple[str, list[_View]]]()
        self.arena_bytes, self.constants = 0, dict[Any, int]()

    def read(self, function: Any) -> StraightLine:
        for number, parameter in enumerate(function.params):
            self.values[parameter] = _View(
                (Place.INPUT, number), _shape(parameter.ty), str(parameter.ty.dtype)
            )
        for block in function.body.blocks:
            for binding in block.bindings:
                self.values[binding.var] = self.value(binding.value)
        outputs = self.tensors(function.body.body)
        places, copies = self.place_outputs(outputs)
        steps = [
            Step(name, tuple(self.buffer(view, places) for view in views))
            for name, views in [*self.calls, *copies]
        ]
        return StraightLine(self.name, tuple(steps), self.arena_bytes, tuple(self.constants))

    def value(self, value: Any) -> Any:
        """What stands for an expression; a call of a function is noted."""
        from tvm import ir, relax

        if isinstance(value, relax.Tuple):
            return tuple(map(self.value, value.fields))
        if isinstance(value, relax.TupleGetItem):
            return self.value(value.tuple_value)[value.index]
        if isinstance(value, ir.GenericConst):
            self.constants.setdefault(value.value, len(self.constants))
            shape = tuple(map(int, value.value.shape))
            number = self.constants[value.value]
            return _View((Place.CONSTANT, number), shape, str(value.value.dtype))
        if not isinstance(value, ir.Call):
            return self.values.get(value)
        operator = getattr(value.op, "name", None)
        if operator in _CALLS:
            return _CALLS[operator](self, value)
        name = getattr(value.op, "name_hint", None) or getattr(value.op, "global_symbol", None)
        if name is None or operator is not None and operator.startswith("relax."):
            raise Unsupported(f"{self.name}: {operator or value.op} is decided at run time")
        self.calls.append((str(name), [self.argument(each) for each in value.args]))
        return None

    def argument(self, value: Any) -> _View:
        view = self.value(value)
        if not isinstance(view, _View):
            raise Unsupported(f"{self.name}: a function takes something that is no tensor")
        return view

    def tensors(self, value: Any) -> list[_View]:
        result = self.value(value)
        return [*result] if isinstance(result, tuple) else [result]

    def storage(self, call: Any) -> _Storage:
        offset = self.arena_bytes
        size = int(call.args[0].values[0])
        self.arena_bytes = offset + -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return _Storage(offset)

    def tensor(self, call: Any) -> _View:
        storage, offset, shape, kind, *_ = call.args
        return _View(self.value(storage), _extents(shape), str(kind.value), int(offset))

    def output(self, call: Any) -> _View:
        """A tensor that has its memory alone, as results of a function have."""
        shape, kind = _extents(call.args[0]), str(call.args[1].value)
        return _View(_Storage(-len(self.values) - 1, output=True), shape, kind)

    def reshaped(self, call: Any) -> _View:
        view = self.argument(call.args[0])
        return _View(view.owner, _extents(call.args[1]), view.dtype, view.offset)

    def place_outputs(
        self, outputs: Sequence[_View]
    ) -> tuple[Mapping[Any, int], list[tuple[str, list[_View]]]]:
        """The output that each memory of its own is, and copies of results that lie elsewhere."""
        places: dict[Any, int] = {}
        copies: list[tuple[str, list[_View]]] = []
        for number, view in enumerate(outputs):
            own = isinstance(view.owner, _Storage) and view.owner.output
            if own and view.owner not in places:
                places[view.owner] = number
            else:
                target = _View((Place.OUTPUT, number), view.shape, view.dtype)
                copies.append((COPY, [view, target]))
        return places, copies

    def buffer(self, view: _View, places: Mapping[Any, int]) -> Buffer:
        owner = view.owner
        if not isinstance(owner, _Storage):
            place, index = owner
            return Buffer(place, index, view.shape, view.dtype)
        if owner in places:
            return Buffer(Place.OUTPUT, places[owner], view.shape, view.dtype)
        if owner.output:  # a result that nothing returns
            raise Unsupported(f"{self.name}: memory that is planned at run time")
        return Buffer(Place.ARENA, owner.offset + view.offset, view.shape, view.dtype)


#: What stands for the result of an operator of Relax.
_CALLS = {
    "relax.memory.alloc_storage": _Reader.storage,
    "relax.memory.alloc_tensor": _Reader.tensor,
    "relax.builtin.alloc_tensor": _Reader.output,
    "relax.reshape": _Reader.reshaped,
}


def _extents(shape: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in shape.values)


def _shape(kind: Any) -> tuple[int, ...]:
    return _extents(kind.shape)
