"""Stores of 8 and 16 bits that LLVM must not put into masked vectors.

LLVM 22 stores the value of a masked vector with a single lane as wide as it was computed: four
bytes, where wider integers were narrowed to one or two. It masks vectors where a loop stores under
a condition, and where a loop is too short to have a scalar epilogue. There such elements are stored
by functions in LLVM IR whose stores are volatile, so that LLVM does not vectorize them. Copies
narrow nothing and are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amos._toolchain import ir, tirx, tvm_ffi

#: A constant loop of this many steps may have a scalar epilogue, even where LLVM peels some
#: of its iterations.
_MANY = 32
#: TVM's name of a conditional value.
_CHOICE = "prim.if_then_else"
#: Names of the functions that store, by their bits.
_STORE = "amos_store_{bits}_bits"
_TEXT = """
define linkonce_odr hidden void @{name}(ptr %place, i{bits} %value) alwaysinline {{
  store volatile i{bits} %value, ptr %place, align 1
  ret void
}}
"""


def is_narrow(kind: str) -> bool:
    """Return whether elements of a buffer of this dtype are stored as integers of 8 or 16 bits."""
    return kind in ("bool", "int8", "uint8", "int16", "uint16")


def store_alone(body: Any) -> Any:
    """Keep the narrow results of a lowered function's body out of masked vectors."""
    loops: list[tuple[Any, bool]] = []  # around a statement, and whether it is conditional there
    used: set[int] = set()

    def loop(node: Any, mutator: Any) -> Any:
        loops.append((node, False))
        changed = mutator.default_mutate(node)
        loops.pop()
        return changed

    def branch(node: Any, mutator: Any) -> Any:
        conditional = [(x, True) for x, _ in loops]
        loops[:], before = conditional, loops[:]
        changed = mutator.default_mutate(node)
        loops[:] = before
        return changed

    def store(node: Any, _: Any) -> Any:
        kind = str(node.buffer.dtype)
        if not is_narrow(kind) or _is_copy(node.value, kind) or not _may_be_masked(loops):
            return node
        bits = 16 if kind.endswith("16") else 8
        used.add(bits)
        place = tirx.address_of(tirx.BufferLoad(node.buffer, node.indices))
        # A truth value has one bit in LLVM, and a byte in memory.
        value = node.value.astype("uint8") if kind == "bool" else node.value
        return tirx.Evaluate(tirx.call_extern("void", _STORE.format(bits=bits), place, value))

    visits = [(tirx.For, loop), (tirx.IfThenElse, branch), (tirx.BufferStore, store)]
    changed = tvm_ffi.structural_mutate(body, visits)
    for bits in sorted(used):
        text = ir.StringImm(_TEXT.format(name=_STORE.format(bits=bits), bits=bits))
        changed = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, changed)
    return changed


def _may_be_masked(loops: Sequence[tuple[Any, bool]]) -> bool:
    """Return whether LLVM may make masked vectors of a statement in these loops."""
    for loop, conditional in loops:
        steps = getattr(loop.extent, "value", None)
        if conditional or steps is None or (int(steps) < _MANY and int(steps).bit_count() > 1):
            return True
    return False


def _is_copy(value: Any, kind: str) -> bool:
    """Return whether a value is a plain load, a constant or a vector."""
    if str(value.ty.dtype) != kind:  # lanes
        return True
    node = type(value).__name__
    if node == "Call" and getattr(value.op, "name", "") == _CHOICE:
        return all(_is_copy(each, kind) for each in value.args[1:])
    if node == "Select":
        return _is_copy(value.true_value, kind) and _is_copy(value.false_value, kind)
    return node in ("BufferLoad", "TensorLoad", "IntImm")
