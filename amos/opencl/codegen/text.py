"""Names, types and arithmetic of OpenCL C."""

from __future__ import annotations

import re
from collections.abc import Sequence

from amos.codegen.c.types import KEYWORDS, MACROS
from amos.codegen.device.arithmetic import Dialect
from amos.codegen.device.text import WIDE_OPENCL, block
from amos.intrinsics import Intrinsic, implementations
from amos.ir import dtype
from amos.opencl.plan import TYPES

_QUALIFIERS = (
    r"kernel|global|local|constant|private|generic|read_only|write_only|read_write|uniform|pipe"
    r"|half|complex|imaginary|size_t|(?:bool|u?char|u?short|u?int|u?long|float|double|half)\d*"
)
#: Functions that kernels or implementations of intrinsics call.
_FUNCTIONS = (
    r"(?:as|convert|vload|vstore|arm|mad|fma|get|atomic|opencl|khr|mali)\w*|barrier|dot\w*|add_sat"
    r"|rint|sqrt|min|max|clamp|select|any|all"
)
#: Further names of the language, which no kernel can have (OpenCL C 3.0, chapter 6).
_BUILT_IN = (
    r"a?(?:cos|sin|tan)(?:h|pi)?|atan2(?:pi)?|sincos|cbrt|ceil|floor|round|trunc|fract|modf|frexp"
    r"|exp(?:2|10|m1)?|(?:i?log)(?:2|10|1p|b)?|pow[nr]?|rootn|rsqrt|hypot|erfc?|[lt]gamma(?:_r)?"
    r"|fabs|fdim|fm(?:ax|in|od)|(?:max|min)mag|copysign|ldexp|nan|nextafter|remainder|remquo"
    r"|(?:half|native)_\w+|abs(?:_diff)?|r?hadd|clz|ctz|popcount|mul(?:24|_hi)|rotate|sub_sat"
    r"|upsample|degrees|radians|mix|(?:smooth)?step|sign(?:bit)?|cross|bitselect|shuffle2?"
    r"|(?:fast_)?(?:distance|length|normalize)|is(?:not)?(?:equal|finite|inf|nan|normal)"
    r"|is(?:greater|less)(?:equal|greater)?|is(?:un)?ordered|prefetch|printf|async_\w+|\w+_fence"
    r"|wait_group_events|(?:sub|work)_group_\w+|read_image\w+|write_image\w+"
    r"|(?:event|sampler|queue|ndrange|clk_event|reserve_id|u?intptr|ptrdiff|image\w+)_t"
    r"|NAN|INFINITY|MAXFLOAT|HUGE_VALF?|(?:CLK|FLT|DBL|M|U?(?:CHAR|SHRT|INT|LONG))_[A-Z0-9_]+"
)
#: Names of every file with a kernel.
GLOBALS = re.compile(f"{_QUALIFIERS}|{_FUNCTIONS}|{_BUILT_IN}|main|call|[if]_\\w+|loose_\\w+")
#: Names that an operator must not have: those, names that a kernel's text or its loader in C use
#: themselves, and names that they derive from others.
OWN = re.compile(
    f"{KEYWORDS}|{MACROS}|{GLOBALS.pattern}"
    r"|[abce]|[ir]\d+|group|item|stage|steps?|sum|leaving|piece|valid|element"
    r"|queue|done|(?:start_|end_)?items|start|end|status|zero|lane|thread"
    r"|(?:first|item|t|at|local|step|part)_\w*"
)
OPENCL = Dialect(
    inline="static",
    wrapped="as_int(as_uint(a) {} as_uint(b))",
    rounded=("a + b", "a - b", "a * b"),
    rare={
        "i_shift": "int(int a, int b) { return a >> b; }",
        "f_divide": "float(float a, float b) { return a / b; }",
        "f_sqrt": "float(float a) { return sqrt(a); }",
        # Slow where a device has no such instruction, but it has to round once.
        "f_fma": "float(float a, float b, float c) { return fma(a, b, c); }",
        # The lowest bits of such a sum are the exponent of a float.
        "f_pow2": "float(float a) { return as_float(as_uint(a + 12583039.0f) << 23); }",
        "f_exponent": "float(float a) { return (float)((int)(as_uint(a) >> 23) - 127); }",
        "f_choose": "float(float a, float b, float c, float d) { return a > b ? c : d; }",
        # On bits, as 16-bit floats are no type without an extension. Subnormal halves are
        # multiples of the last digit of 0.5.
        "f_to_float16": "ushort(float a) { uint b = as_uint(a), m = b & 0x7fffffffu; "
        "uint h = m > 0x7f800000u ? 0x7e00u : m >= 0x477ff000u ? 0x7c00u "
        ": m < 0x38800000u ? as_uint(as_float(m) + 0.5f) - 0x3f000000u "
        ": (m - 0x38000000u + 0xfffu + (m >> 13 & 1u)) >> 13; "
        "return h | (b >> 16 & 0x8000u); }",
        "f_from_float16": "float(ushort a) { uint m = a & 0x7fffu; "
        "uint b = m < 0x400u ? as_uint((float)m * 5.9604645e-8f) "
        ": (m << 13) + (m < 0x7c00u ? 0x38000000u : 0x70000000u); "
        "return as_float(b | (a & 0x8000u) << 16); }",
        "f_to_bfloat16": "ushort(float a) { uint b = as_uint(a); return a != a ? 0x7fc0 : "
        "(b + 0x7fffu + (b >> 16 & 1u)) >> 16; }",
        "f_from_bfloat16": "float(ushort a) { return as_float((uint)a << 16); }",
    },
    narrowed={"float16": "f_to_float16({})", "bfloat16": "f_to_bfloat16({})"},
    widened={"float16": "f_from_float16({})", "bfloat16": "f_from_bfloat16({})"},
    integer="(int)({})",
    real="(float)({})",
    converted="convert_float_rte({})",
    nearest_integer="convert_int_sat_rte({})",
    nearest="rint({})",
    wide=WIDE_OPENCL,
    pointer="((__global {} *){})",
    from_bits="as_float({})",
    thread="get_global_id(0)",
)


