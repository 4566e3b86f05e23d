"""Scheduled TensorIR → flat loops over flat buffers, without calls of TVM's runtime."""

from __future__ import annotations

from typing import Any

from amos._toolchain import s_tir, tirx, tvm
from amos.codegen.tir.arrays import expand_encoded
from amos.codegen.tir.rounding import unmark_settled
from amos.codegen.tir.statements import has_dependent_conditions, has_names


def compact_buffers(function: Any) -> Any:
    """Shrink the buffers of a scheduled function to what is read of them."""
    compact = s_tir.transform.CompactBufferAllocation()
    passes = tvm.ir.transform.Sequential([*_list_block_passes(), compact])
    return passes(tvm.IRModule({"main": function}))["main"]


def _list_block_passes() -> list[Any]:
    """List the passes that place buffers, and leave blocks without iterations of their own."""
    transform = s_tir.transform
    return [
        transform.CanonicalizeLoop(),
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
    ]


def lower(module: Any, share: bool = True, views: bool = False) -> Any:
    """Lower the only function of a module as TVM's pipeline does, up to its calling convention.

    Args:
        share: whether buffers that are not used at the same time may share memory, even with
            different dtypes.
        views: whether buffers begin within others; see
            :func:`amos.runtime.compiling.compile_function`.

    Returns:
        A prim func of plain loops, stores and calls: no blocks are left, buffers are
        flat, vector and unrolled loops are gone, integer division truncates.
    """
    blocks, flat = s_tir.transform, tirx.transform
    flatten = [
        *_list_block_passes(),
        *([] if views else [blocks.CompactBufferAllocation()]),
        blocks.LowerMatchBuffer(),
        blocks.StmtSimplify(),
        blocks.LowerOpaqueBlock(),
        flat.FlattenBuffer(),
        flat.NarrowDataType(32),
        blocks.LoopPartition(),
    ]
    simplify = [
        *([flat.StorageRewrite()] if share else []),
        *([] if has_dependent_conditions(module) else [blocks.HoistIfThenElse()]),
        flat.UnrollLoop(),
        blocks.RenormalizeSplitPattern(),
        flat.StmtSimplify(),
        flat.RemoveNoOp(),
        blocks.RewriteUnsafeSelect(),
        *([] if views or has_names(module) else [flat.CommonSubexprElim()]),
        # Turns rounding division into C's where operands are known not to be negative.
        flat.LowerIntrin(),
    ]
    target = tvm.target.Target({"kind": "c"})
    with target:
        module = tvm.ir.transform.Sequential([flat.BindTarget(target), *flatten])(module)
        module = tvm.ir.transform.Sequential([flat.VectorizeLoop(True), *simplify])(module)
    (function,) = module.functions.values()
    return expand_encoded(unmark_settled(function), native=False)
