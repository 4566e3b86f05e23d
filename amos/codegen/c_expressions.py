"""TensorIR expressions → C, as scalars, as GNU C vectors, or one lane of a vector at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from amos.codegen.c_types import CALLS, EXTERNS, c_type, split
from amos.errors import ExportError

__all__ = ["ByLanes", "CBuffer", "CExpressions", "type_of"]

_INFIX = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "Div": "/",
    "Mod": "%",
    "EQ": "==",
    "NE": "!=",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
    "And": "&&",
    "Or": "||",
    "LShift": "<<",
    "RShift": ">>",
    "BitwiseAnd": "&",
    "BitwiseOr": "|",
    "BitwiseXor": "^",
}


class ByLanes(Exception):
    """A vector expression that is better printed lane by lane."""


@dataclass
class CBuffer:
    """A buffer by its C name; ``pieces`` if it is one variable for each element."""

    name: str
    dtype: str
    pieces: bool = False


@dataclass
class CExpressions:
    """Prints expressions, and collects what they need.

    Attributes:
        types: TVM names of the types whose helpers they use.
        externs: names of the helper functions that they call.
    """

    types: set[str] = field(default_factory=set)
    externs: set[str] = field(default_factory=set)
    _names: dict[Any, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _buffers: dict[Any, CBuffer] = field(default_factory=dict)
    #: Name of the lane, while a statement is printed lane by lane.
    _lane: str | None = None

    def _value(self, node: Any) -> str:
        kind = type(node).__name__
        if kind in _INFIX:
            return self._infix(_INFIX[kind], node)
        method: Callable[[Any], str] | None = getattr(self, f"_of_{kind}", None)
        if method is None:
            raise ExportError(f"an expression of kind {kind} has no form in C here")
        return method(node)

    def _infix(self, sign: str, node: Any) -> str:
        if split(type_of(node))[0] == "bool" and self._vector(node.a):
            raise ByLanes
        return f"({self._value(node.a)} {sign} {self._value(node.b)})"

    def _of_Var(self, node: Any) -> str:
        return self._names[node]

    def _of_IntImm(self, node: Any) -> str:
        value, kind = int(node), type_of(node)
        if kind == "int64":
            return f"INT64_C({value})"
        return f"{value}u" if kind == "uint32" else str(value)

    def _of_FloatImm(self, node: Any) -> str:
        kind = type_of(node)
        text = repr(float(node.value))
        return f"{text}f" if kind == "float32" else f"({c_type(kind)}){text}"

    def _of_Cast(self, node: Any) -> str:
        kind = type_of(node)
        if not self._vector(node):
            return f"({c_type(split(kind)[0])}){self._value(node.value)}"
        self._note(kind)
        self._note(type_of(node.value))
        return f"__builtin_convertvector({self._value(node.value)}, {c_type(kind)})"

    def _of_Not(self, node: Any) -> str:
        return f"!({self._value(node.a)})"

    def _of_Min(self, node: Any) -> str:
        return self._choose(node, "<")

    def _of_Max(self, node: Any) -> str:
        return self._choose(node, ">")

    def _choose(self, node: Any, sign: str) -> str:
        if self._vector(node):
            raise ByLanes
        a, b = self._value(node.a), self._value(node.b)
        return f"({a} {sign} {b} ? {a} : {b})"

    def _of_Select(self, node: Any) -> str:
        return self._ternary(node, node.condition, node.true_value, node.false_value)

    def _ternary(self, node: Any, condition: Any, yes: Any, no: Any) -> str:
        if self._vector(condition):
            raise ByLanes
        return f"({self._value(condition)} ? {self._value(yes)} : {self._value(no)})"

    def _of_Ramp(self, node: Any) -> str:
        if self._lane is None:
            raise ByLanes
        step = "" if _is_one(node.stride) else f" * {self._value(node.stride)}"
        return f"({self._value(node.base)} + {self._lane}{step})"

    def _of_Broadcast(self, node: Any) -> str:
        if self._lane is not None:
            return self._value(node.value)
        kind = type_of(node)
        self._note(kind)
        if split(type_of(node.value))[1] > 1:
            raise ByLanes
        return f"all_{c_type(kind)}({self._value(node.value)})"

    def _of_TensorLoad(self, node: Any) -> str:
        (index,) = node.indices
        whole = split(self._buffers[node.source].dtype)[1] > 1
        if self._vector(index) and not whole:
            self._note(type_of(node))
            return f"load_{c_type(type_of(node))}({self._address(node.source, index)})"
        text = self._element(node.source, index)
        return f"{text}[{self._lane}]" if whole and self._lane is not None else text

    def _of_Call(self, node: Any) -> str:
        name = str(node.op.name).rpartition(".")[2]
        method: Callable[[Any], str] | None = getattr(self, f"_call_{name}", None)
        if method is None:
            raise ExportError(f"a call of {name!r} has no form in C here")
        return method(node)

    def _call_if_then_else(self, node: Any) -> str:
        return self._ternary(node, *node.args)

    def _call_likely(self, node: Any) -> str:
        return self._value(node.args[0])

    def _call_address_of(self, node: Any) -> str:
        load = node.args[0]
        return self._address(load.source, load.indices[0])

    def _call_prefetch(self, node: Any) -> str:
        return f"__builtin_prefetch({self._value(node.args[0])})"

    def _call_call_extern(self, node: Any) -> str:
        name = str(node.args[0].value)
        if name not in EXTERNS:
            raise ExportError(f"function {name!r} has no form in C here")
        self.externs.add(name)
        return f"{name}({', '.join(self._value(a) for a in node.args[1:])})"

    def _call_reinterpret(self, node: Any) -> str:
        """Vectors are cast; a scalar is read from memory as the other type."""
        (value,), kind = node.args, type_of(node)
        if self._lane is not None:
            raise ExportError("bits cannot be taken apart lane by lane in C here")
        if type(value).__name__ == "TensorLoad" and split(type_of(value))[1] > 1:
            (index,) = value.indices
            if split(self._buffers[value.source].dtype)[1] == 1:
                self._note(kind)
                spelled = c_type(kind) if split(kind)[1] > 1 else _short(kind)
                return f"load_{spelled}({self._address(value.source, index)})"
        if split(kind)[1] == 1:
            self._note(kind)
            inner = f"({c_type(type_of(value))}[]){{{self._value(value)}}}"
            return f"load_{_short(kind)}({inner})"
        self._note(kind)
        return f"(({c_type(kind)}){self._value(value)})"

    def _call_call_llvm_pure_intrin(self, node: Any) -> str:
        if self._lane is not None:
            raise ExportError("an instruction cannot be taken apart lane by lane")
        import tvm

        kind = type_of(node)
        name = str(tvm.target.codegen.llvm_get_intrinsic_name(int(node.args[0])))
        call = CALLS.get(name) or CALLS.get(f"{name}:{kind}")
        if call is None:
            raise ExportError(f"LLVM's {name} on {kind} has no form in C here")
        given = [self._value(node.args[1 + n]) for n in call.order]
        arguments = ", ".join(f"({t}){a}" for t, a in zip(call.types, given, strict=True))
        self._note(kind)
        return f"({c_type(kind)}){call.function}({arguments})"

    # Names and places.

    def _vector(self, node: Any) -> bool:
        return self._lane is None and split(type_of(node))[1] > 1

    def _element(self, buffer: Any, index: Any) -> str:
        known = self._buffers[buffer]
        if known.pieces:
            return f"{known.name}_{int(index)}"
        return f"{known.name}[{_bare(self._value(index))}]"

    def _address(self, buffer: Any, index: Any) -> str:
        """Address of the first of some contiguous elements."""
        known = self._buffers[buffer]
        if type(index).__name__ == "Ramp":
            if not _is_one(index.stride):
                raise ByLanes
            index = index.base
        elif self._vector(index):
            raise ByLanes
        return f"{known.name} + {_bare(self._value(index))}"

    def _note(self, kind: str) -> None:
        self.types.add(kind)

    def _declare(self, var: Any) -> str:
        self._names[var] = self._fresh(str(var.name))
        return self._names[var]

    def _fresh(self, name: str) -> str:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = plain if plain and not plain[0].isdigit() and plain != "main" else f"v_{plain}"
        number, chosen = 0, plain
        while chosen in self._taken:
            number += 1
            chosen = f"{plain}_{number}"
        self._taken.add(chosen)
        return chosen


def type_of(node: Any) -> str:
    """TVM's name of the type of an expression."""
    return str(node.ty.dtype) if hasattr(node, "ty") else str(node.dtype)


def _is_one(node: Any) -> bool:
    return type(node).__name__ == "IntImm" and int(node) == 1


def _short(kind: str) -> str:
    return {"int32": "i32", "uint32": "u32", "float32": "f32", "int64": "i64"}.get(kind, kind)


def _bare(text: str) -> str:
    """Without the outermost parentheses, where they embrace everything."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]
