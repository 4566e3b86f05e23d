"""Lines of C, and the names and types in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from amos.codegen.c.types import KEYWORDS, MACROS
from amos.errors import BuildError
from amos.ir import dtype
from amos.ir.index_text import Value, at_most, text

#: Names of CUDA's headers, and of the functions around every kernel.
GLOBALS = re.compile(
    r"half|nvcuda|wmma|threadIdx|blockIdx|blockDim|gridDim|warpSize|dim3|uint2|uint4|rintf|main"
    r"|atomic(?:Add|Max|Min)|shared_memory|clear|element|multiply_add|copy_async|commit_copies|wait_copies"
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
#: Largest value of an ``int``; places in larger tensors are computed with 64 bits.
_INT = 2**31 - 1
INLINE = "__device__ __forceinline__"
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


def element_at(shape: Sequence[int], indices: Sequence[Value]) -> str:
    """C text of the place of an element in a row-major tensor."""
    total: Value = 0
    steps = [prod(shape[d + 1 :]) for d in range(len(shape))]
    for at, step in zip(indices, steps, strict=True):
        total = total + at * step
    if at_most(total) <= _INT:
        return text(total)
    terms = [
        f"static_cast<long long>({text(i)}) * {s}" for i, s in zip(indices, steps, strict=True)
    ]
    return " + ".join(terms)


def cuda_type(name: str) -> str:
    """How a canonical type is called in C++, for an element in memory.

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


def block(lines: Iterable[str]) -> list[str]:
    """Lines, two columns to the right; preprocessor lines stay."""
    return [line if line.startswith("#if") else f"  {line}" for line in lines]


def identifier(loop: str) -> str:
    """A loop's name as C can have it: tiles have a dot, which keeps them apart."""
    return loop.replace(".", "_")


def unrolled(name: str, count: int, body: Iterable[str]) -> list[str]:
    """An unrolled loop."""
    head = f"for (int {name} = 0; {name} < {count}; ++{name}) {{"
    return ["#pragma unroll", head, *block(body), "}"]


def over_fragments(tile: Mapping[str, int], loops: Sequence[str], body: list[str]) -> list[str]:
    """Unrolled loops over fragments of a warp; ``tile`` is how many there are along each loop."""
    for name in reversed(loops):
        body = unrolled(f"t_{identifier(name)}", tile[name], body)
    return body


def fragment_at(tile: Mapping[str, int], loops: Sequence[str]) -> str:
    """Position of a fragment among those that :func:`over_fragments` visits."""
    code = ""
    for name in loops:
        t = f"t_{identifier(name)}"
        code = f"({code}) * {tile[name]} + {t}" if code else t
    return code or "0"
