"""Functions of C for epilogues, on scalars and on GNU C vectors.

Each is exact and needs no library: where the CPU has no instruction for it, or is not x86, the text
is plain arithmetic that any compiler vectorizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from amos.codegen.c.types import c_type, short, split, vector_bytes

#: Bytes of the longest vector that a register holds; longer ones are taken lane by lane.
WIDEST = 64


@dataclass(frozen=True)
class _Instruction:
    """An intrinsic function, where the compiler says that the CPU has it."""

    macro: str
    text: str


def _x86(name: str, macros: tuple[str, str, str]) -> dict[int, _Instruction]:
    """Return instructions by the bytes of a vector; ``{0}`` is the length in a function's name."""
    return {
        bits // 8: _Instruction(macro, name.format("" if bits == 128 else bits, bits))
        for bits, macro in zip((128, 256, 512), macros, strict=True)
    }


_FLOATS = ("__SSE2__", "__AVX__", "__AVX512F__")
_INTEGERS = ("__SSE4_1__", "__AVX2__", "__AVX512F__")
_FUSED = ("__FMA__", "__FMA__", "__AVX512F__")
#: Instructions by operation and scalar type. Those for floats return the second operand
#: unless the first is larger, or smaller: what :mod:`amos.ir.epilogue` states.
_INSTRUCTIONS = {
    ("max", "float32"): _x86("_mm{0}_max_ps((__m{1})a, (__m{1})b)", _FLOATS),
    ("min", "float32"): _x86("_mm{0}_min_ps((__m{1})a, (__m{1})b)", _FLOATS),
    ("max", "int32"): _x86("_mm{0}_max_epi32((__m{1}i)a, (__m{1}i)b)", _INTEGERS),
    ("min", "int32"): _x86("_mm{0}_min_epi32((__m{1}i)a, (__m{1}i)b)", _INTEGERS),
    ("sqrt", "float32"): _x86("_mm{0}_sqrt_ps((__m{1})x)", _FLOATS),
    ("fma", "float32"): _x86("_mm{0}_fmadd_ps((__m{1})a, (__m{1})b, (__m{1})c)", _FUSED),
    ("nearest", "float32"): _x86("_mm{0}_cvtps_epi32((__m{1})x)", _FLOATS),
    ("round", "float32"): {
        **_x86("_mm{0}_round_ps((__m{1})x, 8)", ("__SSE4_1__", "__AVX__", "")),
        64: _Instruction("__AVX512F__", "_mm512_roundscale_ps((__m512)x, 8)"),
    },
}
_SIGNS = {"max": ">", "min": "<"}


def operation(name: str, kind: str) -> str:
    """Return the name of an operation's function on a TVM type.

    >>> operation("max", "float32x16"), operation("nearest", "float32")
    ('max_f32x16', 'nearest_f32')
    """
    return f"{name}_{short(kind)}"


def definitions(used: set[tuple[str, str]]) -> tuple[str, set[str]]:
    """Write the functions; return also the types whose helpers they need.

    Args:
        used: operations, ``max``, ``min``, ``round``, ``nearest`` (an ``int32``), ``sqrt``,
            ``fma`` or, on vectors, ``select`` (by a mask), each with the TVM type that it
            works on.
    """
    needed = set(used)
    for name, kind in used:
        if name == "nearest":
            needed.add(("round", kind))
        if name in ("sqrt", "fma"):
            needed.add((name, split(kind)[0]))
    order = ["max", "min", "select", "round", "nearest", "sqrt", "fma"]
    texts, types = [], set()
    for name, kind in sorted(needed, key=lambda item: (order.index(item[0]), item[1])):
        lanes = split(kind)[1]
        if lanes > 1:
            types |= {kind, _mask(kind)}
        texts.append(_vector(name, kind) if lanes > 1 else _scalar(name, kind))
    return "".join(texts), types


