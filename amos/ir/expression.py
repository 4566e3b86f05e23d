"""Elementwise expressions: trees of operations on values of ``int32`` and ``float32``.

A tree does not define its variables: an epilogue has one, ``acc``. An :class:`Arithmetic`
evaluates it, in NumPy or as text of a kernel. :mod:`amos.ir.epilogue` defines the language of
trees and the meaning of each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from amos.errors import OperatorError
from amos.ir.nodes import BufferLoad

#: dtypes that a value may be rounded to, by the function that rounds.
CASTS = {
    "u8": "uint8",
    "s8": "int8",
    "s16": "int16",
    "s32": "int32",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
}
#: Operations that are written as functions, with their argument counts. Names with an
#: underscore are reserved for definitions (:mod:`amos.ir.functions`).
OPERATIONS = {
    "max": 2,
    "min": 2,
    "round": 1,
    "fma": 3,
    "sqrt": 1,
    "_pow2": 1,
    "_exponent": 1,
    "_choose": 4,
    "_greater": 2,
    "_less": 2,
    "_unless_nan": 2,
    **dict.fromkeys(CASTS, 1),
}
#: Operations that are written as signs.
SIGNS = {"shift": ">>", "add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
#: The exponential of a difference to a maximum, for definitions and softmax.
EXP_NEGATIVE = "_exp_negative"
#: Quotients of exponentials by the sum of a row of them, whose largest is 1: a smaller sum is of a
#: row without a finite number, whose quotients are infinite or NaN, NaN, or 0.
SHARE, SHARE_OR_NAN, SHARE_OR_ZERO = "_share", "_share_or_nan", "_share_or_zero"
_PRINTED = {EXP_NEGATIVE: "exp", SHARE: "share", SHARE_OR_NAN: "share", SHARE_OR_ZERO: "safe_share"}
#: Functions that compare floats as one instruction does, by the function that lets NaN through.
_COMPARISONS = {"max": "_greater", "min": "_less"}
#: Precedence of signs.
_BINDING = {"shift": 0, "add": 1, "subtract": 1, "multiply": 2, "divide": 2}
#: Operations on floats only.
_OF_FLOATS = ("divide", "fma", "sqrt", "_pow2", "_exponent", "f32", "bf16", "f16")
#: dtypes of tensors that expressions read, and the kind that they are widened to.
INTEGERS = ("int32", "int16", "uint16", "int8", "uint8")
FLOATS = ("float32", "bfloat16", "float16")
#: Kind of an accumulator's value, by its dtype; doubles are rounded to it.
ACCUMULATORS = dict.fromkeys(INTEGERS, "int32") | dict.fromkeys((*FLOATS, "float64"), "float32")


@dataclass(frozen=True)
class Typed:
    """A value, and its kind: ``"int32"`` or ``"float32"``."""

    value: Any
    kind: str


@dataclass(frozen=True)
class Function:
    """A function that is defined by an expression of its parameters.

    Attributes:
        parameters: names of the variables; an argument is computed once.
        of_floats: whether integers are converted before; otherwise they are if any
            argument is a float.
    """

    name: str
    parameters: tuple[str, ...]
    body: Node
    of_floats: bool

    @cached_property
    def once(self) -> bool:
        """Whether each parameter occurs once, so that arguments may be substituted directly."""
        variables = [node.name for node in self.body.nodes() if node.is_variable]
        return sorted(variables) == sorted(self.parameters)

    def compute(self, values: list[Any], kind: str, by: Arithmetic) -> Any:
        """Evaluate the body for values of all parameters."""
        pairs = zip(self.parameters, values, strict=True)
        return self.body.compute({name: Typed(value, kind) for name, value in pairs}, by).value


class Arithmetic(Protocol):
    """Arithmetic on values: by NumPy, or as expressions of a kernel."""

    def number(self, value: float, kind: str) -> Any:
        """Make a constant of kind ``int32`` or ``float32``."""
        ...

    def read(self, load: BufferLoad, kind: str) -> Any:
        """Read an element of a tensor, widened to ``kind``."""
        ...

    def widen(self, value: Any, dtype: str) -> Any:
        """Widen a value of an accumulator's dtype to its kind in :data:`ACCUMULATORS`."""
        ...

    def convert(self, value: Any) -> Any:
        """Convert an ``int32`` to ``float32``."""
        ...

    def round_to(self, value: Any, kind: str, final: str) -> Any:
        """Round and clamp a value to a dtype, and return it as ``int32`` or ``float32``."""
        ...

    def apply(self, name: str, kind: str, values: list[Any]) -> Any:
        """Apply an operation to values of one kind."""
        ...

    def call(self, function: Function, kind: str, values: list[Any]) -> Any:
        """Call a function with values of one kind; see :func:`inline_call`."""
        ...


