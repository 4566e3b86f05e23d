"""Instructions on the vector registers of CPUs, described and implemented in one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import Memory

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
    kinds: Sequence[str],
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
    """Describe an instruction with contiguous fragments, and its two implementations.

    Args:
        kinds: dtypes of ``Src1``, of ``Src2`` if there is one, and of ``Dst``.
        requires: features of a CPU that has it.
        llvm, c: implementations in TVMScript and in C.
        flags, headers: for the C compiler.
        machine, attributes, partial: for LLVM; see :class:`Implementation`.
        shared: source that the hardware replicates along ``i1``.
        embedded: source that the instruction reads from memory itself.
        staged: dtype in which sources are staged, if not their own.
        about: the other arguments of :meth:`Intrinsic.define`.
    """
    # Manuals name the broadcast operand first, so its address comes first.
    symbols = ("addr_b", "addr_a") if shared == "Src2" else ("addr_a", "addr_b")
    loads = [
        Memory.parse(
            f"reg.{source}[] = memory.{source}[{address}]",
            broadcast=("i1",) if source == shared else (),
            explicit=source != embedded,
            staged=staged,
        )
        for source, address in zip(("Src1", "Src2")[: len(kinds) - 1], symbols, strict=False)
    ]
    yield Intrinsic.define(
        name,
        compute,
        extents,
        dict(zip((*("Src1", "Src2")[: len(kinds) - 1], "Dst"), kinds, strict=True)),
        [*loads, "memory.Dst[addr_c] = reg.Dst[]"],
        requires=requires,
        **about,
    )
    yield Implementation(name, "llvm", llvm, machine, requires, attributes, partial=partial)
    yield Implementation(name, "c", c, machine, requires, flags, headers)


@dataclass(frozen=True)
class SharedGroup:
    """Integer sources: one fills 32-bit lanes, and all lanes share 32 bits of the other.

    Attributes:
        lanes: how many there are.
        kinds: dtypes in which ``Src1`` and ``Src2`` are read, of the same width.
        first_fills: whether ``Src1`` fills the lanes, not ``Src2``.
    """

    lanes: int
    kinds: tuple[str, str]
    first_fills: bool

    @property
    def alone(self) -> str:
        """The source that all lanes share."""
        return "Src2" if self.first_fills else "Src1"

    @property
    def rows(self) -> str:
        """The source that fills the lanes."""
        return "Src1" if self.first_fills else "Src2"

    @property
    def bits(self) -> int:
        """Bits of an element of either source."""
        return int(self.kinds[0].lstrip("uint"))

    @property
    def depth(self) -> int:
        """Number of products that each lane adds up."""
        return 32 // self.bits

    @property
    def compute(self) -> str:
        """The statement of a call."""
        product = "Src1[i1, r1] * Src2[r1]" if self.first_fills else "Src1[r1] * Src2[i1, r1]"
        return f"Dst[i1] += {product}"

    def in_order(self, broadcast: str, filled: str) -> tuple[str, str]:
        """Order the broadcast source and the filled one as ``Src1`` and ``Src2``."""
        return (filled, broadcast) if self.first_fills else (broadcast, filled)

    @property
    def llvm(self) -> tuple[str, str]:
        """``Src1`` and ``Src2`` in TVMScript, as vectors of signed elements."""
        group = f'{self.alone}.vload([0], "{self._kind(self.alone)}x{self.depth}")'
        broadcast = f"""T.reinterpret(
        "int{self.bits}x{self.lanes * self.depth}",
        T.broadcast(T.reinterpret("int32", {group}), {self.lanes}),
    )"""
        return self.in_order(broadcast, self._fill(self.rows))

    def _kind(self, source: str) -> str:
        return dict(zip(("Src1", "Src2"), self.kinds, strict=True))[source]

    def _fill(self, source: str) -> str:
        """Write a source that fills the lanes in TVMScript, as a vector of signed elements."""
        signed, count = f"int{self.bits}", self.lanes * self.depth
        kind = self._kind(source)
        filled = f'{source}.vload([0, 0], "{kind}x{count}")'
        return filled if kind == signed else f'T.reinterpret("{signed}x{count}", {filled})'

    def c(self, total: str) -> str:
        """Write C that stores ``total``, of ``sum``, ``every`` and ``lanes``, in ``Dst``."""
        mm, vector, whole = integer_vector(self.lanes)
        return f"""
int group;
memcpy(&group, {self.alone}, 4);
{vector} every = {mm}_set1_epi32(group);
{vector} lanes = {mm}_loadu_{whole}((const {vector} *){self.rows});
{vector} sum = {mm}_loadu_{whole}((const {vector} *)Dst);
sum = {total};
{mm}_storeu_{whole}(({vector} *)Dst, sum);
"""


@dataclass(frozen=True)
class FilledLanes(SharedGroup):
    """Two integer sources that both fill 32-bit lanes."""

    first_fills: bool = False

    @property
    def alone(self) -> str:
        """No source is shared."""
        return ""

    @property
    def compute(self) -> str:
        """The statement of a call."""
        return "Dst[i1] += Src1[i1, r1] * Src2[i1, r1]"

    @property
    def llvm(self) -> tuple[str, str]:
        """``Src1`` and ``Src2`` in TVMScript, as vectors of signed elements."""
        return self._fill("Src1"), self._fill("Src2")

    def c(self, total: str) -> str:
        """Write C that stores ``total``, of ``sum``, ``every`` and ``lanes``, in ``Dst``."""
        mm, vector, whole = integer_vector(self.lanes)
        return f"""
{vector} every = {mm}_loadu_{whole}((const {vector} *)Src1);
{vector} lanes = {mm}_loadu_{whole}((const {vector} *)Src2);
{vector} sum = {mm}_loadu_{whole}((const {vector} *)Dst);
sum = {total};
{mm}_storeu_{whole}(({vector} *)Dst, sum);
"""


def integer_vector(lanes: int) -> tuple[str, str, str]:
    """Spell a vector of integers in C: prefix of functions, type, suffix for the whole.

    >>> integer_vector(16)
    ('_mm512', '__m512i', 'si512')
    """
    bits = 32 * lanes
    return "_mm512" if bits == 512 else "_mm256", f"__m{bits}i", f"si{bits}"
