"""Instructions on the vector registers of CPUs, described and implemented in one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import Memory

__all__ = ["COPIES", "INTEL", "LLVM_MCA", "Described", "instruction", "integer_vector"]

Described = Iterator[Intrinsic | Implementation]

INTEL = "Intel 64 and IA-32 Architectures Software Developer's Manual, volume "
#: Source of figures that no manual has.
LLVM_MCA = "scheduling model of LLVM 22 (llvm-mca)"
_HEADERS = "#include <immintrin.h>"
#: Headers of C that copies a few elements into a register.
COPIES = _HEADERS + "\n#include <string.h>"


def instruction(
    name: str,
    compute: str,
    extents: Mapping[str, int],
    kinds: tuple[str, str, str],
    *,
    requires: tuple[str, ...],
    llvm: str,
    c: str,
    flags: tuple[str, ...],
    headers: str = _HEADERS,
    machine: str = "x86_64",
    attributes: tuple[str, ...] = (),
    partial: int = 1,
    shared: str = "",
    embedded: str = "",
    staged: str = "",
    **about: Any,
) -> Described:
    """An instruction whose fragments are contiguous in memory, and its two implementations.

    Args:
        name, compute, extents: see :meth:`Intrinsic.define`.
        kinds: dtypes of ``Src1``, ``Src2`` and ``Dst``.
        requires: features of a CPU that has it.
        llvm, c: what it is in TVMScript and in C.
        flags, headers: for the C compiler.
        machine, attributes, partial: for LLVM; see :class:`Implementation`.
        shared: source that the hardware replicates along ``i1``.
        embedded: source that the instruction reads from memory itself.
        staged: dtype in which sources are staged, if another than their own.
        about: the other arguments of :meth:`Intrinsic.define`.
    """
    # What all lanes share comes first in the manuals, and so does its address.
    symbols = ("addr_b", "addr_a") if shared == "Src2" else ("addr_a", "addr_b")
    loads = [
        Memory.parse(
            f"reg.{source}[] = memory.{source}[{address}]",
            broadcast=("i1",) if source == shared else (),
            explicit=source != embedded,
            staged=staged,
        )
        for source, address in zip(("Src1", "Src2"), symbols, strict=True)
    ]
    yield Intrinsic.define(
        name,
        compute,
        extents,
        dict(zip(("Src1", "Src2", "Dst"), kinds, strict=True)),
        [*loads, "memory.Dst[addr_c] = reg.Dst[]"],
        requires=requires,
        **about,
    )
    yield Implementation(name, "llvm", llvm, machine, requires, attributes, partial=partial)
    yield Implementation(name, "c", c, machine, requires, flags, headers)


def integer_vector(lanes: int) -> tuple[str, str, str]:
    """How C spells a vector of integers: prefix of functions, type, suffix for the whole.

    Args:
        lanes: of 32 bits; 16 for 512 bits, 8 for 256.

    >>> integer_vector(16)
    ('_mm512', '__m512i', 'si512')
    """
    bits = 32 * lanes
    return "_mm512" if bits == 512 else "_mm256", f"__m{bits}i", f"si{bits}"