def vector_type(name: str, elements: int) -> str:
    """Return the type of a vector of elements of a canonical type.

    >>> vector_type("float32", 8), vector_type("int8", 1)
    ('float8', 'char')
    """
    return f"{TYPES[dtype(name).name]}{elements if elements > 1 else ''}"


def vector_at(kind: str, place: str, space: str = "__global const") -> str:
    """Write a vector in memory that begins at any element.

    ``vload`` and ``vstore`` are calls where a compiler does not inline them, as that of PoCL 3.0.
    Other accesses see the same memory as elements, hence ``may_alias``.

    >>> vector_at("float8", "a + i")
    '((__global const loose_float8 *)(a + i))->at'
    """
    return f"(({space} loose_{kind} *)({place}))->at"


def loose_vectors(lines: Sequence[str]) -> list[str]:
    """List the types that :func:`vector_at` names in some lines."""
    used = sorted({kind for line in lines for kind in re.findall(r"loose_(\w+) \*", line)})
    sizes = {name: dtype(kind).bits // 8 for kind, name in TYPES.items()}
    return [
        "typedef struct __attribute__((packed, may_alias, "
        f"aligned({sizes[kind.rstrip('0123456789')]}))) {{ {kind} at; }} loose_{kind};"
        for kind in used
    ]


def write_call(name: str, intrinsic: Intrinsic) -> list[str]:
    """Write the instruction as a function of vectors, which returns the new accumulator."""
    implementation = implementations(intrinsic.name)["opencl"]
    lines = [implementation.headers.strip()] if implementation.headers.strip() else []
    tensors = [load.tensor for load in intrinsic.operands]
    types = [TYPES[dtype(str(tensor.dtype)).name] for tensor in tensors]
    kinds = [vector_type(str(tensor.dtype), tensor.elements) for tensor in tensors]
    names = [tensor.name for tensor in tensors]
    parameters = ", ".join(f"{kind} {each}_" for kind, each in zip(kinds, names, strict=True))
    if implementation.function:
        arguments = ", ".join(f"{each}_" for each in names)
        body = [f"return {implementation.function}({arguments});"]
    else:
        constant = {each: "const " * (each != names[-1]) for each in names}
        body = [
            f"{constant[each]}{kind} *{each} = ({constant[each]}{kind} *)&{each}_;"
            for kind, each in zip(types, names, strict=True)
        ]
        body += [implementation.source.strip(), f"return {names[-1]}_;"]
    return [*lines, f"static {kinds[-1]} {name}({parameters}) {{", *block(body), "}", ""]
