"""Scheduled TensorIR → flat loops over flat buffers, before anything of TVM's runtime enters."""

from __future__ import annotations

import json
from typing import Any

from amos._toolchain import load_tvm

__all__ = ["lowered"]


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
        made = tvm.ir.transform.Sequential([flat.BindTarget(target), *flatten])(module)
        # TVM makes vectors of ``round``, which no kernel here has, but not of ``nearbyint``.
        made = flat.VectorizeLoop(True)(_renamed(made, "nearbyint", "round"))
        made = tvm.ir.transform.Sequential(simplify)(_renamed(made, "round", "nearbyint"))
    (function,) = made.functions.values()
    return function


def _renamed(module: Any, given: str, made: str) -> Any:
    """The module with one unary operator of TVM in place of another."""
    import tvm

    text = tvm.ir.save_json(module)
    if f'"tirx.{given}"' not in text:
        return module
    document = json.loads(text)
    for node in document["nodes"]:
        if node["type"] == "ir.Op" and node["data"] == f"tirx.{given}":
            node["data"] = f"tirx.{made}"
    return tvm.ir.load_json(json.dumps(document))