def inline_call(
    function: Function,
    kind: str,
    values: list[Any],
    by: Arithmetic,
    bind: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Evaluate the body of a function in place of a call.

    Args:
        bind: gives a name to a value that is used several times.
    """
    return function.compute(values if function.once else [bind(each) for each in values], kind, by)


@dataclass(frozen=True)
class Node:
    """One operation.

    Attributes:
        name: of a variable, an operation or a function; ``number`` or ``read``.
    """

    name: str
    arguments: tuple[Node, ...] = ()
    value: float = 0
    load: BufferLoad | None = None
    function: Function | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if self.name == "number":
            return str(self.value)
        if self.load is not None:
            return str(self.load)
        if self.name in SIGNS:
            first, second = (_parenthesize(each, self) for each in self.arguments)
            return f"{first} {SIGNS[self.name]} {second}"
        return (
            self.name
            if self.is_variable
            else f"{_PRINTED.get(self.name, self.name)}({', '.join(map(str, self.arguments))})"
        )

    @property
    def is_variable(self) -> bool:
        """Whether the evaluator supplies its value."""
        return not self.arguments and self.load is None and self.name != "number"

    @cached_property
    def depth(self) -> int:
        """Levels of the expression."""
        return 1 + max((argument.depth for argument in self.arguments), default=0)

    @cached_property
    def operation_count(self) -> int:
        """Number of operations that compute it, including those of functions that it calls."""
        operation = int(bool(self.arguments)) if self.function is None else 0
        called = 0 if self.function is None else self.function.body.operation_count
        return operation + called + sum(argument.operation_count for argument in self.arguments)

    def nodes(self) -> Iterator[Node]:
        """Yield this node and all below it, from left to right."""
        yield self
        for argument in self.arguments:
            yield from argument.nodes()

    @cached_property
    def loads(self) -> tuple[BufferLoad, ...]:
        """Accesses, in order of first appearance."""
        loads = (node.load for node in self.nodes())
        return tuple(dict.fromkeys(load for load in loads if load is not None))

    def with_loads(self, change: Callable[[BufferLoad], BufferLoad]) -> Node:
        """Replace every access."""
        return replace(
            self,
            arguments=tuple(each.with_loads(change) for each in self.arguments),
            load=None if self.load is None else change(self.load),
        )

    def kind(self, kinds: Mapping[str, str]) -> str:
        """Return ``"int32"`` or ``"float32"`` by the kinds of variables; floats have no shifts."""
        if self.is_variable:
            return kinds[self.name]
        if self.name == "number":
            return "int32" if isinstance(self.value, int) else "float32"
        if self.load is not None:
            return "int32" if str(self.load.tensor.dtype) in INTEGERS else "float32"
        if self.name in CASTS:
            return "int32" if CASTS[self.name] in INTEGERS else "float32"
        joint = self.joint_kind(kinds)
        if self.function is None:
            return joint
        return self.function.body.kind(dict.fromkeys(self.function.parameters, joint))

    def joint_kind(self, kinds: Mapping[str, str]) -> str:
        """Return the kind to which all arguments are converted; the node's own if it has none."""
        if not self.arguments:
            return self.kind(kinds)
        if self.name in _OF_FLOATS or (self.function is not None and self.function.of_floats):
            return "float32"
        argument_kinds = {argument.kind(kinds) for argument in self.arguments}
        if self.name == "shift" and "float32" in argument_kinds:
            raise OperatorError(f"{self}: expected an integer to shift, got a float: s32(...)")
        return "float32" if "float32" in argument_kinds else "int32"

    def compute(self, variables: Mapping[str, Typed], by: Arithmetic) -> Typed:
        """Evaluate the node, and return the value with its kind."""
        if self.is_variable:
            return variables[self.name]
        kinds = {name: typed.kind for name, typed in variables.items()}
        kind = self.kind(kinds)
        if self.name == "number":
            return Typed(by.number(self.value, kind), kind)
        if self.load is not None:
            return Typed(by.read(self.load, kind), kind)
        joint = self.joint_kind(kinds)
        values = [_compute_as(each, joint, variables, by) for each in self.arguments]
        if self.name == "f32" or (self.name == "round" and joint == "int32"):
            return Typed(values[0], kind)
        if self.name in CASTS:
            return Typed(by.round_to(values[0], joint, CASTS[self.name]), kind)
        if self.function is not None:
            return Typed(by.call(self.function, joint, values), kind)
        if self.name in _COMPARISONS:
            return Typed(self._compare(joint, values, kinds, by), kind)
        return Typed(by.apply(self.name, joint, values), kind)

    def _compare(
        self, joint: str, values: list[Any], kinds: Mapping[str, str], by: Arithmetic
    ) -> Any:
        """Compute the maximum or minimum of two values; NaN if either is NaN.

        A comparison with NaN gives the second value, so one instruction suffices where the
        first is a number. Otherwise a test is added.
        """
        name = _COMPARISONS[self.name]
        if joint == "int32" or self.arguments[0].is_never_nan(kinds):
            return by.apply(name, joint, values)
        if self.arguments[1].is_never_nan(kinds):
            return by.apply(name, joint, values[::-1])
        return by.call(_PROPAGATING[self.name], joint, values)

    def is_never_nan(self, kinds: Mapping[str, str]) -> bool:
        """Return whether the node is a literal or an integer by the kinds of variables."""
        return self.name == "number" or self.kind(kinds) == "int32"


def _define_nan_propagating(name: str, comparison: str) -> Function:
    x, y = Node("x"), Node("y")
    body = Node("_unless_nan", (x, Node(comparison, (x, y))))
    return Function(f"_{name}_or_nan", ("x", "y"), body, of_floats=True)


#: Maxima and minima of two floats that may both be NaN.
_PROPAGATING = {name: _define_nan_propagating(name, each) for name, each in _COMPARISONS.items()}


def _compute_as(node: Node, kind: str, variables: Mapping[str, Typed], by: Arithmetic) -> Any:
    """Evaluate a node, and convert the value to a kind."""
    if node.name == "number":
        return by.number(node.value, kind)
    result = node.compute(variables, by)
    return result.value if result.kind == kind else by.convert(result.value)


def _parenthesize(node: Node, parent: Node) -> str:
    """Print an operand, in parentheses where it would bind otherwise."""
    if node.name not in SIGNS:
        return str(node)
    right = node is parent.arguments[1]
    return f"({node})" if _BINDING[node.name] < _BINDING[parent.name] + right else str(node)
