"""C types, vector types of GNU C, and the C spelling of LLVM's intrinsic functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from amos.errors import ExportError

#: C type and short name of each scalar type; bfloat16 never gets here (see ``arrays.held``).
_SCALARS = {
    "bool": ("uint8_t", "b", 1),
    "uint8": ("uint8_t", "u8", 1),
    "int8": ("int8_t", "i8", 1),
    "uint16": ("uint16_t", "u16", 2),
    "int16": ("int16_t", "i16", 2),
    "uint32": ("uint32_t", "u32", 4),
    "int32": ("int32_t", "i32", 4),
    "uint64": ("uint64_t", "u64", 8),
    "int64": ("int64_t", "i64", 8),
    "float16": ("_Float16", "f16", 2),
    "float32": ("float", "f32", 4),
    "float64": ("double", "f64", 8),
}

#: Keywords of C and C++: a header is read by both.
KEYWORDS = (
    r"alignas|alignof|and|and_eq|asm|auto|bitand|bitor|bool|break|case|catch|char|class"
    r"|co_await|co_return|co_yield|compl|concept|const|const_cast|consteval|constexpr|constinit"
    r"|continue|decltype|default|delete|do|double|dynamic_cast|else|enum|explicit|export|extern"
    r"|false|float|for|friend|goto|if|inline|int|long|mutable|namespace|new|noexcept|not|not_eq"
    r"|nullptr|operator|or|or_eq|private|protected|public|register|reinterpret_cast|requires"
    r"|restrict|return|short|signed|sizeof|static|static_assert|static_cast|struct|switch|template"
    r"|this|thread_local|throw|true|try|typedef|typeid|typename|typeof|typeof_unqual|union"
    r"|unsigned|using|virtual|void|volatile|while|xor|xor_eq"
)
#: Names that headers define: macros, types, and names of the compiler and its intrinsics.
MACROS = r"[A-Z][A-Z0-9_]+|\w+_t|_[A-Z_]\w*|_mm\w*|errno|stdin|stdout|stderr|linux|unix|i386"
#: Names that an operator must not have in C: those, and names that a kernel's text uses itself.
OWN = re.compile(
    f"{KEYWORDS}|{MACROS}"
    r"|main|workspace|given|packed(?:_\w+)?|lane|memcpy|(?:amos|call)_\w+|(?:b|[uif]\d+)x\d+"
    r"|(?:load|store|all|max|min|select|round|nearest|sqrt|fma)_(?:b|[uif]\d+)(?:x\d+)?"
)


@dataclass(frozen=True)
class VectorCall:
    """A function of ``immintrin.h``, and the C type to which its arguments are cast."""

    function: str
    kind: str


#: By LLVM's name, and the number of lanes where the name does not say it.
CALLS: dict[str, VectorCall] = {
    **{
        f"llvm.x86.avx512.vp{name}.{bits}": VectorCall(f"_mm{bits}_{name}_epi32", f"__m{bits}i")
        for name in ("dpbusd", "dpbusds", "dpwssd")
        for bits in (512, 256)
    },
    "llvm.fma:float32x16": VectorCall("_mm512_fmadd_ps", "__m512"),
    "llvm.fma:float32x8": VectorCall("_mm256_fmadd_ps", "__m256"),
}
#: C in place of functions that an implementation hands to LLVM as text of its own.
EXTERNS: dict[str, str] = {
    f"amos_dpbf16ps_{bits}": f"""static inline void amos_dpbf16ps_{bits}(float *sum, \
const uint16_t *pair, const uint16_t *lanes) {{
  int32_t two;
  __m{bits}i all;
  memcpy(&two, pair, sizeof two);
  memcpy(&all, lanes, sizeof all);
  _mm{bits}_storeu_ps(sum, _mm{bits}_dpbf16_ps(_mm{bits}_loadu_ps(sum),
      (__m{bits}bh)_mm{bits}_set1_epi32(two), (__m{bits}bh)all));
}}
"""
    for bits in (512, 256)
}


#: C of the statements on tile registers, whose numbers are constants in the text.
TILE_CALLS: dict[str, str] = {
    "llvm.x86.tilezero": "_tile_zero",
    "llvm.x86.tileloadd64": "_tile_loadd",
    "llvm.x86.tilestored64": "_tile_stored",
    "llvm.x86.tilerelease": "_tile_release",
    **{
        f"llvm.x86.t{name}": f"_tile_{name}"
        for name in ("dpbusd", "dpbssd", "dpbsud", "dpbuud", "dpbf16ps")
    },
}


def split(name: str) -> tuple[str, int]:
    """Split a TVM type into its scalar type and its number of lanes.

    >>> split("int8x64"), split("int32"), split("boolx16")
    (('int8', 64), ('int32', 1), ('bool', 16))
    """
    match = re.fullmatch(r"([a-z]+?\d*)(?:x(\d+))?", name)
    if match is None or match[1] not in _SCALARS:
        raise ExportError(f"type {name!r} has no form in C here")
    return match[1], int(match[2] or 1)


def c_type(name: str) -> str:
    """Return the C name of a TVM type.

    >>> c_type("uint8"), c_type("int8x64")
    ('uint8_t', 'i8x64')
    """
    scalar, lanes = split(name)
    return _SCALARS[scalar][0] if lanes == 1 else f"{_SCALARS[scalar][1]}x{lanes}"


def short(name: str) -> str:
    """Return a TVM type's short name in the names of functions.

    >>> short("float32"), short("int8x64")
    ('f32', 'i8x64')
    """
    scalar, lanes = split(name)
    return _SCALARS[scalar][1] + (f"x{lanes}" if lanes > 1 else "")


def vector_bytes(name: str) -> int:
    """Return the size of a value, in bytes."""
    scalar, lanes = split(name)
    return _SCALARS[scalar][2] * lanes


def helpers(types: set[str]) -> str:
    """Define the vector types that a text uses: load, store and replicate."""
    lines = []
    for name in sorted(types, key=lambda n: (vector_bytes(n), n)):
        scalar, lanes = split(name)
        element = _SCALARS[scalar][0]
        if lanes == 1:
            lines.append(
                f"static inline {element} load_{short(name)}(const void *from) {{\n"
                f"  {element} value;\n  memcpy(&value, from, sizeof value);\n  return value;\n}}\n"
            )
            continue
        kind = c_type(name)
        lines.append(
            f"typedef {element} {kind} __attribute__((vector_size({vector_bytes(name)})));\n"
            f"static inline {kind} load_{kind}(const void *from) {{\n"
            f"  {kind} value;\n  memcpy(&value, from, sizeof value);\n  return value;\n}}\n"
            f"static inline void store_{kind}(void *to, {kind} value) {{\n"
            f"  memcpy(to, &value, sizeof value);\n}}\n"
            f"static inline {kind} all_{kind}({element} value) {{\n"
            f"  return {_replicate(scalar, kind, lanes)};\n}}\n"
        )
    return "".join(lines)


def _replicate(scalar: str, kind: str, lanes: int) -> str:
    """Write a vector of ``value`` in each lane.

    Where a CPU has no arithmetic in half precision, GNU C computes such a difference in
    float, and refuses it as a vector of halves.
    """
    if scalar == "float16":
        return f"({kind}){{{', '.join(['value'] * lanes)}}}"
    return f"value - ({kind}){{0}}"
