"""Lines of C and names in it."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["block", "identifier"]

#: What a tensor must not be called: words of C++, and names that every kernel uses.
_WORDS = """
alignas and asm auto bool break case catch char class const continue default delete do
double else enum explicit export extern false float for friend goto half if inline int
long namespace new not nullptr operator or private protected public register return
short signed sizeof static struct switch template this throw true try typedef typename
union unsigned using virtual void volatile while xor wmma nvcuda a b c e i k f x begin
end stage next step thread warp lane leaving live to from element clear multiply
multiply_add load_a load_b shared_memory threadIdx blockIdx blockDim gridDim warpSize main
copy_async commit_copies wait_copies multiply atomicAdd dim3 uint2 uint4 live leaving
FragmentA FragmentB FragmentC sum rintf i_add i_subtract i_multiply i_max i_min f_add
f_subtract f_multiply f_max f_min
"""
_TAKEN = frozenset(_WORDS.split())


def block(lines: Iterable[str]) -> list[str]:
    """Lines, two columns to the right; preprocessor lines stay."""
    return [line if line.startswith("#if") else f"  {line}" for line in lines]


def identifier(name: str) -> str:
    """A name as C can have it."""
    plain = re.sub(r"[^0-9A-Za-z_]", "_", name)
    return f"{plain}_" if plain in _TAKEN or plain[:1].isdigit() else plain
