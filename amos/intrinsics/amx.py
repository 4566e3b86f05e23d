"""Intel AMX: multiply-add of tiles of up to 16 rows of 64 bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from amos.intrinsics.arithmetic import ShapeFamily, Timing
from amos.intrinsics.description import Intrinsic
from amos.intrinsics.implementation import Implementation
from amos.intrinsics.memory import FragmentLayout, Memory

_MANUAL = (
    "Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, TDPBSSD/TDPBSUD/"
    "TDPBUSD/TDPBUUD: Dot Product of Signed/Unsigned Bytes with Dword Accumulation, and "
    "TDPBF16PS: Dot Product of BF16 Tiles Accumulated into Packed Single Precision Tile"
)
_TIMING = Timing(
    16,
    "Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter Intel Advanced "
    "Matrix Extensions, latency and throughput of TDP*",
    52,
    "Intel Sapphire Rapids",
)
#: Rows of a tile, and columns of 32 bits.
_ROWS = tuple(range(1, 17))
#: Registered row counts of the first source: full tiles, and those that divide the image
#: sizes of most networks: 7, 14, 28, 56 and 112 pixels.
_NAMED = (16, 14, 7)
#: Features that the C of a kernel uses besides tiles.
_VECTORS = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
#: Linux grants the registers of the tiles to a process that asks for them (the kernel's
#: Documentation/arch/x86/xstate.rst): ARCH_REQ_XCOMP_PERM of the state XFEATURE_XTILEDATA.
_HEADERS = """
#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>
__attribute__((constructor)) static void ask_for_tiles(void) {
  if (syscall(SYS_arch_prctl, 0x1023, 18)) {
    static const char why[] = "the system does not grant the tile registers of AMX\\n";
    _exit(write(2, why, sizeof why - 1) < 0 ? 7 : 6);
  }
}
"""
#: Name of the function that sets the tile registers up, in LLVM's own language.
CONFIGURE = "amos_amx_configure"
#: palette, start row, reserved; then bytes per row and number of rows of eight tiles.
_CONFIGURE = """
struct { uint8_t palette, start, none[14]; uint16_t colsb[16]; uint8_t rows[16]; } shape = {1, 0};
for (int t = 0; t < 3; ++t) { shape.colsb[t] = 64; shape.rows[t] = t < 2 ? ROWS : 16; }
_tile_loadconfig(&shape);
"""


def configuration(rows: Sequence[int]) -> str:
    """Write an LLVM function that configures eight tiles of at most 16 rows of 64 bytes."""
    shape = bytes([1]) + bytes(15) + (64).to_bytes(2, "little") * 8 + bytes(16)
    shape += bytes(rows) + bytes(8)
    text = "".join(f"\\{byte:02X}" for byte in shape)
    return f"""
