"""Containers of values whose types TVM supports badly, and NumPy not at all.

TVM widens a bfloat16 buffer between two stages to float32, so an instruction
that reads its 16 bits would read something else. Kernels therefore hold bfloat16
as ``uint16`` bit patterns, and tf32, whose values are float32 values, as that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from amos._toolchain import ir, tirx, tvm, tvm_ffi
from amos.codegen.tir.rounding import define_operator
from amos.ir import dtype
from amos.ir.floats import pack, unpack

#: A function in LLVM IR, which has vectors of bfloat16; TVM aborts on these.
_ROUND = "amos_bfloat16_{lanes}"
_TEXT = """
define linkonce_odr hidden {words} @{name}({floats} %value) alwaysinline {{
  %half = fptrunc {floats} %value to {halves}
  %bits = bitcast {halves} %half to {words}
  ret {words} %bits
}}
"""
_HELD = {"bfloat16": "uint16", "tfloat32": "float32"}


def container_dtype(kind: str) -> str:
    """Return the dtype of a buffer that holds values of ``kind``."""
    return _HELD.get(kind, kind)


def constant(value: int | float, kind: str) -> Any:
    """Return a value of ``kind`` as a TVM constant for such a buffer."""
    if kind == "bfloat16":
        value = int(pack(np.array([value], dtype=np.float32), kind).view(np.uint16)[0])
    return tirx.const(value, container_dtype(kind))


def decode(value: Any, kind: str, result: str, lanes: int = 1) -> Any:
    """Convert ``lanes`` elements read from such a buffer to ``result``, as a TVM expression."""
    many = f"x{lanes}" if lanes > 1 else ""
    if kind != "bfloat16":
        return value.astype(result + many)
    bits: Any = tirx.const(16, "uint32")
    if many:
        bits = tirx.Broadcast(bits, lanes)
    wide = tirx.shift_left(value.astype("uint32" + many), bits)
    return tirx.reinterpret("float32" + many, wide).astype(result + many)


def convert(value: Any, kind: str, result: str, lanes: int = 1) -> Any:
    """Convert elements of a buffer of one dtype to elements of a buffer of another."""
    return value if kind == result else decode(value, kind, container_dtype(result), lanes)


def encode(value: Any, kind: str) -> Any:
    """Round a float32 TVM expression to an element of such a buffer, ties to even."""
    if kind != "bfloat16":
        return value.astype(container_dtype(kind))
    return tirx.call_intrin("uint16", _encoding(), value)


def _encoding() -> Any:
    """Define an operator that marks the rounding until loops are vectors."""
    return define_operator("amos_bfloat16")


def expand_encoded(body: Any, *, native: bool) -> Any:
    """Expand the marked rounding to ``bfloat16`` in the body of a function.

    Args:
        body: of vectors.
        native: round by the instruction of AVX-512 BF16, which flushes subnormal numbers to zero,
            rather than by integer operations.
    """
    lengths: set[str] = set()

    def expand(call: Any) -> Any:
        if not call.op.same_as(_encoding()):
            return call
        (value,) = call.args
        if not native:
            return _round_bits(value)
        lanes = str(value.ty.dtype).removeprefix("float32")
        lengths.add(lanes)
        return tirx.call_pure_extern(f"uint16{lanes}", _ROUND.format(lanes=lanes), value)

    changed = tvm_ffi.structural_map(body, (ir.Call, expand))
    for lanes in sorted(lengths):
        floats, halves, words = (
            f"<{lanes[1:]} x {kind}>" if lanes else kind for kind in ("float", "bfloat", "i16")
        )
        text = _TEXT.format(
            name=_ROUND.format(lanes=lanes), floats=floats, halves=halves, words=words
        )
        text = ir.StringImm(text)
        changed = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, changed)
    return changed


def _round_bits(value: Any) -> Any:
    """Return the upper 16 bits of floats, rounded to nearest even; a NaN becomes a quiet one."""
    lanes = str(value.ty.dtype).removeprefix("float32")

    def word(number: int) -> Any:
        constant = tirx.const(number, "uint32")
        return tirx.Broadcast(constant, int(lanes[1:])) if lanes else constant

    bits = tirx.reinterpret(f"uint32{lanes}", value)
    upper = tirx.shift_right(bits, word(16))
    odd = tirx.bitwise_and(upper, word(1))
    nearest = tirx.shift_right(bits + word(0x7FFF) + odd, word(16))
    quiet = tirx.bitwise_or(upper, word(0x40))
    return tirx.Select(is_number(value), nearest, quiet).astype(f"uint16{lanes}")


def is_number(value: Any) -> Any:
    """Test, as a TVM expression, that a float is no NaN.

    TVM would take ``value == value`` to be true, and its ``!=`` is false for NaN.
    """
    kind, times, lanes = str(value.ty.dtype).partition("x")
    if kind not in ("float32", "float64"):
        kind = "float32"
    kind += times + lanes
    value = value.astype(kind)
    return value == tirx.reinterpret(kind, tirx.reinterpret(kind.replace("float", "uint"), value))


def decode_text(element: str, kind: str, result: str) -> str:
    """Convert an element as :func:`decode` does, in TVMScript."""
    if kind != "bfloat16":
        return f'T.cast({element}, "{result}")'
    wide = f'T.shift_left(T.cast({element}, "uint32"), T.uint32(16))'
    return f'T.cast(T.reinterpret("float32", {wide}), "{result}")'


def to_tensor(array: np.ndarray, kind: str) -> Any:
    """Convert an array in the container of ``kind`` to a TVM array."""
    if kind == "bfloat16":
        array = pack(array, kind).view(np.uint16).reshape(array.shape)
    # ascontiguousarray makes a vector of a scalar.
    return tvm.runtime.tensor(np.ascontiguousarray(array).reshape(array.shape))


def from_tensor(tensor: Any, kind: str) -> np.ndarray:
    """Return the values of a TVM array, in the container of ``kind``."""
    array: np.ndarray = tensor.numpy()
    if container_dtype(kind) == kind or dtype(kind).container == container_dtype(kind):
        return array
    return unpack(np.ascontiguousarray(array).reshape(-1).view(np.uint8), kind, array.shape)
