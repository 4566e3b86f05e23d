"""Lowered TensorIR → C, readable, with GNU C's vector types where instructions need them.

A statement over vectors is printed with vector types if all of it can be, so that
accumulators stay in registers; otherwise as a loop over its lanes, which the C
compiler vectorizes as it sees fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

from amos._toolchain import ir, tirx, tvm_ffi
from amos.codegen.c.expressions import ByLanes, CBuffer, CExpressions, bare
from amos.codegen.c.nodes import type_of
from amos.codegen.c.types import c_type, split, vector_bytes
from amos.errors import ExportError
from amos.intrinsics.amx import CONFIGURE, configuration_in_c

#: Larger buffers are taken from the workspace instead of the stack.
_STACK_BYTES = 1 << 15
_ALIGN = 64
#: Variables that one line declares.
_DECLARED = 8
#: Positions are as wide as addresses. Narrower ones would have to wrap around, as sums do, and be
#: extended at each access.
_POSITION = "int64_t"
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "RShift", "BitwiseAnd")


class SeenOtherwise(ExportError):
    """Memory that holds one dtype after another."""


@dataclass
class CPrinter(CExpressions):
    """Prints the bodies of functions, and counts the bytes of ``workspace`` that they ask for."""

    workspace: int = 0
    #: Buffers with an access at a computed index.
    _indexed: set[Any] = field(default_factory=set)
    #: Loop variables, and values that are computed from them alone.
    _positions: set[Any] = field(default_factory=set)
    #: Enclosing parallel loop: its index and its steps.
    _parallel: tuple[str, int] | None = None

    def function(self, function: Any, names: list[str]) -> str:
        """Print the body of a function, indented; ``names`` are its parameters in C."""
        self._names, self._buffers, self._indexed = {}, {}, set()
        self._used_names = {*names, "workspace", "lane"}
        for parameter, name in zip(function.params, names, strict=True):
            self._buffers[parameter] = CBuffer(name, str(parameter.dtype))

        def note_access(node: Any) -> None:
            if any(type(index).__name__ != "IntImm" for index in node.indices):
                self._indexed.add(node.source if hasattr(node, "source") else node.buffer)

        tvm_ffi.structural_walk(function.body, ((ir.TensorLoad, tirx.BufferStore), note_access))
        return "\n".join(_indent(self._block(function.body))) + "\n"

    # Statements, as lines.

    def _block(self, node: Any) -> Iterator[str]:
        kind = type(node).__name__
        method: Callable[[Any], Iterator[str]] | None = getattr(self, f"_on_{kind}", None)
        if method is None:
            raise ExportError(f"a statement of kind {kind} has no form in C here")
        yield from method(node)

    def _on_SeqStmt(self, node: Any) -> Iterator[str]:
        for statement in node.seq:
            yield from self._block(statement)

    def _on_AttrStmt(self, node: Any) -> Iterator[str]:
        if node.attr_key == "pragma_import_llvm" and CONFIGURE in (text := str(node.value.value)):
            self.functions = {**self.functions, CONFIGURE: configuration_in_c(text)}
        yield from self._block(node.body)

    def _on_Bind(self, node: Any) -> Iterator[str]:
        kind = type_of(node.var)
        try:
            value = self._value(node.value)
            self._note(kind)
        except ByLanes:
            yield from self._bind_by_lanes(node)
            return
        name, spelled = self._declare(node.var), c_type(kind)
        if kind == "int32" and self._is_position(node.value):
            self._positions.add(node.var)
            spelled = _POSITION
        yield f"const {spelled} {name} = {value};"

    def _is_position(self, node: Any) -> bool:
        """Return whether a value is made of loop variables and constants alone."""
        kind = type(node).__name__
        if kind in _ARITHMETIC:
            return self._is_position(node.a) and self._is_position(node.b)
        return kind == "IntImm" or node in self._positions

    def _bind_by_lanes(self, node: Any) -> Iterator[str]:
        scalar, lanes = split(type_of(node.var))
        name = self._declare(node.var)
        self._arrays.add(node.var)
        yield f"{c_type(scalar)} {name}[{lanes}];"
        with self._lanes() as copies:
            value = self._value(node.value)
        yield from _emit_lane_loop(f"{name}[lane]", value, lanes, copies)

    def _on_DeclBuffer(self, node: Any) -> Iterator[str]:
        """Print a view of another buffer, under another shape or from some element on."""
        if type(node.data).__name__ == "Call" and str(node.data.op.name).endswith("address_of"):
            spelled, name = c_type(str(node.buffer.dtype)), self._fresh(str(node.buffer.name))
            place = self._call_address_of(node.data)
            self._buffers[node.buffer] = CBuffer(name, str(node.buffer.dtype))
            yield f"{spelled} *const {name} = ({spelled} *)({place});"
            return
        if not hasattr(node.data, "args") or node.data.args[0] not in self._buffers:
            raise ExportError(f"buffer {node.buffer.name} has no form in C here")
        viewed = self._buffers[node.data.args[0]]
        kind = str(node.buffer.dtype)
        if kind != viewed.dtype:
            raise SeenOtherwise(
                f"buffer {node.buffer.name}: {viewed.dtype} seen as {kind} has no form"
            )
        self._buffers[node.buffer] = viewed
        yield from ()

    def _on_AllocBuffer(self, node: Any) -> Iterator[str]:
        buffer, kind = node.buffer, str(node.buffer.dtype)
        size = prod(map(int, buffer.shape))
        pieces = split(kind)[1] > 1 and buffer not in self._indexed
        name = self._fresh(str(buffer.name), size if pieces else 0)
        self._buffers[buffer] = CBuffer(name, kind, pieces)
        spelled, total = c_type(kind), size * vector_bytes(kind)
        self._note(kind)
        if pieces:
            for start in range(0, size, _DECLARED):
                some = (f"{name}_{n}" for n in range(start, min(start + _DECLARED, size)))
                yield f"{spelled} {', '.join(some)};"
        elif total <= _STACK_BYTES:
            yield f"{spelled} {name}[{size}] __attribute__((aligned({_ALIGN})));"
        else:
            yield f"{spelled} *const {name} = ({spelled} *){self._take_bytes(total)};"

    def _take_bytes(self, size: int) -> str:
        """Reserve bytes of the workspace, per step of a parallel loop; return their address."""
        size = -(-size // _ALIGN) * _ALIGN
        start = f"((char *)workspace + {self.workspace}"
        if self._parallel is None:
            self.workspace += size
            return f"{start})"
        index, steps = self._parallel
        self.workspace += size * steps
        return f"{start} + (size_t){index} * {size})"

    def _on_For(self, node: Any) -> Iterator[str]:
        name = self._declare(node.loop_var)
        start, extent = self._value(node.min), self._value(node.extent)
        end = extent if start == "0" else f"{start} + {extent}"
        self._positions.add(node.loop_var)
        before = self._parallel
        if node.kind == 1:
            if type(node.extent).__name__ != "IntImm" or start != "0":
                raise ExportError("a parallel loop of variable extent has no form in C here")
            self._parallel = (name, int(node.extent))
            yield "#pragma omp parallel for schedule(static)"
        yield f"for ({_POSITION} {name} = {start}; {name} < {end}; ++{name}) {{"
        yield from _indent(self._block(node.body))
        yield "}"
        self._parallel = before

    def _on_IfThenElse(self, node: Any) -> Iterator[str]:
        # In a second pair of parentheses a comparison looks like an intended assignment to clang.
        yield f"if ({bare(self._value(node.condition))}) {{"
        yield from _indent(self._block(node.then_case))
        if node.else_case is not None:
            yield "} else {"
            yield from _indent(self._block(node.else_case))
        yield "}"

    def _on_Evaluate(self, node: Any) -> Iterator[str]:
        if type(node.value).__name__ != "IntImm":
            yield f"{self._value(node.value)};"

    def _on_BufferStore(self, node: Any) -> Iterator[str]:
        kind, (index,) = type_of(node.value), node.indices
        lanes, whole = split(kind)[1], split(self._buffers[node.buffer].dtype)[1] > 1
        if type(node.value).__name__ == "Shuffle" and lanes & (lanes - 1):
            # GNU C has no vectors of such a length.
            array = f"(const {c_type(split(kind)[0])}[]){{{', '.join(self._pick(node.value))}}}"
            target = self._address(node.buffer, index)
            yield f"memcpy({target}, {array}, {vector_bytes(kind)});"
            return
        try:
            value = self._value(node.value)
            if lanes == 1 or whole:
                yield f"{self._element(node.buffer, index)} = {value};"
                return
            target = self._address(node.buffer, index)
            self._note(kind)
        except ByLanes:
            yield from self._store_by_lanes(node)
            return
        yield f"store_{c_type(kind)}({target}, {value});"

    def _store_by_lanes(self, node: Any) -> Iterator[str]:
        """Print a store as a loop over lanes, with the element of one lane for each vector."""
        lanes, (index,) = split(type_of(node.value))[1], node.indices
        buffer = self._buffers[node.buffer]
        with self._lanes() as copies:
            target, value = self._element(node.buffer, index), self._value(node.value)
        if not buffer.pieces:
            target = target if split(buffer.dtype)[1] == 1 else f"{target}[lane]"
            yield from _emit_lane_loop(target, value, lanes, copies)
            return
        stored = self._fresh(f"{target}_made")
        yield f"{c_type(buffer.dtype)} {stored};"
        yield from _emit_lane_loop(f"{stored}[lane]", value, lanes, copies)
        yield f"{target} = {stored};"

    @contextmanager
    def _lanes(self) -> Iterator[list[str]]:
        """Print vectors as the element of one lane.

        Yields declarations that go before the loop over lanes, complete at the end.
        """
        copies: list[str] = []
        self._lane, self._copies = "lane", {}
        try:
            yield copies
        finally:
            self._lane = None
        copies += [
            f"const {kind} {name} = {value};" for value, (name, kind) in self._copies.items()
        ]


def _emit_lane_loop(target: str, value: str, lanes: int, copies: list[str]) -> Iterator[str]:
    """Yield an assignment for each lane, behind some declarations."""
    yield from copies
    yield f"for (int lane = 0; lane < {lanes}; ++lane) {{"
    yield from _indent([f"{target} = {value};"])
    yield "}"


def _indent(lines: Iterable[str]) -> Iterator[str]:
    return ("  " + line for line in lines)
