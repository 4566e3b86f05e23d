"""C that queries the features of a CPU by CPUID.

``__builtin_cpu_supports`` calls the compiler's runtime library, and ziglang's reports no
features on any CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_EAX, _EBX, _ECX, _EDX = range(4)
#: Registers that the system must save for a feature: the state components of XCR0.
_AVX, _AVX512, _TILES = 0x6, 0xE6, 0x60000
#: Leaf, subleaf, register and bit of CPUID, and the state, by the system's name of a feature
#: (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID; volume 1, 13.1).
_BITS = {
    "fma": (1, 0, _ECX, 12, _AVX),
    "f16c": (1, 0, _ECX, 29, _AVX),
    "avx2": (7, 0, _EBX, 5, _AVX),
    "avx512f": (7, 0, _EBX, 16, _AVX512),
    "avx512dq": (7, 0, _EBX, 17, _AVX512),
    "avx512bw": (7, 0, _EBX, 30, _AVX512),
    "avx512vl": (7, 0, _EBX, 31, _AVX512),
    "avx512_vnni": (7, 0, _ECX, 11, _AVX512),
    "amx_bf16": (7, 0, _EDX, 22, _TILES),
    "amx_tile": (7, 0, _EDX, 24, _TILES),
    "amx_int8": (7, 0, _EDX, 25, _TILES),
    "avx_vnni": (7, 1, _EAX, 4, _AVX),
    "avx512_bf16": (7, 1, _EAX, 5, _AVX512),
}
_HELPER = """
#include <cpuid.h>

/* Whether the CPU sets a bit of CPUID, and the system saves the registers that belong to it. */
static int amos_cpu_has(unsigned leaf, unsigned subleaf, int word, int bit, unsigned state) {
  unsigned words[4], low, high;
  if (!__get_cpuid(1, words, words + 1, words + 2, words + 3) || !(words[2] >> 27 & 1)) return 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & state) == state &&
         __get_cpuid_count(leaf, subleaf, words, words + 1, words + 2, words + 3) &&
         (words[word] >> bit & 1);
}
"""


@dataclass(frozen=True)
class FeatureQuery:
    """C that queries features: definitions, and an expression for each, true if the CPU has it."""

    helper: str
    tests: tuple[str, ...]


def feature_query(features: Sequence[str]) -> FeatureQuery:
    """Write C that queries features by the system's names.

    >>> feature_query(["avx2"]).tests
    ('amos_cpu_has(7, 0, 1, 5, 0x6)',)
    """
    helper = _HELPER if any(name in _BITS for name in features) else ""
    return FeatureQuery(helper, tuple(map(_feature_test, features)))


def _feature_test(feature: str) -> str:
    if feature not in _BITS:
        name = feature.replace("_", "-" if feature.startswith("amx") else "")  # as GNU C spells it
        return f'__builtin_cpu_supports("{name}") != 0'
    leaf, subleaf, register, bit, state = _BITS[feature]
    return f"amos_cpu_has({leaf}, {subleaf}, {register}, {bit}, {state:#x})"
