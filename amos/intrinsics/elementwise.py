"""x86 vector instructions that sum no products: ``_mm512_add_pd`` of AMOS, Figure 1, and its kin.

They come in three forms. ``Dst[i1] = Src1[i1] + Src2[i1]`` joins two tensors;
``Dst[i1] += Src1[i1]``, named ``acc``, accumulates one in the destination's register, as in sums
and maxima over loops around the calls; ``Dst[] += Src1[r1]``, named ``row``, has partial sums in
its lanes, which are folded after the last call. ``VMAXPS`` and ``VMINPS`` return their second
operand where either is a NaN, so the first operand is selected where it is a NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from amos.intrinsics.arithmetic import MEASURED, Timing
from amos.intrinsics.vectors import INTEL, Described, instruction
from amos.ir.combining import function as function_of

#: Symbols of functions in statements.
_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "max": "max", "min": "min"}
#: Functions that join two tensors, and functions that accumulate one, by dtype.
_FUNCTIONS = {
    "f32": (("add", "sub", "mul", "max", "min"), ("add", "max", "min")),
    "f64": (("add",), ("add",)),
    "s32": (("add", "max"), ("add", "max")),
    "s8": (("add", "max"), ("max",)),
    "u8": (("add", "max"), ("max",)),
}
#: Operation of the lanes, by the form in a name.
_FORMS = {
    "": "each joining two elements",
    "acc": "each taking up an element",
    "row": "which are parts of one result, each taking up an element",
}
#: Bytes that are widened when they are read, and summed in 32 bits.
_WIDENED = {"u8": "VPMOVZXBD", "s8": "VPMOVSXBD"}


@dataclass(frozen=True)
class _Vectors:
    """Vector registers of a width in bits, holding one dtype."""

    bits: int
    kind: str

    @property
    def family(self) -> str:
        return "avx512" if self.bits == 512 else "avx2"

    @property
    def width(self) -> int:
        return int(self.kind[1:])

    @property
    def lanes(self) -> int:
        return self.bits // self.width

    @property
    def feature(self) -> str:
        return f"avx512{'bw' if self.width == 8 else 'f'}" if self.bits == 512 else "avx2"

    @property
    def tvm(self) -> str:
        names = {"f": "float", "s": "int", "u": "uint"}
        return f"{names[self.kind[0]]}{self.width}x{self.lanes}"

    def mnemonic(self, function: str) -> str:
        if self.kind[0] == "f":
            return f"v{function}p{'s' if self.width == 32 else 'd'}"
        sign = self.kind[0] if function in ("max", "min") else ""
        return f"vp{function}{sign}{'d' if self.width == 32 else 'b'}"

    def c(self, function: str, *values: str) -> str:
        """Write a function of vectors in C."""
        suffix = {"f32": "ps", "f64": "pd"}.get(self.kind, f"epi{self.width}")
        if self.kind[0] == "f" and function in ("max", "min"):
            return self.compare(function, *values)
        if self.kind[0] == "u" and function in ("max", "min"):
            suffix = f"epu{self.width}"
        return f"_mm{self.bits}_{function}_{suffix}({', '.join(values)})"

    def compare(self, function: str, first: str, second: str) -> str:
        """Write a maximum or minimum of floats in C; a NaN as the first argument is the result."""
        suffix, name = ("pd" if self.width == 64 else "ps"), f"_mm{self.bits}"
        ordered = f"{first}, {first}, _CMP_ORD_Q"
        if self.bits == 512:
            mask = f"{name}_cmp_{suffix}_mask({ordered})"
            return f"{name}_mask_{function}_{suffix}({first}, {mask}, {first}, {second})"
        better = f"{name}_{function}_{suffix}({first}, {second})"
        return f"{name}_blendv_{suffix}({first}, {better}, {name}_cmp_{suffix}({ordered}))"

    def move(self, function: str, operand: str, *value: str) -> str:
        """Write a load from or a store to an operand in C."""
        if self.kind[0] == "f":
            return self.c(f"{function}u", operand, *value)
        const = "const " if function == "load" else ""
        arguments = ", ".join([f"({const}__m{self.bits}i *){operand}", *value])
        return f"_mm{self.bits}_{function}u_si{self.bits}({arguments})"


def intrinsics() -> Described:
    """Yield sums, differences, products, maxima and minima on 512 bits and on 256."""
    for bits in (512, 256):
        for kind, (joining, taking) in _FUNCTIONS.items():
            for function in joining:
                yield from _describe_join(_Vectors(bits, kind), function)
            for function, row in product(taking, (False, True)):
                yield from _describe_accumulation(_Vectors(bits, kind), function, row)
        for kind, row in product(_WIDENED, (False, True)):
            yield from _describe_widening(_Vectors(bits, "s32"), kind, row)


def _describe_join(vectors: _Vectors, function: str) -> Described:
    """Describe ``Dst[i1] = Src1[i1] + Src2[i1]``, or the same with another function."""
    text = function_of(_SYMBOLS[function]).text(["Src1[i1]", "Src2[i1]"])
    sources = [f'{source}.vload([0], "{vectors.tvm}")' for source in ("Src1", "Src2")]
    loads = [vectors.move("load", source) for source in ("Src1", "Src2")]
    return _describe_instruction(
        vectors,
        f"Dst[i1] = {text}",
        (vectors.kind,) * 3,
        mnemonic=vectors.mnemonic(function),
        value=_in_tvm(function, *sources),
        c=f"{vectors.move('store', 'Dst', vectors.c(function, *loads))};",
        # Bound by the store of each result: the CPU stores 512 bits a cycle.
        timing=Timing(vectors.bits / 512, MEASURED, 1, "AMD Zen 5"),
    )


def _describe_accumulation(vectors: _Vectors, function: str, row: bool) -> Described:
    """Describe ``Dst[i1] += Src1[i1]``, or the same with another function."""
    return _describe_reduction(
        vectors,
        function,
        (vectors.kind,) * 2,
        row=row,
        source=f'Src1.vload([0], "{vectors.tvm}")',
        c=vectors.move("load", "Src1"),
        timing=Timing(0.5, MEASURED, 2, "AMD Zen 5"),
    )


def _describe_widening(vectors: _Vectors, kind: str, row: bool) -> Described:
    """Describe ``Dst[i1] += Src1[i1]`` of bytes into 32 bits."""
    tvm = f"{'uint8' if kind == 'u8' else 'int8'}x{vectors.lanes}"
    load = "_mm_loadu_si128" if vectors.bits == 512 else "_mm_loadl_epi64"
    widen = f"_mm{vectors.bits}_cvtep{'u' if kind == 'u8' else 'i'}8_epi32"
    return _describe_reduction(
        vectors,
        "add",
        (kind, "s32"),
        row=row,
        source=f'T.Cast("{vectors.tvm}", Src1.vload([0], "{tvm}"))',
        c=f"{widen}({load}((const __m128i *)Src1))",
        timing=Timing(0.6, MEASURED, 1, "AMD Zen 5"),
        widening=_WIDENED[kind],
    )


def _describe_reduction(
    vectors: _Vectors,
    function: str,
    kinds: tuple[str, str],
    *,
    row: bool,
    source: str,
    c: str,
    timing: Timing,
    widening: str = "",
) -> Described:
    """Describe a register that accumulates loaded values: lane by lane, or all lanes into one sum.

    In C, which keeps no partial sums, each call combines the lanes of a row.
    """
    symbol = _SYMBOLS[function]
    total = f'Dst.vload([0], "{vectors.tvm}")'
    step = vectors.move("store", "Dst", vectors.c(function, vectors.move("load", "Dst"), c))
    return _describe_instruction(
        vectors,
        f"Dst[] {symbol}= Src1[r1]" if row else f"Dst[i1] {symbol}= Src1[i1]",
        kinds,
        form="row" if row else "acc",
        mnemonic=vectors.mnemonic(function),
        value=_in_tvm(function, total, source),
        c=_row_in_c(vectors, function, c) if row else f"{step};",
        timing=timing,
        widening=widening,
    )


def _row_in_c(vectors: _Vectors, function: str, c: str) -> str:
    """Write C that combines every lane of a vector with the destination."""
    kinds = {"f32": "float", "f64": "double", "s32": "int", "s8": "signed char"}
    kind, lanes = kinds.get(vectors.kind, "unsigned char"), vectors.lanes
    combined = (
        "*Dst + lane[n]"
        if function == "add"
        else (f"*Dst {'>' if function == 'max' else '<'} lane[n] || *Dst != *Dst ? *Dst : lane[n]")
    )
    return f"""
{kind} lane[{lanes}];
{vectors.move("store", "lane", c)};
for (int n = 0; n < {lanes}; ++n) *Dst = {combined};
"""


def _in_tvm(function: str, first: str, second: str) -> str:
    symbol = _SYMBOLS[function]
    if function_of(symbol).ordered:
        return f"T.{symbol}({first}, {second})"
    return f"{first} {symbol} {second}"


def _describe_instruction(
    vectors: _Vectors,
    statement: str,
    kinds: tuple[str, ...],
    *,
    form: str = "",
    mnemonic: str,
    value: str,
    c: str,
    timing: Timing,
    widening: str = "",
) -> Described:
    """Describe an instruction with its implementations in TVMScript and in C."""
    lanes, row = vectors.lanes, form == "row"
    types = "_".join([*dict.fromkeys(kinds[:-1]), kinds[-1]])
    manual = mnemonic.upper() + (f" and {widening}" if widening else "")
    shape = f"m1k{lanes}" if row else f"m{lanes}"
    return instruction(
        "_".join(filter(None, (vectors.family, mnemonic, form, shape, types))),
        statement,
        {"r1" if row else "i1": lanes},
        kinds,
        embedded="" if widening else "Src1" if form else "Src2",
        family=vectors.family,
        source=f"{INTEL}2, {manual}",
        description=f"{lanes} lanes, {_FORMS[form]}"
        + (", which is widened first" if widening else ""),
        requires=(vectors.feature,),
        registers=vectors.bits // 16,
        timing=(timing,),
        llvm=f"Dst[T.ramp(T.int32(0), 1, {lanes})] = {value}",
        c=c,
        flags=(f"-m{vectors.feature}",),
        partial=lanes if row else 1,
    )
