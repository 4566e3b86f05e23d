"""TensorIR expressions → C, as scalars, as GNU C vectors, or one lane of a vector at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

import numpy as np

from amos._toolchain import tvm
from amos.codegen.c.nodes import bit_cast_argument, is_wide_sum, low_bits, rounded_argument, type_of
from amos.codegen.c.operations import WIDEST, operation
from amos.codegen.c.types import CALLS, EXTERNS, OWN, TILE_CALLS, c_type, short, split, vector_bytes
from amos.codegen.naming import spell
from amos.errors import ExportError

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
#: Operations that TVM emits as C functions for scalars.
_OF_C = {"nearbyintf": "round", "sqrtf": "sqrt"}
_COMPARISONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


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
    """Prints expressions, and collects the helpers that they call.

    Attributes:
        types: TVM names of the types whose helpers they use.
        externs: names of the helper functions that they call.
        operations: the operations that they use, each with the type it works on.
        rounds: whether a product has to be rounded before it is added.
        functions: C of the functions that may be called, by name.
    """

    types: set[str] = field(default_factory=set)
    externs: set[str] = field(default_factory=set)
    operations: set[tuple[str, str]] = field(default_factory=set)
    rounds: bool = False
    functions: Mapping[str, str] = field(default_factory=lambda: EXTERNS)
    _names: dict[Any, str] = field(default_factory=dict)
    #: Vectors that are stored as arrays, because they were computed lane by lane.
    _arrays: set[Any] = field(default_factory=set)
    #: Vectors with a named lane while a statement is printed lane by lane.
    _of_lane: set[Any] = field(default_factory=set)
    _used_names: set[str] = field(default_factory=set)
    _buffers: dict[Any, CBuffer] = field(default_factory=dict)
    #: Name of the lane, while a statement is printed lane by lane.
    _lane: str | None = None
    #: Copies of the vectors whose lanes such a statement reads: names and types.
    _copies: dict[str, tuple[str, str]] = field(default_factory=dict)

    def _value(self, node: Any) -> str:
        kind = type(node).__name__
        if kind in _INFIX:
            if split(type_of(node))[0] == "bool" and self._is_vector(node.a):
                raise ByLanes
            return f"({self._value(node.a)} {_INFIX[kind]} {self._value(node.b)})"
        method: Callable[[Any], str] | None = getattr(self, f"_of_{kind}", None)
        if method is None:
            raise ExportError(f"an expression of kind {kind} has no form in C here")
        return method(node)

    def _of_Var(self, node: Any) -> str:
        name = self._names[node]
        if split(type_of(node))[1] == 1:
            return name
        if node in self._of_lane:
            return name
        if self._lane is not None:
            return f"{name}[{self._lane}]"
        if node in self._arrays:
            raise ByLanes
        return name

    def _of_Let(self, node: Any) -> str:
        """Bind names to values, and compute an expression of them, as one statement expression."""
        lines = []
        while type(node).__name__ == "Let":
            value, kind = bare(self._value(node.value)), type_of(node.var)
            if self._lane is not None:
                kind = split(kind)[0]
                self._of_lane.add(node.var)
            self._note(kind)
            lines.append(f"const {c_type(kind)} {self._declare(node.var)} = {value};")
            node = node.body
        return "\n      ".join(["(__extension__({", *lines, f"{bare(self._value(node))};}}))"])

    def _of_IntImm(self, node: Any) -> str:
        value, kind = int(node), type_of(node)
        if kind == "int64":
            return f"INT64_C({value})"
        return f"{value}u" if kind == "uint32" else str(value)

    def _of_FloatImm(self, node: Any) -> str:
        kind, value = type_of(node), float(node.value)
        if math.isinf(value):
            return f"({c_type(kind)}){'-' if value < 0 else ''}__builtin_inf()"
        if kind == "float32":
            # The shortest decimal that reads back as this float.
            return f"{np.float32(value)!s}f"
        return f"({c_type(kind)}){value!r}"

    def _of_Cast(self, node: Any) -> str:
        kind, inner = type_of(node), node.value
        if split(kind)[0] == "int32" and (argument := rounded_argument(inner)) is not None:
            return self._operation("nearest", type_of(inner), argument)
        if split(kind)[0] == "int32" and is_wide_sum(inner):
            return self._wrap(_INFIX[type(inner).__name__], low_bits(inner.a), low_bits(inner.b))
        if not self._is_vector(node):
            return f"({c_type(split(kind)[0])}){self._value(inner)}"
        self._note(kind)
        self._note(type_of(node.value))
        return f"__builtin_convertvector({self._value(node.value)}, {c_type(kind)})"

    def _wrap(self, sign: str, lhs: Any, rhs: Any) -> str:
        """Write a sum or product of integers modulo 2^32, as C of unsigned words."""
        kind = f"int32x{split(type_of(lhs))[1]}" if self._is_vector(lhs) else "int32"
        self.types |= {kind, f"u{kind}"}
        word = f"({c_type(f'u{kind}')})"
        return f"({c_type(kind)})({word}{self._value(lhs)} {sign} {word}{self._value(rhs)})"

    def _of_Not(self, node: Any) -> str:
        return f"!({self._value(node.a)})"

    def _of_Min(self, node: Any) -> str:
        return self._operation("min", type_of(node), node.a, node.b)

    def _of_Max(self, node: Any) -> str:
        return self._operation("max", type_of(node), node.a, node.b)

    def _operation(self, name: str, kind: str, *arguments: Any) -> str:
        """Call a function that is defined for each type it works on."""
        if self._lane is not None:
            kind = split(kind)[0]
        elif split(kind)[1] > 1 and vector_bytes(kind) > WIDEST:
            raise ByLanes
        values = ", ".join(bare(self._value(a)) for a in arguments)
        self.operations.add((name, kind))
        return f"{operation(name, kind)}({values})"

    def _of_Select(self, node: Any) -> str:
        return self._choice(node.condition, node.true_value, node.false_value)

    def _choice(self, condition: Any, yes: Any, no: Any) -> str:
        if not self._is_vector(condition):
            return f"({self._value(condition)} ? {self._value(yes)} : {self._value(no)})"
        # In GNU C a comparison of lanes as wide as the selected values is a mask.
        kind, compared = type_of(yes), type(condition).__name__
        if compared not in _COMPARISONS or vector_bytes(kind) > WIDEST:
            raise ByLanes
        if vector_bytes(type_of(condition.a)) != vector_bytes(kind):
            raise ByLanes
        mask = f"{self._value(condition.a)} {_INFIX[compared]} {self._value(condition.b)}"
        self.operations.add(("select", kind))
        return f"{operation('select', kind)}({mask}, {self._value(yes)}, {self._value(no)})"

    def _of_Shuffle(self, node: Any) -> str:
        """Write a vector of picked elements; the compiler finds the permutation."""
        self._note(type_of(node))
        return f"({c_type(type_of(node))}){{{', '.join(self._pick(node))}}}"

    def _pick(self, node: Any) -> list[str]:
        if self._lane is not None:
            raise ExportError("a permutation cannot be taken apart lane by lane in C here")
        elements: list[str] = []
        for vector in node.vectors:
            lanes = split(type_of(vector))[1]
            if type(vector).__name__ == "Broadcast":
                # Of any length, also one that no vector type has.
                elements += [self._value(vector.value)] * lanes
                continue
            text = self._value(vector)
            self._note(type_of(vector))
            elements += [f"({text})[{n}]" for n in range(lanes)] if lanes > 1 else [text]
        return [elements[int(index)] for index in node.indices]

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
        if self._is_vector(index) and not whole:
            self._note(type_of(node))
            return f"load_{c_type(type_of(node))}({self._address(node.source, index)})"
        text = self._element(node.source, index)
        if not whole or self._lane is None:
            return text
        # A variable whose lanes a loop indexes would not stay in a register.
        place = self._buffers[node.source]
        if place.pieces and text not in self._copies:
            self._copies[text] = (self._fresh(f"{text}_lanes"), c_type(place.dtype))
        text = self._copies[text][0] if place.pieces else text
        return f"{text}[{self._lane}]"

    def _of_Call(self, node: Any) -> str:
        name = str(node.op.name).rpartition(".")[2]
        method: Callable[[Any], str] | None = getattr(self, f"_call_{name}", None)
        if method is None:
            raise ExportError(f"a call of {name!r} has no form in C here")
        return method(node)

    def _call_if_then_else(self, node: Any) -> str:
        return self._choice(*node.args)

    def _call_likely(self, node: Any) -> str:
        return self._value(node.args[0])

    def _call_address_of(self, node: Any) -> str:
        load = node.args[0]
        return self._address(load.source, load.indices[0])

    def _call_prefetch(self, node: Any) -> str:
        return f"__builtin_prefetch({', '.join(map(self._value, node.args[:3]))})"

    def _call_call_extern(self, node: Any) -> str:
        name = str(node.args[0].value)
        if name not in self.functions:
            raise ExportError(f"function {name!r} has no form in C here")
        self.externs.add(name)
        # A fragment may be stored as another type of the same bits.
        pointer = "" if name in EXTERNS else "(void *)"
        values = (self._value(a) for a in node.args[1:])
        return f"{name}({', '.join(f'{pointer}({a})' if pointer else a for a in values)})"

    def _call_call_pure_extern(self, node: Any) -> str:
        name = str(node.args[0].value)
        if name not in _OF_C:
            raise ExportError(f"function {name!r} has no form in C here")
        return self._operation(_OF_C[name], type_of(node), *node.args[1:])

    def _call_amos_rounded(self, node: Any) -> str:
        """Write a product that is not fused with a sum: see :mod:`amos.codegen.tir.rounding`."""
        self.rounds = True
        return self._value(node.args[0])

    def _call_nearbyint(self, node: Any) -> str:
        return self._operation("round", type_of(node), *node.args)

    def _call_sqrt(self, node: Any) -> str:
        return self._operation("sqrt", type_of(node), *node.args)

    def _call_fma(self, node: Any) -> str:
        return self._operation("fma", type_of(node), *node.args)

    def _call_reinterpret(self, node: Any) -> str:
        """Cast a vector; read a scalar from memory as the other type."""
        (value,), kind = node.args, type_of(node)
        if (original := bit_cast_argument(value)) is not None and type_of(original) == kind:
            return self._value(original)
        if type(value).__name__ == "FloatImm":
            return str(int(np.float32(value.value).view(np.int32)))
        before = type_of(value)
        if self._lane is not None:
            (kind, lanes), (before, lanes_before) = split(kind), split(before)
            if lanes != lanes_before:
                raise ExportError("bits cannot be taken apart lane by lane in C here")
        self._note(kind)
        if type(value).__name__ == "TensorLoad" and split(before)[1] > 1:
            (index,) = value.indices
            if split(self._buffers[value.source].dtype)[1] == 1:
                return f"load_{short(kind)}({self._address(value.source, index)})"
        if split(kind)[1] == 1:
            return f"load_{short(kind)}(({c_type(before)}[]){{{self._value(value)}}})"
        return f"(({c_type(kind)}){self._value(value)})"

    def _call_call_llvm_pure_intrin(self, node: Any) -> str:
        if self._lane is not None:
            raise ExportError("an instruction cannot be taken apart lane by lane")
        kind = type_of(node)
        name = str(tvm.target.codegen.llvm_get_intrinsic_name(int(node.args[0])))
        call = CALLS.get(name) or CALLS.get(f"{name}:{kind}")
        if call is None:
            raise ExportError(f"LLVM's {name} on {kind} has no form in C here")
        arguments = ", ".join(f"({call.kind}){self._value(each)}" for each in node.args[1:])
        self._note(kind)
        return f"({c_type(kind)}){call.function}({arguments})"

    def _call_call_llvm_intrin(self, node: Any) -> str:
        """Write a statement on tile registers."""
        name = str(tvm.target.codegen.llvm_get_intrinsic_name(int(node.args[0])))
        if name not in TILE_CALLS:
            raise ExportError(f"LLVM's {name} has no form in C here")
        return f"{TILE_CALLS[name]}({', '.join(bare(self._value(each)) for each in node.args[1:])})"

    # Names and places.

    def _is_vector(self, node: Any) -> bool:
        return self._lane is None and split(type_of(node))[1] > 1

    def _element(self, buffer: Any, index: Any) -> str:
        place = self._buffers[buffer]
        if place.pieces:
            return f"{place.name}_{int(index)}"
        return f"{place.name}[{bare(self._value(index))}]"

    def _address(self, buffer: Any, index: Any) -> str:
        """Write the address of the first of some contiguous elements."""
        place = self._buffers[buffer]
        if type(index).__name__ == "Ramp":
            if not _is_one(index.stride):
                raise ByLanes
            index = index.base
        elif self._is_vector(index):
            raise ByLanes
        return f"{place.name} + {bare(self._value(index))}"

    def _note(self, kind: str) -> None:
        """Note that the text uses a type; GNU C has vectors of 2, 4, 8 … lanes only."""
        lanes = split(kind)[1]
        if lanes & (lanes - 1):
            raise ByLanes
        self.types.add(kind)

    def _declare(self, var: Any) -> str:
        self._names[var] = self._fresh(str(var.name))
        return self._names[var]

    def _fresh(self, name: str, pieces: int = 0) -> str:
        """Choose a name that is unused, as are those of its numbered pieces."""
        plain = spell(name, OWN)
        for chosen in chain([plain], (f"{plain}_{number}" for number in count(1))):
            names = {chosen, *(f"{chosen}_{piece}" for piece in range(pieces))}
            if not names & self._used_names:
                break
        self._used_names |= names
        return chosen


def _is_one(node: Any) -> bool:
    return type(node).__name__ == "IntImm" and int(node) == 1


def bare(text: str) -> str:
    """Remove the outermost parentheses where they enclose everything."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]
