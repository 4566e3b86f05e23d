"""How C spells the vectors of integers that AVX2 and AVX-512 compute with."""

from __future__ import annotations

__all__ = ["VNNI_FLAGS", "VNNI_WIDTHS", "integer_vector"]

#: Lanes of 32 bits of each form of ``vpdpbusd``, and the features that it needs.
VNNI_WIDTHS = ((16, ("avx512_vnni",)), (8, ("avx512_vnni", "avx512vl")))
#: What a C compiler is told so that it knows both.
VNNI_FLAGS = ("-mavx512f", "-mavx512vl", "-mavx512vnni")


def integer_vector(lanes: int) -> tuple[str, str, str]:
    """Prefix of the functions, the type, and the suffix of those on the whole register.

    Args:
        lanes: of 32 bits; 16 for 512 bits, 8 for 256.

    >>> integer_vector(16)
    ('_mm512', '__m512i', 'si512')
    """
    bits = 32 * lanes
    return "_mm512" if bits == 512 else "_mm256", f"__m{bits}i", f"si{bits}"
