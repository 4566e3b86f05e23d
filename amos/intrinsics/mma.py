"""Tensor Core through PTX ``mma.sync``, with a known layout of each lane's elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amos.intrinsics.arithmetic import Arithmetic, Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.expression import to_c
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import FragmentLayout, Memory
from amos.intrinsics.wmma import ARCHITECTURES, VECTORS, a100_timing, count_fragments
from amos.ir import dtype

#: (row, column) of element e of a lane, for each layout of fragments.
_A = {
    "8x4": ("lane // 4", "lane % 4"),
    "16x8": ("lane // 4 + e // 2 * 8", "lane % 4 * 2 + e % 2"),
    "16x16": ("lane // 4 + e // 2 % 2 * 8", "lane % 4 * 2 + e % 2 + e // 4 * 8"),
    "16x8 words": ("lane // 4 + e % 2 * 8", "lane % 4 + e // 2 * 4"),
    "16x32": ("lane // 4 + e // 4 % 2 * 8", "lane % 4 * 4 + e % 4 + e // 8 * 16"),
}
_B = {
    "4x8": ("lane % 4", "lane // 4"),
    "8x8": ("lane % 4 * 2 + e", "lane // 4"),
    "16x8": ("lane % 4 * 2 + e % 2 + e // 2 * 8", "lane // 4"),
    "8x8 words": ("lane % 4 + e * 4", "lane // 4"),
    "32x8": ("lane % 4 * 4 + e % 4 + e // 4 * 16", "lane // 4"),
}
_C = {8: ("lane // 4", "lane % 4 * 2 + e"), 16: _A["16x8"]}


@dataclass(frozen=True)
class _Variant:
    shape: tuple[int, int, int]
    source: str
    result: str
    a: str
    b: str
    since: str


_VARIANTS = (
    _Variant((16, 8, 8), "f16", "f32", "16x8", "8x8", "sm_75"),
    _Variant((16, 8, 8), "f16", "f16", "16x8", "8x8", "sm_75"),
    _Variant((16, 8, 16), "f16", "f32", "16x16", "16x8", "sm_80"),
    _Variant((16, 8, 16), "f16", "f16", "16x16", "16x8", "sm_80"),
    _Variant((16, 8, 8), "bf16", "f32", "16x8", "8x8", "sm_80"),
    _Variant((16, 8, 16), "bf16", "f32", "16x16", "16x8", "sm_80"),
    _Variant((16, 8, 8), "tf32", "f32", "16x8 words", "8x8 words", "sm_80"),
    _Variant((16, 8, 32), "s8", "s32", "16x32", "32x8", "sm_80"),
    _Variant((16, 8, 32), "u8", "s32", "16x32", "32x8", "sm_80"),
    _Variant((8, 8, 4), "f64", "f64", "8x4", "4x8", "sm_80"),
    _Variant((16, 8, 32), "e4m3", "f32", "16x32", "32x8", "sm_89"),
    _Variant((16, 8, 32), "e5m2", "f32", "16x32", "32x8", "sm_89"),
)
#: Type of an element in memory.
_TYPES = {
    "f16": "unsigned short", "bf16": "unsigned short", "tf32": "unsigned", "f64": "double",
    "s8": "unsigned char", "u8": "unsigned char", "e4m3": "unsigned char",
    "e5m2": "unsigned char", "f32": "float", "s32": "int",
}  # fmt: skip
#: Type of a register, and its constraint in ``asm``; others are unsigned words.
_HELD = {"f32": ("float", "f"), "f64": ("double", "d"), "s32": ("int", "r")}
#: 256 multiply-adds a cycle of a sub-core.
_L40S = Timing(
    16,
    "NVIDIA L40S data sheet: 733 Tflop/s dense fp8 on 142 multiprocessors at 2.52 GHz",
    machine="NVIDIA L40S",
)


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """Yield ``mma.sync`` on registers; the layout of each fragment is that of the manual."""
    for variant in _VARIANTS:
        m, n, k = variant.shape
        eighths = variant.source in ("e4m3", "e5m2")
        a = _layout(("i1", "r1"), _A[variant.a], m * k)
        b = _layout(("r1", "i2"), _B[variant.b], k * n)
        c = _layout(("i1", "i2"), _C[m], m * n)
        name = f"mma_sync_m{m}n{n}k{k}_{variant.source}_{variant.result}"
        texts = (
            ("reg.Src1[i1, r1] = shared.Src1[addr_a + i1 * stride_a + r1]", a),
            ("reg.Src2[r1, i2] = shared.Src2[addr_b + r1 * stride_b + i2]", b),
            ("global.Dst[addr_c + i1 * stride_c + i2] = reg.Dst[i1, i2]", c),
        )
        yield Intrinsic.define(
            name,
            "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
            {"i1": m, "i2": n, "r1": k},
            {"Src1": variant.source, "Src2": variant.source, "Dst": variant.result},
            # A lane loads its own elements, or ldmatrix transposes them.
            [Memory.parse(x, layout=y, vectors=VECTORS, transposes=True) for x, y in texts],
            family="mma",
            source=f"PTX ISA, Warp-level Matrix Instructions, mma.sync: Matrix Fragments for "
            f"mma.m{m}n{n}k{k}",
            description=f"matrix multiply-add of one warp, {variant.source} into {variant.result}",
            requires=(variant.since,),
            registers=count_fragments(m * n, variant.result),
            arithmetic=Arithmetic(rounding="14-bit" if eighths else "once"),
            timing=[_L40S if eighths else a100_timing(variant.shape, variant.source)],
        )
        yield Implementation(
            name,
            "cuda",
            _cuda(variant, (a, b, c)),
            architectures=ARCHITECTURES[ARCHITECTURES.index(variant.since) :],
        )


def _layout(indices: tuple[str, str], where: tuple[str, str], size: int) -> FragmentLayout:
    return FragmentLayout(32, size // 32, tuple(zip(indices, where, strict=True)))


@dataclass(frozen=True)
class Registers:
    """A C type, an ``asm`` constraint and the number of registers of a lane's elements."""

    type: str
    constraint: str
    count: int

    @classmethod
    def of(cls, kind: str, elements: int) -> Registers:
        """Return the registers of that many elements of a type."""
        scalar = dtype(kind)
        register, constraint = _HELD.get(scalar.short, ("unsigned", "r"))
        return cls(register, constraint, max(1, elements * scalar.bits // max(32, scalar.bits)))

    def values(self, text: str, first: int = 0) -> str:
        """Repeat a text for each register, with ``#`` as its number."""
        return ", ".join(text.replace("#", str(first + n)) for n in range(self.count))


def multiply_text(
    shape: Sequence[int], kinds: Sequence[str], registers: Sequence[Registers]
) -> list[str]:
    """Write ``mma.sync`` on a lane's registers ``a.x``, ``b.x`` and ``c.x`` in CUDA C++."""
    m, n, k = shape
    first, second, result = (dtype(kind).short for kind in kinds)
    a, b, c = registers
    sums = c.values("%#")
    a_list, b_list = a.values("%#", c.count), b.values("%#", c.count + a.count)
    inputs = [f'"{x.constraint}"({letter}.x[#])' for x, letter in ((a, "a"), (b, "b"))]
    return [
        f'asm volatile("mma.sync.aligned.m{m}n{n}k{k}.row.col.{result}.{first}.{second}.{result} "',
        f'             "{{{sums}}}, {{{a_list}}}, {{{b_list}}}, {{{sums}}};"',
        f"""             : {c.values(f'"+{c.constraint}"(c.x[#])')}""",
        f"             : {a.values(inputs[0])}, {b.values(inputs[1])});",
    ]


def _cuda(variant: _Variant, layouts: tuple[FragmentLayout, ...]) -> str:
    """Write CUDA C++ in which each lane gathers its elements and scatters its results."""
    m, n, k = variant.shape
    kinds = (variant.source, variant.source, variant.result)
    lines, places, registers = ["const int lane = threadIdx.x % 32;"], [], []
    for letter, operand, kind, layout, width in zip(
        "abc", ("Src1", "Src2", "Dst"), kinds, layouts, (k, n, n), strict=True
    ):
        words, element, count = Registers.of(kind, layout.elements), _TYPES[kind], layout.elements
        row, column = (to_c(formula) for _, formula in layout.where)
        registers.append(words)
        places.append(f"(({row}) * {width} + {column})")
        lines += [
            f"union {{ {words.type} x[{words.count}]; {element} all[{count}]; }} {letter};",
            f"for (int e = 0; e < {count}; ++e)",
            f"  {letter}.all[e] = ((const {element} *){operand})[{places[-1]}];",
        ]
    lines += [
        *multiply_text(variant.shape, kinds, registers),
        f"for (int e = 0; e < {layouts[2].elements}; ++e)",
        f"  (({_TYPES[variant.result]} *)Dst)[{places[2]}] = c.all[e];",
    ]
    return "\n".join(lines)
