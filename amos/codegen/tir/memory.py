"""Memory of compiled kernels: accumulators on the stack, and arguments of any alignment.

TVM takes every buffer of more than 1 KiB from a pool at run time. LLVM keeps the accumulators of a
register tile in registers all the same, but it cannot know that their stores to the pool (zeros
before a reduction, sums after it) are never read. Where reductions are short, these stores cost as
much as the output's.

TVM takes every argument to be aligned to 64 bytes and emits loads that trap
otherwise. NumPy aligns to 16, slices to one element, so the alignment of a kernel's
arguments is lowered to one byte; on aligned data the other loads are as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from amos._toolchain import load_tvm, tirx, tvm, tvm_ffi
from amos.codegen.tir.arrays import expand_encoded
from amos.codegen.tir.narrow import store_alone
from amos.codegen.tir.rounding import expand_operators, is_settled
from amos.codegen.tir.statements import buffer_bytes, occurs, rewrite
from amos.machine.cpu import cpu

#: Bytes of the largest buffer that is put on the stack. More than 27 vectors of accumulators leave
#: LLVM few registers for sources: as values of its own, rather than promoted memory, it spills some
#: of them in the innermost loop.
_LARGEST = 27 * 64
#: The same where LLVM would otherwise keep no accumulators in registers.
_LARGEST_OF_ALL = 8 * 1024
#: Features of CPUs that round vectors of any length to ``bfloat16``.
_ROUNDS_TO_BFLOAT16 = frozenset({"avx512_bf16", "avx512vl"})
#: TVM's annotation of an allocation that must not become a call of its runtime.
_AS_IT_IS = "disable_lower_builtin"
#: Options of TVM that leave out its checks of arguments, which are two thirds of the machine code
#: and a quarter of LLVM's time: networks call functions with buffers of their own.
UNCHECKED = {"tirx.disable_assert": True}


@cache
def register_cpu_pipeline(larger: bool = False) -> str:
    """Register TVM's pipeline with small buffers on the stack; return its name.

    Args:
        larger: whether larger ones are put there too: those of tile registers, and where arguments
            may overlap, as LLVM then keeps no other accumulators in registers.
    """
    largest = _LARGEST_OF_ALL if larger else _LARGEST
    return register_pipeline(
        f"amos_cpu_{largest}",
        lambda body: expand_operators(_store_settled(_allocate_on_stack(body, largest))),
    )


def register_pipeline(name: str, change: Callable[[Any], Any]) -> str:
    """Register TVM's pipeline with one more step at its end; return its name.

    After that step narrow results are kept out of masked vectors.
    """
    load_tvm()
    from tvm.s_tir.pipeline import default_s_tir_pipeline
    from tvm.tirx.compilation_pipeline import register_tir_pipeline

    def change_module(module: Any, _: Any) -> Any:
        native = cpu().features >= _ROUNDS_TO_BFLOAT16

        def body_of(function: Any) -> Any:
            return store_alone(expand_encoded(change(function.body), native=native))

        functions = {key: each.with_body(body_of(each)) for key, each in module.functions.items()}
        return tvm.IRModule(functions, attrs=module.attrs)

    def passes() -> Any:
        first, *last = default_s_tir_pipeline()
        changing = tvm.transform.module_pass(change_module, opt_level=0)
        return tvm.transform.Sequential([first, changing]), *last

    register_tir_pipeline(name, passes)
    return name


def _allocate_on_stack(body: Any, largest: int) -> Any:
    """Allocate the small buffers of a function's body on the stack."""

    def allocate(stmt: Any) -> Any:
        if buffer_bytes(stmt.buffer) > largest:
            return None
        marked = {**stmt.annotations, _AS_IT_IS: tirx.const(True, "bool")}
        return tirx.AllocBuffer(stmt.buffer, marked)

    return rewrite(body, "AllocBuffer", allocate)


def _store_settled(body: Any) -> Any:
    """Keep the settled values of a function's body in memory, which LLVM promotes to registers.

    Otherwise LLVM's code generator substitutes values for names at each use, as other passes do.
    """

    def divide(store: Any) -> Any:
        value, names, steps = store.value, list[tuple[Any, Any]](), list[Any]()
        while isinstance(value, tirx.Let):
            name, meaning, value = value.var, value.value, value.body
            if is_settled(meaning):
                (meaning,) = meaning.args
                local = tirx.decl_buffer((1,), meaning.ty.dtype, name.name, scope="local")
                steps.append(tirx.AllocBuffer(local, {_AS_IT_IS: tirx.const(True, "bool")}))
                steps.append(tirx.BufferStore(local, _bind_names(names, meaning), [0]))
                meaning = tirx.BufferLoad(local, [0])
            names.append((name, meaning))
        if not steps:
            return None
        last = tirx.BufferStore(store.buffer, _bind_names(names, value), store.indices)
        return tirx.SeqStmt([*steps, last])

    return rewrite(body, "BufferStore", divide)


def _bind_names(names: list[tuple[Any, Any]], value: Any) -> Any:
    """Bind names around a value that uses them."""
    for name, meaning in reversed(names):
        value = tirx.Let(name, meaning, value) if occurs(name, value) else value
    return value


def align_to_bytes(module: Any) -> Any:
    """Declare every buffer of a module as aligned to one byte.

    A buffer that matches a region of another may not require a larger alignment than that one has,
    so inner buffers are changed too; TVM allocates them aligned whatever their types say.
    """

    def lower(kind: Any) -> Any:
        fields = kind.dtype, kind.storage_scope, kind.shape, kind.strides, kind.elem_offset
        last = kind.offset_factor, kind.layout, kind.allocated_addr, kind.span
        return tirx.BufferType(*fields, 1, *last)

    return tvm_ffi.structural_map(module, (tirx.BufferType, lower))
