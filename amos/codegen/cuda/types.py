"""How the types of tensors and accumulators are written in CUDA C++."""

from __future__ import annotations

from dataclasses import dataclass

from amos.errors import BuildError
from amos.ir import dtype

__all__ = ["CudaType", "cuda_type"]


@dataclass(frozen=True)
class CudaType:
    """An element type.

    Attributes:
        name: in C++, for an element in memory.
        zero: its zero.
        bytes: its size.
        atomic: whether ``atomicAdd`` takes it on every architecture here.
    """

    name: str
    zero: str
    bytes: int
    atomic: bool = False


_TYPES = {
    "float16": CudaType("half", "half(0.0f)", 2),
    "bfloat16": CudaType("__nv_bfloat16", "__nv_bfloat16(0.0f)", 2),
    "tfloat32": CudaType("float", "0.0f", 4),
    "float32": CudaType("float", "0.0f", 4, atomic=True),
    "float64": CudaType("double", "0.0", 8, atomic=True),
    "int8": CudaType("signed char", "(signed char)0", 1),
    "uint8": CudaType("unsigned char", "(unsigned char)0", 1),
    "int16": CudaType("short", "(short)0", 2),
    "uint16": CudaType("unsigned short", "(unsigned short)0", 2),
    "int32": CudaType("int", "0", 4, atomic=True),
    # There is no arithmetic on eight-bit floats in memory: they are moved as bytes.
    "float8_e4m3": CudaType("unsigned char", "(unsigned char)0", 1),
    "float8_e5m2": CudaType("unsigned char", "(unsigned char)0", 1),
}


def cuda_type(name: str) -> CudaType:
    """Look up a canonical type.

    Raises:
        BuildError: elements of that type do not fill whole bytes, or kernels have no
            use for it.
    """
    if name not in _TYPES:
        raise BuildError(
            f"CUDA kernels have no elements of type {dtype(name).short}; "
            f"known are {', '.join(dtype(n).short for n in _TYPES)}"
        )
    return _TYPES[name]
