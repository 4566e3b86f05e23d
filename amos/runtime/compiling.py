"""Scheduled TensorIR to machine code of this CPU, and its time."""

from __future__ import annotations

from typing import Any

from amos._toolchain import tvm
from amos.codegen.scheduling import last_line
from amos.codegen.tir.memory import UNCHECKED, align_to_bytes, register_cpu_pipeline
from amos.codegen.tir.statements import has_dependent_conditions, has_names
from amos.codegen.tir.target import host_target, vectorizes_loops
from amos.errors import BuildError

#: Shortest duration of one timing, in milliseconds.
_MIN_REPEAT_MS = 5


def compile_function(
    what: str,
    kind: str,
    module: Any,
    *,
    larger: bool = False,
    shared: bool = True,
    views: bool = False,
    checked: bool = True,
) -> Any:
    """Compile the library of a module of one function for this CPU.

    Args:
        what: it is, for messages.
        kind: ``"native"`` or ``"generic"``.
        larger: whether its buffers may need more room than a stack has.
        shared: whether buffers may have the same memory, one after the other.
        views: whether buffers begin within others. TVM would share expressions of where they
            begin, and use them ahead of the loops that define them. It would also look for the
            least shapes of all buffers, which chains have already; that takes longer than LLVM.
        checked: whether a call with other arguments is an error, also from a program without AMOS.

    Raises:
        BuildError: TVM refuses it.
    """
    target = host_target(loops=vectorizes_loops(module, kind))
    passes = register_cpu_pipeline(larger=larger)
    config = {
        **({} if checked else UNCHECKED),
        "tirx.disable_cse_tir": views or has_names(module),
        "tirx.disable_storage_rewrite": not shared,
    }
    disabled = ["s_tir.HoistIfThenElse"] if has_dependent_conditions(module) else []
    disabled += ["s_tir.CompactBufferAllocation"] if views else []
    try:
        with tvm.transform.PassContext(config=config, disabled_pass=disabled):
            return tvm.compile(align_to_bytes(module), target=target, tir_pipeline=passes)
    except Exception as error:
        raise BuildError(f"{what}: TVM cannot compile it: {last_line(error)}") from error


def time_runs(
    module: Any, device: Any, arguments: list[Any], repeat: int, flush: int
) -> tuple[float, ...]:
    """Measure the seconds of each run of a compiled module; see :meth:`Kernel.times`."""
    timer = module.time_evaluator(
        "main",
        device,
        number=1,
        repeat=repeat,
        min_repeat_ms=0 if flush else _MIN_REPEAT_MS,
        cache_flush_bytes=flush,
    )
    return tuple(float(seconds) for seconds in timer(*arguments).results)
