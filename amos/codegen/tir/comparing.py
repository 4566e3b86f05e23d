"""Maxima and minima of floats that are NaN where either of their arguments is.

TVM's compile to the instructions of x86, which return their second argument unless the first is
better. That is enough where the first is a number.
"""

from __future__ import annotations

from typing import Any

from amos._toolchain import ir, tirx, tvm_ffi
from amos.codegen.tir.arrays import is_number
from amos.codegen.tir.program import Program
from amos.codegen.tir.statements import collect_nodes
from amos.ir import dtype
from amos.ir.combining import function as function_of


def compare_with_nan(function: Any, program: Program) -> Any:
    """Let the maxima and minima of floats in a kernel's function be NaN if an element is."""
    compute = program.plan.mapping.operator.compute
    ordered = any(function_of(x).ordered for x in (compute.combiner, compute.join) if x)
    integers = dtype(str(compute.dst.tensor.dtype)).is_integer
    return propagate_nan(function) if ordered and not integers else function


def emit_extremum(symbol: str, first: Any, second: Any) -> Any:
    """Emit ``max`` or ``min`` of two values, the first of which is written three times.

    A chain of comparisons that repeated its longer argument would grow exponentially.
    """
    better = (tirx.max if symbol == "max" else tirx.min)(first, second)
    kind = str(first.ty.dtype)
    if not kind.startswith(("float", "bfloat")) or isinstance(first, tirx.FloatImm):
        return better
    if isinstance(second, tirx.FloatImm):
        return (tirx.max if symbol == "max" else tirx.min)(second, first)
    return tirx.Select(is_number(first), better, first)


def propagate_nan(function: Any) -> Any:
    """Change a function so that its comparisons treat NaN as IEEE 754 and ONNX do."""

    def changer(symbol: str) -> Any:
        def change(node: Any) -> Any:
            first, second = node.a, node.b
            if _cost(second) < _cost(first):
                first, second = second, first
            return emit_extremum(symbol, first, second)

        return change

    def unequal(node: Any) -> Any:
        if not str(node.a.ty.dtype).startswith("float"):
            return node
        true, false = tirx.const(True, "bool"), tirx.const(False, "bool")
        return tirx.Select(tirx.EQ(node.a, node.b), false, true)

    kinds = [(tirx.Max, changer("max")), (tirx.Min, changer("min")), (tirx.NE, unequal)]
    return function.with_body(tvm_ffi.structural_map(function.body, kinds))


def _cost(value: Any) -> tuple[int, bool]:
    """Count the elements that an expression reads; say whether it is more than one read."""
    return len(collect_nodes(value, ir.TensorLoad)), not isinstance(value, ir.TensorLoad)
