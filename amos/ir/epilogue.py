"""Elementwise expressions applied to an accumulator before it is stored.

A quantized layer is an operator and an epilogue, for example

    u8(relu((acc + bias[k]) * scale[k]) + skip[n,p,q,k])

``acc`` is the sum that the operator has computed for one element of the output, of
integers up to 32 bits as ``int32`` and of floats as ``float32``, to which ``float64`` is
rounded; tensors are indexed by the operator's spatial iterations. An epilogue changes no
access of the operator, so mappings do not depend on it.

The arithmetic is the same everywhere, in NumPy, in kernels and in exports, bit for bit:

* an expression is ``int32``, which wraps around, or ``float32``, where every
  operation rounds once to nearest even, and a product that is added is not fused;
* ``x >> n`` is an integer divided by ``2**n`` and rounded down, for ``n`` from 0 to 31, and
  binds less tightly than ``+``, as in C: ``s8(acc + 64 >> 7)``;
* of an integer and a float the integer is converted first, rounding to nearest even;
  ``/`` and the functions of floats convert all their arguments;
* ``max(x, y)`` and ``min(x, y)`` are NaN if either argument is; of equal ones, zeros of
  either sign, they are ``y``, or ``x`` where ``y`` alone is a literal or an integer;
  ``relu(x)`` is ``max(x, 0)``; ``clip(x, low, high)``, or ``clamp``, is ``x`` within bounds,
  and a bound that is NaN is ignored; ``abs(x)`` is the greater of ``x`` and ``0 - x``;
* ``x / y`` and ``sqrt(x)`` are those of IEEE 754; ``fma(x, y, z)`` is ``x * y + z``,
  rounded once; ``rsqrt(x)`` is ``1 / sqrt(x)``; ``times(x, high, low)`` is
  ``fma(x, high, x * low)``, a product with the sum of two floats, such as a reciprocal;
* ``round(x)`` is the nearest integer, ties to even, as a float;
* ``u8(…)``, ``s8(…)``, ``s16(…)`` and ``s32(…)`` are integers: floats are rounded to
  the nearest one, ties to even, and both they and integers are clamped to exactly its
  range, so that ``s32(3e9)`` is 2147483647, although no ``float32`` is; ``f16(…)`` and
  ``bf16(…)`` round a float to nearest even, and ``f32(…)`` converts. The outermost one
  also gives the dtype of the result;
* numbers are those of ``int32`` and ``float32``; infinities are those of IEEE 754.

Other functions of floats are fixed sequences of these operations (:mod:`amos.ir.functions`).
Their largest errors where the result is a normal number:

==================================  ==============================================
``exp``                             1 ulp; 0 from -104 down, infinite above 88.72
``log``                             2 ulp, of normal numbers
``sigmoid``, ``silu``               2.5, 3.5 ulp; 0 below -88.37
``tanh``, ``erf``                   6 ulp, and never beyond 1
``gelu``, ``gelu_tanh``             3 ulp of the argument, by ``erf`` and by ``tanh``
``hardsigmoid``, ``hardswish``      1, 2 ulp
==================================  ==============================================

NaN stays NaN in floats, and an integer of NaN is the smallest of its type. Products are
finite or infinite where they are added: the result of a NaN among them is not defined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from amos.errors import OperatorError
from amos.ir.dtypes import dtype
from amos.ir.expression import ACCUMULATORS, FLOATS, INTEGERS, Arithmetic, Node, Typed
from amos.ir.nodes import BufferLoad

#: The variable of an epilogue: the accumulator.
ACC = "acc"


@dataclass(frozen=True)
class Elementwise:
    """An elementwise expression: the common part of epilogues and prologues."""

    expression: Node

    def __post_init__(self) -> None:
        for load in self.loads:
            if str(load.tensor.dtype) not in (*INTEGERS, *FLOATS):
                raise OperatorError(
                    f"{type(self).__name__.lower()} tensor {load.tensor.name!r}: expected "
                    f"{', '.join((*INTEGERS, *FLOATS))}, got {load.tensor.dtype}"
                )

    @property
    def loads(self) -> tuple[BufferLoad, ...]:
        """Accesses, in order of first appearance."""
        return self.expression.loads

    def with_loads(self, change: Callable[[BufferLoad], BufferLoad]) -> Self:
        """Replace every access."""
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
        if all(node.name != ACC for node in self.expression.nodes()):
            raise OperatorError(f"epilogue {self}: expected an expression of acc, got none in it")

    def kind(self, accumulator: str) -> str:
        """Return ``"int32"`` or ``"float32"``, from which the result is rounded."""
        return self.expression.kind({ACC: ACCUMULATORS[accumulator]})

    def result(self, accumulator: str) -> str:
        """Return the dtype of the result, or raise OperatorError for an impossible accumulator."""
        if accumulator not in ACCUMULATORS:
            raise OperatorError(
                f"epilogue {self}: no int32 or float32 holds accumulators of {accumulator}; "
                f"those of {', '.join(ACCUMULATORS)} can be"
            )
        return self.dtype or self.kind(accumulator)

    def compute(self, value: Any, accumulator: str, by: Arithmetic) -> Any:
        """Evaluate the expression, as its own kind, for an accumulator of a dtype.

        The value, by NumPy's arithmetic or a kernel's, is not yet rounded to the result.
        """
        kind = ACCUMULATORS[accumulator]
        wide = value if kind == accumulator else by.widen(value, accumulator)
        return self.expression.compute({ACC: Typed(wide, kind)}, by).value

    def __str__(self) -> str:
        short = None if self.dtype is None else dtype(self.dtype).short
        return str(self.expression) if short is None else f"{short}({self.expression})"
