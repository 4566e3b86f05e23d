"""Scheduled TensorIR → flat loops over flat buffers, before anything of TVM's runtime enters."""

from __future__ import annotations

from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.tir.rounding import unsettled
from amos.codegen.tir.statements import conditions_depend, gives_names


def lowered(module: Any, share: bool = True) -> Any:
    """Lower the only function of a module as TVM's pipeline does, up to its calling convention.

    Args:
        module: what a schedule has made, or an unscheduled function's module.
        share: whether buffers that are not used at the same time may be the same memory,
            which then is seen as one dtype after another.

    Returns:
        A prim func of plain loops, stores and calls: no blocks are left, buffers are
        flat, vector and unrolled loops are gone, integer division truncates.
    """
    load_tvm()
    import tvm
    from tvm import s_tir, tirx

    blocks, flat = s_tir.transform, tirx.transform
    flatten = [
        blocks.CanonicalizeLoop(),
        blocks.LowerInitBlock(),
        blocks.PlanAndUpdateBufferAllocationLocation(),
        blocks.ConvertBlocksToOpaque(),
        blocks.CompactBufferAllocation(),
        blocks.LowerMatchBuffer(),
        blocks.StmtSimplify(),
        blocks.LowerOpaqueBlock(),
        flat.FlattenBuffer(),
        flat.NarrowDataType(32),
        blocks.LoopPartition(),
    ]
    simplify = [
        *([flat.StorageRewrite()] if share else []),
        *([] if conditions_depend(module) else [blocks.HoistIfThenElse()]),
        flat.UnrollLoop(),
        blocks.RenormalizeSplitPattern(),
        flat.StmtSimplify(),
        flat.RemoveNoOp(),
        blocks.RewriteUnsafeSelect(),
        *([] if gives_names(module) else [flat.CommonSubexprElim()]),
        # Turns rounding division into C's where operands are known not to be negative.
        flat.LowerIntrin(),
    ]
    target = tvm.target.Target({"kind": "c"})
    with target:
        module = tvm.ir.transform.Sequential([flat.BindTarget(target), *flatten])(module)
        # TVM makes vectors of ``round``, which no kernel here has, but not of ``nearbyint``.
        module = flat.VectorizeLoop(True)(_replaced(module, "nearbyint", "round"))
        module = tvm.ir.transform.Sequential(simplify)(_replaced(module, "round", "nearbyint"))
    (function,) = module.functions.values()
    return unsettled(function)


def _replaced(module: Any, given: str, instead: str) -> Any:
    """The module with one unary operator of TVM in place of another."""
    import tvm_ffi
    from tvm import ir, tirx

    before = ir.Op.get(f"tirx.{given}")

    def replaced(call: Any) -> Any:
        return getattr(tirx, instead)(*call.args) if call.op.same_as(before) else call

    return tvm_ffi.structural_map(module, (ir.Call, replaced))