#: Functions of floats. Those of the compiler set ``errno`` by calling a library.
_TEXTS = {
    "sqrt": """static inline float sqrt_f32(float x) {
#if defined(__SSE2__)
  return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#elif defined(__aarch64__)
  float root;
  __asm__("fsqrt %s0, %s1" : "=w"(root) : "w"(x));
  return root;
#else
  return __builtin_sqrtf(x);
#endif
}
""",
    "fma": """/* a * b + c, rounded once. A double holds the product, and the sum but for what is
 * cut off: then it is made odd, so that the second rounding is that of the whole. */
static inline float fma_f32(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  double product = (double)a * b, sum = product + c;
  double back = sum - product, rest = (product - (sum - back)) + (c - back);
  int64_t bits;
  memcpy(&bits, &sum, sizeof bits);
  if ((rest < 0 || rest > 0) && !(bits & 1)) bits += (rest > 0) == (sum > 0) ? 1 : -1;
  memcpy(&sum, &bits, sizeof sum);
  return (float)sum;
#endif
}
""",
}


def _scalar(name: str, kind: str) -> str:
    element, called = c_type(kind), operation(name, kind)
    if name in _SIGNS:
        body = f"  return a {_SIGNS[name]} b ? a : b;\n"
        return f"static inline {element} {called}({element} a, {element} b) {{\n{body}}}\n"
    if name in _TEXTS:
        return _TEXTS[name]
    if name == "nearest":
        return (
            f"static inline int32_t {called}({element} x) {{\n  return (int32_t)round_f32(x);\n}}\n"
        )
    return f"""/* The nearest integer, ties to even; from 2^23 on every float is one. */
static inline {element} {called}({element} x) {{
#if defined(__SSE4_1__) || defined(__aarch64__)
  return __builtin_rintf(x);
#else
  {element} size = __builtin_fabsf(x);
  {element} near = __builtin_copysignf((size + 0x1p23f) - 0x1p23f, x);
  return size < 0x1p23f ? near : x;
#endif
}}
"""


def _mask(kind: str) -> str:
    """Return the type of a comparison of vectors of this type."""
    lanes = split(kind)[1]
    return f"int{8 * vector_bytes(kind) // lanes}x{lanes}"


def _vector(name: str, kind: str) -> str:
    many, bits = c_type(kind), c_type(_mask(kind))
    result = bits if name == "nearest" else many
    parameters = {
        "select": f"{bits} mask, {many} yes, {many} no",
        "fma": f"{many} a, {many} b, {many} c",
        **dict.fromkeys(("round", "nearest", "sqrt"), f"{many} x"),
    }
    arguments = parameters.get(name, f"{many} a, {many} b")
    body = _plain(name, kind)
    instruction = _INSTRUCTIONS.get((name, split(kind)[0]), {}).get(vector_bytes(kind))
    if instruction is not None:
        call = f"  return ({result}){instruction.text};\n"
        body = f"#ifdef {instruction.macro}\n{call}#else\n{body}#endif\n"
    return f"static inline {result} {operation(name, kind)}({arguments}) {{\n{body}}}\n"


def _plain(name: str, kind: str) -> str:
    """Write a body in vector arithmetic alone, or lane by lane."""
    many, bits, rounding = c_type(kind), c_type(_mask(kind)), operation("round", kind)
    if name in _TEXTS:
        lanes, scalar_call = split(kind)[1], operation(name, split(kind)[0])
        arguments = "x[n]" if name == "sqrt" else "a[n], b[n], c[n]"
        return (
            f"  {many} result;\n"
            f"  for (int n = 0; n < {lanes}; ++n) result[n] = {scalar_call}({arguments});\n"
            "  return result;\n"
        )
    if name == "select":
        return f"  return ({many})((mask & ({bits})yes) | (~mask & ({bits})no));\n"
    if name in _SIGNS:
        return (
            f"  {bits} mask = ({bits})(a {_SIGNS[name]} b);\n"
            f"  return ({many})((mask & ({bits})a) | (~mask & ({bits})b));\n"
        )
    if name == "nearest":
        return f"  return __builtin_convertvector({rounding}(x), {bits});\n"
    return f"""  {bits} sign = ({bits})x & INT32_MIN;
  {many} size = ({many})(({bits})x ^ sign);
  {bits} near = ({bits})((size + 0x1p23f) - 0x1p23f) | sign;
  {bits} mask = ({bits})(size < 0x1p23f);
  return ({many})((mask & near) | (~mask & ({bits})x));
"""
