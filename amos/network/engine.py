"""The engine, TVM Relax: what it does with everything that is no group.

Its operators become loops, elementwise ones are fused, and each function gets one simple
schedule: outer loops parallel, the innermost spatial loop as vectors. Relax then plans memory.
"""

from __future__ import annotations

from math import prod
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.tir.target import host_target

__all__ = ["executable", "machine_of"]

#: Elements of a vector, and how many steps of a loop are worth another thread.
_LANES, _WORTH = 16, 16384
#: Kinds of TensorIR's iterations: independent of each other, and summed over.
_KINDS = _PARALLEL, _SUMMED = 0, 2


def executable(module: Any) -> Any:
    """Compile a Relax module for this CPU.

    Args:
        module: operators of Relax, and calls of kernels that its attribute ``external_mods``
            holds.
    """
    load_tvm()
    import tvm
    from tvm import relax

    passes = relax.transform
    scheduling = tvm.transform.module_pass(_scheduled, opt_level=0, name="amos.simple_schedules")
    target = host_target()
    with target:
        module = tvm.transform.Sequential(
            [
                passes.LegalizeOps(),
                passes.AnnotateTIROpPattern(),
                passes.FuseOps(),
                passes.FuseTIR(),
                passes.DeadCodeElimination(),
                scheduling,
            ]
        )(module)
    return tvm.compile(module, target=target)


def machine_of(built: Any) -> Any:
    """A virtual machine that runs what was compiled."""
    import tvm
    from tvm import relax

    return relax.VirtualMachine(built, tvm.cpu())


def _scheduled(module: Any, _: Any) -> Any:
    """The module with a simple schedule for each function of TensorIR."""
    import tvm
    from tvm import tirx

    functions = {
        name: _simple(function) if isinstance(function, tirx.PrimFunc) else function
        for name, function in module.functions.items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


def _simple(function: Any) -> Any:
    """A function with its outer loops parallel and its innermost ones as vectors."""
    import tvm
    from tvm import s_tir
    from tvm.s_tir import ScheduleError

    schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
    try:
        root = schedule.get_sblock("root")
        for block in schedule.get_child_blocks(root)[:-1]:
            _inline(schedule, block)
        for block in schedule.get_child_blocks(root):
            _schedule_block(schedule, block)
    except ScheduleError:
        return function  # what cannot be scheduled runs as it is
    return schedule.mod["main"]


def _inline(schedule: Any, block: Any) -> None:
    """Compute an intermediate where it is read, unless that is in two places."""
    from tvm.s_tir import ScheduleError

    if len(schedule.get_consumers(block)) != 1:
        return
    try:
        schedule.compute_inline(block)
    except ScheduleError:
        return  # it is a sum, or decides what is read


def _schedule_block(schedule: Any, block: Any) -> None:
    kinds = [int(each.iter_type) for each in schedule.get(block).iter_vars]
    loops = schedule.get_loops(block)
    if len(loops) != len(kinds) or any(kind not in _KINDS for kind in kinds):
        return
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _PARALLEL]
    summed = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _SUMMED]
    extents = {loop: int(schedule.get(loop).extent) for loop in loops}
    work = prod(extents.values())
    if not spatial:
        return
    *outer, last = spatial
    lanes = next((n for n in (_LANES, _LANES // 2) if extents[last] % n == 0), 1)
    vector = []
    if lanes > 1:
        last, inner = schedule.split(last, [None, lanes])
        vector = [inner]
    schedule.reorder(*outer, last, *summed, *vector)
    if summed:
        schedule.decompose_reduction(block, summed[0])
    if vector:
        schedule.vectorize(vector[0])
    if work >= _WORTH:
        shared = schedule.fuse(*outer, last) if outer else last
        schedule.parallel(shared)