@{CONFIGURE}_shape = private unnamed_addr constant [64 x i8] c"{text}", align 64
declare void @llvm.x86.ldtilecfg(ptr)
define linkonce_odr hidden i32 @{CONFIGURE}() alwaysinline "target-features"="+amx-tile" {{
  call void @llvm.x86.ldtilecfg(ptr @{CONFIGURE}_shape)
  ret i32 0
}}
"""


def configuration_in_c(text: str) -> str:
    """Translate the function of :func:`configuration` to C."""
    ((shape,),) = (re.findall(r'c"((?:\\[0-9A-F]{2}){64})"', text),)
    numbers = ", ".join(str(int(byte, 16)) for byte in shape.split("\\")[1:])
    return f"""static inline void {CONFIGURE}(void) {{
  static const uint8_t shape[64] __attribute__((aligned(64))) = {{{numbers}}};
  _tile_loadconfig(shape);
}}
"""


def intrinsics() -> Iterator[Intrinsic | Implementation]:
    """Yield ``tdpbusd`` and ``tdpbf16ps`` on full tiles, and on some with fewer rows.

    The second source lies in its tile in groups: four bytes, or two bfloat16
    numbers, that follow one another along the reduction share a 32-bit column.
    """
    for rows in _NAMED:
        yield from _variant("dpbusd", rows, 64, ("u8", "s8", "s32"), "amx_int8")
        yield from _variant("dpbf16ps", rows, 32, ("bf16", "bf16", "f32"), "amx_bf16")


def _variant(
    instruction: str, rows: int, depth: int, kinds: tuple[str, str, str], feature: str
) -> Iterator[Intrinsic | Implementation]:
    types = "_".join(dict.fromkeys(kinds))
    name = f"amx_t{instruction}_m{rows}n16k{depth}_{types}"
    group, requires, option = depth // 16, ("amx_tile", feature), feature.replace("_", "-")
    statements = {
        "tile.Src1[i1, r1] = memory.Src1[addr_a + i1 * stride_a + r1]": (
            FragmentLayout(rows, depth, (("i1", "lane"), ("r1", "e")))
        ),
        "tile.Src2[r1, i2] = memory.Src2[addr_b + r1 * stride_b + i2]": FragmentLayout(
            16, depth, (("r1", f"lane * {group} + e % {group}"), ("i2", f"e // {group}"))
        ),
        "memory.Dst[addr_c + i1 * stride_c + i2] = tile.Dst[i1, i2]": (
            FragmentLayout(rows, 16, (("i1", "lane"), ("i2", "e")))
        ),
    }
    yield Intrinsic.define(
        name,
        "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
        {"i1": rows, "i2": 16, "r1": depth},
        dict(zip(("Src1", "Src2", "Dst"), kinds, strict=True)),
        [Memory.parse(text, layout=layout) for text, layout in statements.items()],
        family="amx",
        source=_MANUAL,
        description=f"a {rows}x16 tile, each element adding {depth} products",
        requires=requires,
        registers=8,
        timing=[_TIMING],
        shapes=ShapeFamily(_ROWS, _ROWS, tuple(range(group, depth + 1, group))),
    )
    yield Implementation(
        name,
        "llvm",
        _llvm(instruction, rows, depth, group),
        "x86_64",
        requires,
        ("+amx-tile", f"+{option}"),
        instruction=f"llvm.x86.t{instruction}",
    )
    # Vectors fill and empty tiles; every CPU with AMX has vectors of 512 bits.
    flags = ("-mamx-tile", f"-m{option}", *(f"-m{each}" for each in _VECTORS))
    c = _c(instruction, rows, depth, group)
    yield Implementation(name, "c", c, "x86_64", (*requires, *_VECTORS), flags, _HEADERS)


def _c(instruction: str, rows: int, depth: int, group: int) -> str:
    """Write a single call in C; the second source is packed first."""
    return f"""{_CONFIGURE.replace("ROWS", str(rows))}
static __thread {"int8_t" if group == 4 else "uint16_t"} packed[16][{depth}];
for (int row = 0; row < 16; ++row)
  for (int e = 0; e < {depth}; ++e)
    packed[row][e] = Src2[(row * {group} + e % {group}) * 16 + e / {group}];
_tile_loadd(0, Dst, 64);
_tile_loadd(1, Src1, 64);
_tile_loadd(2, packed, 64);
_tile_{instruction}(0, 1, 2);
_tile_stored(0, Dst, 64);
_tile_release();
"""


def _llvm(instruction: str, rows: int, depth: int, group: int) -> str:
    """Write a single call; the second source is packed first."""
    kind = "int8" if group == 4 else "uint16"
    return f"""
packed = T.alloc_buffer((16, 16, {group}), "{kind}")
for row, column, e in T.grid(16, 16, {group}):
    with T.sblock("pack"):
        v_row, v_column, v_e = T.axis.remap("SSS", [row, column, e])
        packed[v_row, v_column, v_e] = Src2[v_row * {group} + v_e, v_column]
with T.sblock("call"):
    T.reads(Dst[0:{rows}, 0:16], Src1[0:{rows}, 0:{depth}], packed[0:16, 0:16, 0:{group}])
    T.writes(Dst[0:{rows}, 0:16])
    T.attr(T.int32(0), "pragma_import_llvm", {configuration((rows, rows, *[16] * 6))!r})
    T.evaluate(T.call_extern("int32", "{CONFIGURE}"))
    T.evaluate(T.call_llvm_intrin("int32", "llvm.x86.tileloadd64", T.int8(0),
        T.address_of(Dst[0, 0]), T.int64(64)))
    T.evaluate(T.call_llvm_intrin("int32", "llvm.x86.tileloadd64", T.int8(1),
        T.address_of(Src1[0, 0]), T.int64(64)))
    T.evaluate(T.call_llvm_intrin("int32", "llvm.x86.tileloadd64", T.int8(2),
        T.address_of(packed[0, 0, 0]), T.int64(64)))
    T.evaluate(T.call_llvm_intrin("int32", "llvm.x86.t{instruction}", T.int8(0),
        T.int8(1), T.int8(2)))
    T.evaluate(T.call_llvm_intrin("int32", "llvm.x86.tilestored64", T.int8(0),
        T.address_of(Dst[0, 0]), T.int64(64)))
    T.evaluate(T.call_llvm_intrin("int32", "llvm.x86.tilerelease"))
"""
