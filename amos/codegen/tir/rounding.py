"""How TVM and LLVM round.

TVM lets LLVM fuse a product and a sum, which rounds once instead of twice. LLVM has a fence against
that, but TVM does not vectorize a loop that contains one, so an operator marks it until loops are
vectorized. For ``nearbyint`` it suffices to tell TVM that it may be vectorized.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from amos._toolchain import ir, tirx, tvm_ffi
from amos.codegen.tir.statements import collect_nodes

#: Effects that TVM assumes of an operator: that it is pure, or that it reads memory.
_PURE, _READS_MEMORY = 1, 2


@cache
def define_operator(name: str, effect: int = _PURE) -> Any:
    """Define an operator of one argument, which may be a vector; the name has no prefix yet."""
    ir._ffi_api.RegisterOp(f"tirx.{name}", "An operator of AMOS.")
    for key, value in (
        ("TCallEffectKind", effect),
        ("TVectorizable", True),
        ("TScriptPrinterName", name),
    ):
        ir.register_op_attr(f"tirx.{name}", key, value)
    return ir.Op.get(f"tirx.{name}")


def _settling() -> Any:
    """Define an operator that TVM believes to read memory.

    TVM's analyzer substitutes the value of a pure name at each of its uses, recursively, which
    takes exponential time in the depth of names.
    """
    return define_operator("amos_settled", _READS_MEMORY)


def mark_settled(value: Any) -> Any:
    """Mark a float as one that TVM names and does not look into."""
    return tirx.call_intrin(value.ty.dtype, _settling(), value)


def round_product(product: Any) -> Any:
    """Mark a product that is rounded before it is added."""
    return tirx.call_intrin(product.ty.dtype, _rounding(), product)


def _rounding() -> Any:
    return define_operator("amos_rounded")


def is_settled(value: Any) -> bool:
    """Return whether a value is marked by :func:`mark_settled`."""
    return isinstance(value, ir.Call) and bool(value.op.same_as(_settling()))


def quantizes(function: Any) -> bool:
    """Return whether a function rounds floats to integers."""
    nearest = ir.Op.get("tirx.nearbyint")
    return any(call.op.same_as(nearest) for call in collect_nodes(function.body, ir.Call))


def round_products(function: Any) -> Any:
    """Mark the products of a function that are rounded before they are added.

    :func:`fence_products` passes the marks on to LLVM once loops are vectorized.
    """

    def term(value: Any) -> Any:
        product = isinstance(value, tirx.Mul) and str(value.ty.dtype).startswith("float")
        return round_product(value) if product else value

    def total(value: Any) -> Any:
        return type(value)(term(value.a), term(value.b))

    kinds = [(kind, total) for kind in (tirx.Add, tirx.Sub)]
    return function.with_body(tvm_ffi.structural_map(function.body, kinds))


def fence_products(body: Any) -> Any:
    """Fence the rounded products in the vectorized body of a function."""
    return tvm_ffi.structural_map(body, (ir.Call, _fence))


def _fence(call: Any) -> Any:
    """Put a rounded product behind LLVM's fence; return any other call as it is."""
    if not call.op.same_as(_rounding()):
        return call
    return tirx.call_llvm_pure_intrin(str(call.ty.dtype), "llvm.arithmetic.fence", *call.args)


def expand_operators(body: Any) -> Any:
    """Replace the marked operators in the vectorized body of a function by their meaning."""
    nearbyint = ir.Op.get("tirx.nearbyint")

    def expand(call: Any) -> Any:
        return call.args[0] if is_settled(call) else _fence(call)

    def convert(cast: Any) -> Any:
        value, kind = cast.value, str(cast.ty.dtype)
        if not isinstance(value, ir.Call) or not value.args:
            return cast
        if kind.startswith("int32") and value.op.same_as(nearbyint):
            # One instruction rounds and converts.
            return tirx.call_llvm_pure_intrin(kind, "llvm.lrint", *value.args)
        saturated = _saturate(cast)
        return cast if saturated is None else saturated

    return tvm_ffi.structural_map(body, [(ir.Call, expand), (tirx.Cast, convert)])


def _saturate(cast: Any) -> Any:
    """Convert clamped floats to bytes by a saturating instruction; ``None`` for other casts.

    Values beyond ``int32`` are converted to its sign bit, as unsigned the largest of all.
    """
    kind, rounded = str(cast.ty.dtype), cast.value
    clamped = rounded.args[-1]
    if not kind.startswith("uint8") or not isinstance(clamped, tirx.Min):
        return None
    highest = getattr(clamped.b, "value", None)
    if getattr(highest, "value", highest) != np.iinfo(np.uint8).max:
        return None
    lanes = kind.removeprefix("uint8")
    value = tirx.call_llvm_pure_intrin(f"int32{lanes}", "llvm.lrint", clamped.a)
    same = rounded.op.same_as(value.op) and rounded.args[0].value == value.args[0].value
    if not same or not isinstance(clamped.a, tirx.Max):  # negative values would become 255
        return None
    limit = tirx.Cast(f"uint32{lanes}", clamped.b)
    return tirx.Cast(kind, tirx.Min(tirx.reinterpret(f"uint32{lanes}", value), limit))


def nearest(value: Any) -> Any:
    """Round a ``float32`` to the nearest integer, as a float; ties to even."""
    round_in_vectors()
    return tirx.call_intrin("float32", "tirx.nearbyint", value)


def define_operators() -> None:
    """Define the operators of scheduled functions that another process wrote."""
    round_in_vectors()
    _rounding()


@cache
def round_in_vectors() -> None:
    """Let TVM vectorize the rounding to the nearest integer.

    TVM does not declare ``nearbyint`` as vectorizable, though LLVM has the instruction.
    """
    ir.register_op_attr("tirx.nearbyint", "TVectorizable", True)


def unmark_settled(function: Any) -> Any:
    """Remove the marks of settled values from a function or a value."""

    def plain(call: Any) -> Any:
        return call.args[0] if is_settled(call) else call

    return tvm_ffi.structural_map(function, (ir.Call, plain))
