"""Lines of C and names in it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from amos.codegen.c.types import KEYWORDS, MACROS

__all__ = ["GLOBALS", "OWN", "block", "identifier"]

#: What CUDA's headers, and the functions around every kernel, are called.
GLOBALS = re.compile(
    r"half|nvcuda|wmma|threadIdx|blockIdx|blockDim|gridDim|warpSize|dim3|uint2|uint4|rintf|main"
    r"|atomicAdd|shared_memory|clear|element|multiply_add|copy_async|commit_copies|wait_copies"
    r"|amos_emulation|Fragment[ABC]|[if]_(?:add|subtract|multiply|max|min)|cuda\w*"
    r"|(?:load|store|lane)_\w+"
)
#: What names of an operator must not be: all that, what a kernel's text uses itself, and what
#: it derives from other names.
OWN = re.compile(
    f"{KEYWORDS}|{MACROS}|{GLOBALS.pattern}"
    r"|[abceikfx]|[ir]\d+|begin|end|stage|next|step|row|column|reduction|thread|warp|lane|leaving|live"
    r"|to|from|multiply|sum|stream|allowed|cleared|\w+_tile"
    r"|(?:first|warp|t|at|from|shared|fetch|put|kept|launch)_\w*"
)


def block(lines: Iterable[str]) -> list[str]:
    """Lines, two columns to the right; preprocessor lines stay."""
    return [line if line.startswith("#if") else f"  {line}" for line in lines]


def identifier(loop: str) -> str:
    """A loop's name as C can have it: tiles have a dot, which keeps them apart."""
    return loop.replace(".", "_")
