"""Lowered TensorIR → C, readable, with GNU C's vector types where instructions need them.

A statement over vectors is printed with vector types if all of it can be, so that
accumulators stay in registers; otherwise as a loop over its lanes, which the C
compiler vectorizes as it sees fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.c.expressions import ByLanes, CBuffer, CExpressions, bare
from amos.codegen.c.nodes import type_of
from amos.codegen.c.types import c_type, split, vector_bytes
from amos.errors import ExportError

__all__ = ["CPrinter", "SeenOtherwise"]

#: Larger buffers are taken from the workspace instead of the stack.
_STACK_BYTES = 1 << 15
_ALIGN = 64
#: Positions are as wide as addresses. Narrower ones would have to wrap around, as sums do,
#: and be widened at each access.
_POSITION = "int64_t"
_ARITHMETIC = ("IntImm", "Add", "Sub", "Mul", "Div", "Mod", "RShift", "BitwiseAnd")


class SeenOtherwise(ExportError):
    """Memory that holds one dtype after another."""


@dataclass
class CPrinter(CExpressions):
    """Prints the bodies of functions.

    Attributes:
        workspace: bytes that the functions printed so far ask for.
    """

    workspace: int = 0
    _whole: Any = None
    #: Loop variables, and what is computed of them alone.
    _positions: set[Any] = field(default_factory=set)
    #: Loop that runs in parallel around what is printed: its index and its steps.
    _parallel: tuple[str, int] | None = None

    def function(self, function: Any, names: list[str]) -> str:
        """The body of a function, indented.

        Args:
            function: a lowered prim func.
            names: what its parameters are called in C.
        """
        load_tvm()
        self._names, self._buffers = {}, {}
        self._taken = {*names, "workspace", "lane"}
        for parameter, name in zip(function.params, names, strict=True):
            self._buffers[parameter] = CBuffer(name, str(parameter.dtype))
        self._whole = function.body
        return "\n".join(self._block(function.body, 1)) + "\n"

    # Statements.

    def _block(self, node: Any, depth: int) -> Iterator[str]:
        kind = type(node).__name__
        method: Callable[[Any, int], Iterator[str]] | None = getattr(self, f"_on_{kind}", None)
        if method is None:
            raise ExportError(f"a statement of kind {kind} has no form in C here")
        yield from method(node, depth)

    def _on_SeqStmt(self, node: Any, depth: int) -> Iterator[str]:
        for part in node.seq:
            yield from self._block(part, depth)

    def _on_AttrStmt(self, node: Any, depth: int) -> Iterator[str]:
        yield from self._block(node.body, depth)

    def _on_Bind(self, node: Any, depth: int) -> Iterator[str]:
        kind = type_of(node.var)
        try:
            value = self._value(node.value)
            self._note(kind)
        except ByLanes:
            yield from self._bind_by_lanes(node, depth)
            return
        name = self._declare(node.var)
        spelled = c_type(kind)
        if kind == "int32" and self._is_position(node.value):
            self._positions.add(node.var)
            spelled = _POSITION
        yield f"{_pad(depth)}const {spelled} {name} = {value};"

    def _is_position(self, node: Any) -> bool:
        """Whether a value is made of loop variables and constants alone."""
        ok = True

        def look(each: Any) -> None:
            nonlocal ok
            known = type(each).__name__ in _ARITHMETIC or each in self._positions
            ok = ok and known

        _visit(node, look)
        return ok

    def _bind_by_lanes(self, node: Any, depth: int) -> Iterator[str]:
        scalar, lanes = split(type_of(node.var))
        name = self._declare(node.var)
        self._arrays.add(node.var)
        yield f"{_pad(depth)}{c_type(scalar)} {name}[{lanes}];"
        with self._lanes() as copies:
            value = self._value(node.value)
        yield from _over_lanes(f"{name}[lane]", value, lanes, copies, depth)

    def _on_DeclBuffer(self, node: Any, depth: int) -> Iterator[str]:
        """A view of another buffer under another shape, which flat accesses do not see."""
        if not hasattr(node.data, "args") or node.data.args[0] not in self._buffers:
            raise ExportError(f"buffer {node.buffer.name} has no form in C here")
        known = self._buffers[node.data.args[0]]
        kind = str(node.buffer.dtype)
        if kind != known.dtype:
            raise SeenOtherwise(
                f"buffer {node.buffer.name}: {known.dtype} seen as {kind} has no form"
            )
        self._buffers[node.buffer] = known
        yield from ()

    def _on_AllocBuffer(self, node: Any, depth: int) -> Iterator[str]:
        buffer = node.buffer
        size, kind = _elements(buffer), str(buffer.dtype)
        whole = self._uses_whole_elements(buffer)
        pieces = split(kind)[1] > 1 and whole
        name = self._fresh(str(buffer.name), size if pieces else 0)
        self._buffers[buffer] = CBuffer(name, kind, pieces)
        spelled, total = c_type(kind), size * vector_bytes(kind)
        self._note(kind)
        if pieces:
            for start in range(0, size, 8):
                some = ", ".join(f"{name}_{n}" for n in range(start, min(start + 8, size)))
                yield f"{_pad(depth)}{spelled} {some};"
        elif total <= _STACK_BYTES:
            yield f"{_pad(depth)}{spelled} {name}[{size}] __attribute__((aligned({_ALIGN})));"
        else:
            yield f"{_pad(depth)}{spelled} *const {name} = ({spelled} *){self._taken_bytes(total)};"

    def _taken_bytes(self, size: int) -> str:
        """Address of so many bytes of the workspace, for each step of a parallel loop its own."""
        size = -(-size // _ALIGN) * _ALIGN
        start = f"((char *)workspace + {self.workspace}"
        if self._parallel is None:
            self.workspace += size
            return f"{start})"
        index, steps = self._parallel
        self.workspace += size * steps
        return f"{start} + (size_t){index} * {size})"

    def _uses_whole_elements(self, buffer: Any) -> bool:
        """Whether every access names one element by a constant."""
        ok = True

        def look(node: Any) -> None:
            nonlocal ok
            used = _used(node)
            if used is not None and used.same_as(buffer):
                ok = ok and all(type(i).__name__ == "IntImm" for i in node.indices)

        _visit(self._whole, look)
        return ok

    def _on_For(self, node: Any, depth: int) -> Iterator[str]:
        name = self._declare(node.loop_var)
        start, extent = self._value(node.min), self._value(node.extent)
        end = extent if start == "0" else f"{start} + {extent}"
        self._positions.add(node.loop_var)
        parallel, before = node.kind == 1, self._parallel
        if parallel:
            if type(node.extent).__name__ != "IntImm" or start != "0":
                raise ExportError("a parallel loop of variable extent has no form in C here")
            self._parallel = (name, int(node.extent))
            yield f"{_pad(depth)}#pragma omp parallel for schedule(static)"
        yield f"{_pad(depth)}for ({_POSITION} {name} = {start}; {name} < {end}; ++{name}) {{"
        yield from self._block(node.body, depth + 1)
        yield f"{_pad(depth)}}}"
        self._parallel = before

    def _on_IfThenElse(self, node: Any, depth: int) -> Iterator[str]:
        # A comparison in parentheses of its own looks like a meant assignment to clang.
        yield f"{_pad(depth)}if ({bare(self._value(node.condition))}) {{"
        yield from self._block(node.then_case, depth + 1)
        if node.else_case is not None:
            yield f"{_pad(depth)}}} else {{"
            yield from self._block(node.else_case, depth + 1)
        yield f"{_pad(depth)}}}"

    def _on_Evaluate(self, node: Any, depth: int) -> Iterator[str]:
        if type(node.value).__name__ != "IntImm":
            yield f"{_pad(depth)}{self._value(node.value)};"

    def _on_BufferStore(self, node: Any, depth: int) -> Iterator[str]:
        kind, (index,) = type_of(node.value), node.indices
        lanes, whole = split(kind)[1], split(self._buffers[node.buffer].dtype)[1] > 1
        if type(node.value).__name__ == "Shuffle" and lanes & (lanes - 1):
            # GNU C has no vectors of such a length.
            given = f"(const {c_type(split(kind)[0])}[]){{{', '.join(self._picked(node.value))}}}"
            target = self._address(node.buffer, index)
            yield f"{_pad(depth)}memcpy({target}, {given}, {vector_bytes(kind)});"
            return
        try:
            value = self._value(node.value)
            if lanes == 1 or whole:
                yield f"{_pad(depth)}{self._element(node.buffer, index)} = {value};"
                return
            target = self._address(node.buffer, index)
            self._note(kind)
        except ByLanes:
            yield from self._by_lanes(node, depth)
            return
        yield f"{_pad(depth)}store_{c_type(kind)}({target}, {value});"

    def _by_lanes(self, node: Any, depth: int) -> Iterator[str]:
        """The store as a loop over lanes: vectors become what they hold in one lane."""
        lanes, (index,) = split(type_of(node.value))[1], node.indices
        known = self._buffers[node.buffer]
        with self._lanes() as copies:
            target, value = self._element(node.buffer, index), self._value(node.value)
        if split(known.dtype)[1] == 1:
            yield from _over_lanes(target, value, lanes, copies, depth)
            return
        if not known.pieces:
            yield from _over_lanes(f"{target}[lane]", value, lanes, copies, depth)
            return
        made = self._fresh(f"{target}_made")
        yield f"{_pad(depth)}{c_type(known.dtype)} {made};"
        yield from _over_lanes(f"{made}[lane]", value, lanes, copies, depth)
        yield f"{_pad(depth)}{target} = {made};"

    @contextmanager
    def _lanes(self) -> Iterator[list[str]]:
        """While vectors are printed as what they hold in one lane.

        Yields declarations that go before the loop over lanes, complete at the end.
        """
        copies: list[str] = []
        self._lane, self._copies = "lane", {}
        try:
            yield copies
        finally:
            self._lane = None
        copies += [
            f"const {kind} {name} = {given};" for given, (name, kind) in self._copies.items()
        ]


def _over_lanes(
    target: str, value: str, lanes: int, before: list[str], depth: int
) -> Iterator[str]:
    """One assignment for each lane."""
    for line in before:
        yield f"{_pad(depth)}{line}"
    yield f"{_pad(depth)}for (int lane = 0; lane < {lanes}; ++lane) {{"
    yield f"{_pad(depth + 1)}{target} = {value};"
    yield f"{_pad(depth)}}}"


def _children(node: Any) -> Iterator[Any]:
    """Statements and expressions directly below a node."""
    for name in ("seq", "body", "then_case", "else_case", "value", "condition", "indices", "args"):
        below = getattr(node, name, None)
        if below is None or isinstance(below, int | float | str):
            continue
        yield from below if name in ("seq", "indices", "args") else (below,)
    for name in ("a", "b", "true_value", "false_value", "base", "min", "extent"):
        below = getattr(node, name, None)
        if below is not None and not isinstance(below, int | float | str):
            yield below


def _visit(node: Any, look: Callable[[Any], None]) -> None:
    look(node)
    for below in _children(node):
        _visit(below, look)


def _used(node: Any) -> Any:
    """The buffer that a node reads or writes, if it does."""
    return {"TensorLoad": lambda: node.source, "BufferStore": lambda: node.buffer}.get(
        type(node).__name__, lambda: None
    )()


def _elements(buffer: Any) -> int:
    total = 1
    for size in buffer.shape:
        total *= int(size)
    return total


def _pad(depth: int) -> str:
    return "  " * depth
