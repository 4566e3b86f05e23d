"""What happens to an accumulator before it is stored: an elementwise expression.

A quantized layer is an operator and an epilogue, for example

    u8(relu((acc + bias[k]) * scale[k]) + skip[n,p,q,k])

``acc`` is the value that the operator has summed for one element of the output;
tensors are indexed by the operator's spatial iterations. An epilogue changes no
access of the operator, so mappings are what they are without it.

The arithmetic is exact and the same everywhere, in NumPy and in kernels:

* an expression is ``int32``, which wraps around, or ``float32``, where every
  operation rounds once to nearest even, and a product that is added is not fused;
* of an integer and a float the integer is converted first, rounding to nearest even;
* ``max(x, y)`` is ``x`` if ``x > y``, else ``y``; ``min`` likewise;
  ``relu(x)`` is ``max(x, 0)``, ``clip(x, low, high)`` is ``min(max(x, low), high)``;
* ``round(x)`` is the nearest integer, ties to even; ``f32(x)`` converts;
* an outermost ``u8(…)``, ``s8(…)``, ``s16(…)``, ``s32(…)``, ``f32(…)`` or ``bf16(…)``
  gives the dtype of the result: floats are rounded to the nearest integer, ties to
  even, and both they and integers are clamped to exactly its range, so that
  ``s32(3e9)`` is 2147483647, although no ``float32`` is;
* numbers are those of ``int32`` and ``float32``; infinities are what IEEE 754 says.

A comparison with NaN is false: ``relu(NaN)`` is 0, as ``max(x, y)`` is ``y`` if either
is NaN, and an integer of NaN is the smallest of its type. Products are finite or
infinite where they are added: what a NaN among them becomes is not stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

from amos.errors import OperatorError
from amos.ir.dtypes import dtype
from amos.ir.nodes import BufferLoad

__all__ = ["CASTS", "FUNCTIONS", "Arithmetic", "Elementwise", "Epilogue", "Node"]

#: dtypes that an epilogue may end in, by the function that says so.
CASTS = {
    "u8": "uint8",
    "s8": "int8",
    "s16": "int16",
    "s32": "int32",
    "f32": "float32",
    "bf16": "bfloat16",
}
#: Functions and how many arguments they take.
FUNCTIONS = {"max": 2, "min": 2, "relu": 1, "clip": 3, "round": 1, "f32": 1}
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}
#: dtypes of the accumulator, and of tensors, that expressions take.
_INTEGERS = ("int32", "int16", "uint16", "int8", "uint8")
_FLOATS = ("float32", "bfloat16")


class Arithmetic(Protocol):
    """How values are computed: by NumPy, or as expressions of a kernel."""

    def number(self, value: float, kind: str) -> Any:
        """A constant as ``int32`` or ``float32``."""
        ...

    def read(self, load: BufferLoad, kind: str) -> Any:
        """An element of a tensor, widened to ``kind``."""
        ...

    def convert(self, value: Any) -> Any:
        """An ``int32`` as ``float32``."""
        ...

    def apply(self, name: str, kind: str, values: list[Any]) -> Any:
        """``add``, ``subtract``, ``multiply``, ``max``, ``min`` or ``round``."""
        ...


@dataclass(frozen=True)
class Node:
    """One operation: ``acc``, ``number``, ``read``, a function, or a sign's name."""

    name: str
    arguments: tuple[Node, ...] = ()
    value: float = 0
    load: BufferLoad | None = None

    def __str__(self) -> str:
        if self.name == "number":
            return str(self.value)
        if self.load is not None:
            return str(self.load)
        if self.name in _SIGNS:
            left, right = (_wrapped(each, self) for each in self.arguments)
            return f"{left} {_SIGNS[self.name]} {right}"
        if not self.arguments:
            return self.name
        return f"{self.name}({', '.join(map(str, self.arguments))})"

    @cached_property
    def depth(self) -> int:
        """Levels of the expression."""
        return 1 + max((argument.depth for argument in self.arguments), default=0)

    def nodes(self) -> Iterator[Node]:
        """This node and all below it, from left to right."""
        yield self
        for argument in self.arguments:
            yield from argument.nodes()

    def with_loads(self, change: Callable[[BufferLoad], BufferLoad]) -> Node:
        """The same with every access replaced."""
        return replace(
            self,
            arguments=tuple(argument.with_loads(change) for argument in self.arguments),
            load=None if self.load is None else change(self.load),
        )

    def kind(self, accumulator: str) -> str:
        """``"int32"`` or ``"float32"``, given the dtype of the accumulator."""
        if self.name == "acc":
            return accumulator
        if self.name == "number":
            return "int32" if isinstance(self.value, int) else "float32"
        if self.load is not None:
            return "int32" if str(self.load.tensor.dtype) in _INTEGERS else "float32"
        if self.name == "f32":
            return "float32"
        kinds = {argument.kind(accumulator) for argument in self.arguments}
        return "float32" if "float32" in kinds else "int32"

    def compute(self, value: Any, accumulator: str, by: Arithmetic) -> Any:
        """Value of the node as its own kind; see :meth:`Epilogue.compute`."""
        kind = self.kind(accumulator)
        if self.name == "acc":
            return value
        if self.name == "number":
            return by.number(self.value, kind)
        if self.load is not None:
            return by.read(self.load, kind)

        def as_kind(argument: Node) -> Any:
            if argument.name == "number":
                return by.number(argument.value, kind)
            own = argument.compute(value, accumulator, by)
            return own if argument.kind(accumulator) == kind else by.convert(own)

        values = [as_kind(argument) for argument in self.arguments]
        if self.name == "f32" or (self.name == "round" and kind == "int32"):
            return values[0]
        if self.name == "relu":
            return by.apply("max", kind, [values[0], by.number(0, kind)])
        if self.name == "clip":
            return by.apply("min", kind, [by.apply("max", kind, values[:2]), values[2]])
        return by.apply(self.name, kind, values)


