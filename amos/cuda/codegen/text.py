"""Names and types in CUDA C++."""

from __future__ import annotations

import re

from amos.codegen.c.types import KEYWORDS, MACROS
from amos.errors import BuildError
from amos.ir import dtype

#: Names of CUDA's headers, and of the functions around every kernel.
GLOBALS = re.compile(
    r"half|nvcuda|wmma|threadIdx|blockIdx|blockDim|gridDim|warpSize|dim3|uint2|uint4|rintf|main"
    r"|atomic(?:Add|Max|Min)|shared_memory|clear|element|multiply_add|copy_async|commit_copies"
    r"|wait_copies|read_unaligned"
    r"|amos_emulation|Fragment[ABC]|[if]_\w+|cuda\w*"
    r"|(?:load|store|lane)_\w+"
)
#: Names that an operator must not have: those, names that a kernel's text uses itself, and names
#: that it derives from others.
OWN = re.compile(
    f"{KEYWORDS}|{MACROS}|{GLOBALS.pattern}"
    r"|[abceikfx]|[ir]\d+|begin|end|stage|next|step|row|column|reduction|thread|warp|lane|leaving|live"
    r"|to|from|multiply|sum|part|stream|allowed|cleared|\w+_tile"
    r"|(?:first|warp|t|at|from|shared|fetch|put|kept|launch)_\w*"
)
INLINE = "__device__ __forceinline__"
#: Threads of a block of the kernels that run before and behind the main one.
ELEMENT_THREADS = 256
_TYPES = {
    "float16": "half",
    "bfloat16": "__nv_bfloat16",
    "tfloat32": "float",
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    # There is no arithmetic on eight-bit floats in memory: they are moved as bytes.
    "float8_e4m3": "unsigned char",
    "float8_e5m2": "unsigned char",
}


def cuda_type(name: str) -> str:
    """Return the C++ type of an element in memory.

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
