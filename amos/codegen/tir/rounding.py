"""Operators of TVM that stand for others until loops are vectors.

TVM lets LLVM fuse a product and a sum, which rounds once where two roundings are stated.
LLVM has a fence against that, and an instruction for the nearest even integer. TVM makes
scalars of a loop with either of them, and of no loop with operators that no kernel has.
"""

from __future__ import annotations

from typing import Any

__all__ = ["NEAREST", "ROUNDED", "as_meant"]

#: Stands for the fence around a product.
ROUNDED = "tirx.sinh"
#: Stands for the nearest integer, ties to even; on its own it has them go away from zero.
NEAREST = "tirx.round"


def as_meant(body: Any) -> Any:
    """The vectorized body of a function with what operators stand for."""
    import tvm_ffi
    from tvm import ir, tirx

    rounded, nearest = ir.Op.get(ROUNDED), ir.Op.get(NEAREST)

    def meant(call: Any) -> Any:
        if call.op.same_as(rounded):
            kind = str(call.ty.dtype)
            return tirx.call_llvm_pure_intrin(kind, "llvm.arithmetic.fence", *call.args)
        return tirx.nearbyint(*call.args) if call.op.same_as(nearest) else call

    return tvm_ffi.structural_map(body, (ir.Call, meant))