def _wrapped(node: Node, around: Node) -> str:
    """A part of a sum or product, in parentheses where it would bind otherwise."""
    sums = node.name in ("add", "subtract")
    right = node is around.arguments[1] and node.name in _SIGNS
    apart = sums if around.name != "multiply" else True
    return f"({node})" if (sums and around.name == "multiply") or (right and apart) else str(node)


@dataclass(frozen=True)
class Elementwise:
    """An expression of elements: what epilogues and prologues have in common.

    Attributes:
        expression: the value.

    Raises:
        OperatorError: a tensor has a dtype that expressions do not take.
    """

    expression: Node

    def __post_init__(self) -> None:
        for load in self.loads:
            if str(load.tensor.dtype) not in (*_INTEGERS, *_FLOATS):
                raise OperatorError(
                    f"{type(self).__name__.lower()} tensor {load.tensor.name!r}: expected "
                    f"{', '.join((*_INTEGERS, *_FLOATS))}, got {load.tensor.dtype}"
                )

    @cached_property
    def loads(self) -> tuple[BufferLoad, ...]:
        """Accesses, in order of first appearance."""
        read = (node.load for node in self.expression.nodes())
        return tuple(dict.fromkeys(load for load in read if load is not None))

    def with_loads(self, change: Callable[[BufferLoad], BufferLoad]) -> Self:
        """The same with every access replaced."""
        return replace(self, expression=self.expression.with_loads(change))


@dataclass(frozen=True)
class Epilogue(Elementwise):
    """An expression of the accumulator, and the dtype of its result.

    Attributes:
        dtype: canonical dtype of the result; ``None`` for the expression's own.

    Raises:
        OperatorError: the expression is not one of the accumulator, or a tensor has a
            dtype that expressions do not take.
    """

    dtype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if all(node.name != "acc" for node in self.expression.nodes()):
            raise OperatorError(f"epilogue {self}: expected an expression of acc, got none in it")

    def result(self, accumulator: str) -> str:
        """Dtype of the result.

        Raises:
            OperatorError: no expression takes such an accumulator.
        """
        if accumulator not in ("int32", "float32"):
            raise OperatorError(
                f"epilogue {self}: expected an accumulator of int32 or float32, got {accumulator}"
            )
        return self.dtype or self.expression.kind(accumulator)

    def compute(self, value: Any, accumulator: str, by: Arithmetic) -> Any:
        """Value of the expression, as its own kind, of a value of the accumulator and its dtype.

        It is computed by NumPy's arithmetic or a kernel's, before it becomes the result.
        """
        return self.expression.compute(value, accumulator, by)

    def __str__(self) -> str:
        short = None if self.dtype is None else dtype(self.dtype).short
        return str(self.expression) if short is None else f"{short}({self.expression})"
