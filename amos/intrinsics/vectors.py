"""What descriptions of instructions on the vector registers of CPUs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import Memory

__all__ = ["COPIES", "LLVM_MCA", "integer_vector", "vector_intrinsic", "x86_sources"]

#: Source of figures that no manual has.
LLVM_MCA = "scheduling model of LLVM 22 (llvm-mca)"
_HEADERS = "#include <immintrin.h>"
#: Headers of C that copies a few elements into a register.
COPIES = _HEADERS + "\n#include <string.h>"


def vector_intrinsic(
    name: str,
    compute: str,
    extents: Mapping[str, int],
    kinds: tuple[str, str, str],
    *,
    shared: str = "",
    embedded: str = "",
    staged: str = "",
    **about: Any,
) -> Intrinsic:
    """An intrinsic on vector registers, whose fragments are contiguous in memory.

    Args:
        name, compute, extents: see :meth:`Intrinsic.define`.
        kinds: dtypes of ``Src1``, ``Src2`` and ``Dst``.
        shared: source that the hardware replicates along ``i1``.
        embedded: source that the instruction reads from memory itself.
        staged: dtype in which sources are staged, if another than their own.
        about: the other arguments of :meth:`Intrinsic.define`.
    """
    # What all lanes share comes first in the manuals, and so does its address.
    address = {"Src1": "addr_a", "Src2": "addr_b"}
    if shared == "Src2":
        address = {"Src1": "addr_b", "Src2": "addr_a"}
    loads = [
        Memory.parse(
            f"reg.{source}[] = memory.{source}[{address[source]}]",
            broadcast=("i1",) if source == shared else (),
            explicit=source != embedded,
            staged=staged,
        )
        for source in ("Src1", "Src2")
    ]
    return Intrinsic.define(
        name,
        compute,
        extents,
        dict(zip(("Src1", "Src2", "Dst"), kinds, strict=True)),
        [*loads, "memory.Dst[addr_c] = reg.Dst[]"],
        **about,
    )


def x86_sources(
    name: str,
    requires: tuple[str, ...],
    *,
    llvm: str,
    c: str,
    flags: tuple[str, ...],
    headers: str = _HEADERS,
    partial: int = 1,
) -> tuple[Implementation, Implementation]:
    """Both implementations of an x86 instruction, as TVMScript and as C."""
    return (
        Implementation(name, "llvm", llvm, "x86_64", requires, partial=partial),
        Implementation(name, "c", c, "x86_64", requires, flags, headers),
    )


def integer_vector(lanes: int) -> tuple[str, str, str]:
    """How C spells a vector of integers: prefix of functions, type, suffix for the whole.

    Args:
        lanes: of 32 bits; 16 for 512 bits, 8 for 256.

    >>> integer_vector(16)
    ('_mm512', '__m512i', 'si512')
    """
    bits = 32 * lanes
    return "_mm512" if bits == 512 else "_mm256", f"__m{bits}i", f"si{bits}"
