"""Scheduled TensorIR → flat loops over flat buffers, before anything of TVM's runtime enters."""

from __future__ import annotations

from typing import Any

from amos._toolchain import load_tvm

__all__ = ["lowered"]


def lowered(module: Any) -> Any:
    """Lower the only function of a module as TVM's pipeline does, up to its calling convention.

    Args:
        module: what a schedule has made, or an unscheduled function's module.

    Returns:
        A prim func of plain loops, stores and calls: no blocks are left, buffers are
        flat, vector and unrolled loops are gone, integer division truncates.
    """
    load_tvm()
    import tvm
    from tvm import s_tir, tirx

    blocks, flat = s_tir.transform, tirx.transform
    passes = [
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
        flat.VectorizeLoop(True),
        flat.StorageRewrite(),
        blocks.HoistIfThenElse(),
        flat.UnrollLoop(),
        blocks.RenormalizeSplitPattern(),
        flat.StmtSimplify(),
        flat.RemoveNoOp(),
        blocks.RewriteUnsafeSelect(),
        flat.CommonSubexprElim(),
        # Turns rounding division into C's where operands are known not to be negative.
        flat.LowerIntrin(),
    ]
    target = tvm.target.Target({"kind": "c"})
    with target:
        made = tvm.ir.transform.Sequential([flat.BindTarget(target), *passes])(module)
    (function,) = made.functions.values()
    return function
