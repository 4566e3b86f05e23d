"""Tensor Core through the warp matrix functions (AMOS, equations 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amos.intrinsics.arithmetic import ShapeFamily, Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import Memory
from amos.ir import dtype

_SOURCE = (
    "CUDA C++ Programming Guide, Warp Matrix Functions (load_matrix_sync, mma_sync, "
    "store_matrix_sync); PTX ISA, Warp-level Matrix Instructions, wmma.mma"
)
#: Architectures that kernels are compiled for, from the first one with the instruction on.
ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
#: Bytes that one thread moves at once (CUDA C++ Programming Guide, Device Memory Accesses).
VECTORS = (2, 4, 8, 16)
_WIDE = ShapeFamily((8, 16, 32), (8, 16, 32), (16,), "m*n*k == 4096")
#: Registers of 32 bits that one thread can have (CUDA C++ Programming Guide, Technical
#: Specifications per Compute Capability), and threads of a warp.
_REGISTERS, _WARP = 255, 32
#: Multiply-adds a cycle of one sub-core of the A100, by type of the sources: the peak rates
#: of the white paper over 108 multiprocessors of four sub-cores at 1.41 GHz.
_A100 = {
    "f16": 256, "bf16": 256, "tf32": 128, "s8": 512, "u8": 512, "s4": 1024, "u4": 1024,
    "b1": 4096, "f64": 16,
}  # fmt: skip
_A100_SOURCE = "NVIDIA A100 Tensor Core GPU Architecture (white paper, 2020), peak rates"
_V100_SOURCE = "NVIDIA Tesla V100 GPU Architecture (white paper, 2017): 128 multiply-adds a cycle"
_V100_LATENCY = (
    "; Raihan, Goli, Aamodt, Modeling Deep Learning Accelerator Enabled GPUs, ISPASS 2019"
)


@dataclass(frozen=True)
class _Variant:
    """The types and the shape of one instruction, its first architecture, and further shapes."""

    source: str
    result: str
    shape: tuple[int, int, int]
    since: str
    shapes: ShapeFamily | None = None


_VARIANTS = (
    *(
        _Variant(source, result, shape, since, _WIDE)
        for source, result, since in (
            ("f16", "f32", "sm_70"),
            ("f16", "f16", "sm_70"),
            ("bf16", "f32", "sm_80"),
            ("s8", "s32", "sm_75"),
            ("u8", "s32", "sm_75"),
        )
        for shape in ((16, 16, 16), (32, 8, 16), (8, 32, 16))
    ),
    _Variant("tf32", "f32", (16, 16, 8), "sm_80"),
    _Variant("s4", "s32", (8, 8, 32), "sm_75"),
    _Variant("u4", "s32", (8, 8, 32), "sm_75"),
    _Variant("b1", "s32", (8, 8, 128), "sm_80"),
    _Variant("f64", "f64", (8, 8, 4), "sm_80"),
)
#: Element type of a fragment, and type that its pointer has in memory.
_CUDA = {
    "f16": ("half", "half"),
    "bf16": ("__nv_bfloat16", "__nv_bfloat16"),
    "tf32": ("wmma::precision::tf32", "float"),
    "s8": ("signed char", "signed char"),
    "u8": ("unsigned char", "unsigned char"),
    "s4": ("wmma::experimental::precision::s4", "void"),
    "u4": ("wmma::experimental::precision::u4", "void"),
    "b1": ("wmma::experimental::precision::b1", "void"),
    "f64": ("double", "double"),
    "f32": ("float", "float"),
    "s32": ("int", "int"),
}
_HEADERS = (
    "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <mma.h>\nusing namespace nvcuda;"
)


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """Yield ``mma_sync`` on the fragments of one warp, in every type and shape."""
    for what in _VARIANTS:
        yield from _variant(what)


def _variant(what: _Variant) -> Iterator[Intrinsic | Implementation]:
    m, n, k = what.shape
    name = f"wmma_m{m}n{n}k{k}_{what.source}_{what.result}"
    # Below a byte the second source has to be in columns (PTX ISA, wmma.mma).
    columns = dtype(what.source).bits < 8
    second = "i2, r1" if columns else "r1, i2"
    row, column = second.split(", ")
    loads = (
        "reg.Src1[i1, r1] = shared.Src1[addr_a + i1 * stride_a + r1]",
        f"reg.Src2[{second}] = shared.Src2[addr_b + {row} * stride_b + {column}]",
    )
    yield Intrinsic.define(
        name,
        f"Dst[i1, i2] += Src1[i1, r1] * Src2[{second}]",
        {"i1": m, "i2": n, "r1": k},
        {"Src1": what.source, "Src2": what.source, "Dst": what.result},
        [
            *(
                Memory.parse(x, alignment=32, vectors=VECTORS, transposes=not columns)
                for x in loads
            ),
            Memory.parse(
                "global.Dst[addr_c + i1 * stride_c + i2] = reg.Dst[i1, i2]",
                alignment=32,
                transposes=True,
            ),
        ],
        family="wmma",
        source=_SOURCE,
        description=f"matrix multiply-add of one warp, {what.source} into {what.result}",
        requires=(what.since,),
        registers=count_fragments(m * n, what.result),
        shapes=what.shapes,
        timing=_timing(what),
    )
    first = ARCHITECTURES.index(what.since)
    yield Implementation(
        name, "cuda", _cuda(what, columns), headers=_HEADERS, architectures=ARCHITECTURES[first:]
    )


def count_fragments(elements: int, kind: str) -> int:
    """Count the fragments of that many elements that fit the registers of a warp."""
    return _REGISTERS // (elements * dtype(kind).bits // (32 * _WARP))


def a100_timing(shape: tuple[int, int, int], source: str) -> Timing:
    """Derive the cycles of one call on a sub-core from the peak rate of the A100."""
    m, n, k = shape
    return Timing(m * n * k / _A100[source], _A100_SOURCE, machine="a100")


def _timing(what: _Variant) -> list[Timing]:
    timings = [a100_timing(what.shape, what.source)]
    if what.since == "sm_70":
        m, n, k = what.shape
        measured = what.shape == (16, 16, 16) and what.result == "f32"
        source = _V100_SOURCE + (_V100_LATENCY if measured else "")
        timings.insert(0, Timing(m * n * k / 128, source, 54 if measured else None, "v100"))
    return timings


def _cuda(what: _Variant, columns: bool) -> str:
    m, n, k = what.shape
    kind, element_type = _CUDA[what.source]
    result = _CUDA[what.result][0]
    layout = "col_major" if columns else "row_major"
    extra = ", wmma::experimental::bmmaBitOpAND" if what.source == "b1" else ""
    function = "bmma_sync" if what.source == "b1" else "mma_sync"
    rounded = "".join(
        f"for (int i = 0; i < {f}.num_elements; ++i) {f}.x[i] = wmma::__float_to_tf32({f}.x[i]);\n"
        for f in ("a", "b")
        if what.source == "tf32"
    )
    width, place, staged = (k if columns else n), f"(const {element_type} *)Src2", ""
    if what.source == "f16" and n == 8:
        # Rows have to be aligned to the fragment, 32 bytes (PTX ISA, Matrix Storage for WMMA).
        width, place = 16, "rows"
        staged = f"""
__shared__ __align__(32) half rows[{k} * 16];
for (int i = threadIdx.x; i < {k} * {n}; i += 32) rows[i / {n} * 16 + i % {n}] = Src2[i];
__syncwarp();"""
    return f"""{staged}
wmma::fragment<wmma::matrix_a, {m}, {n}, {k}, {kind}, wmma::row_major> a;
wmma::fragment<wmma::matrix_b, {m}, {n}, {k}, {kind}, wmma::{layout}> b;
wmma::fragment<wmma::accumulator, {m}, {n}, {k}, {result}> c;
wmma::load_matrix_sync(a, (const {element_type} *)Src1, {k});
wmma::load_matrix_sync(b, {place}, {width});
wmma::load_matrix_sync(c, Dst, {n}, wmma::mem_row_major);
{rounded}wmma::{function}(c, a, b, c{extra});
wmma::store_matrix_sync(Dst, c, {n}, wmma::mem_row_major);
"""
