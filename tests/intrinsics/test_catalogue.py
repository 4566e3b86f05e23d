"""The built-in families: complete, and named by one rule."""

from __future__ import annotations

import numpy as np
import pytest

from amos import intrinsics, machines

EXPECTED = [
    "wmma_m16n16k16_f16_f32",
    "wmma_m32n8k16_f16_f32",
    "wmma_m8n32k16_f16_f32",
    "wmma_m16n16k16_f16_f16",
    "wmma_m32n8k16_f16_f16",
    "wmma_m8n32k16_f16_f16",
    "wmma_m16n16k16_bf16_f32",
    "wmma_m16n16k8_tf32_f32",
    "wmma_m16n16k16_s8_s32",
    "wmma_m16n16k16_u8_s32",
    "wmma_m8n8k32_s4_s32",
    "wmma_m8n8k128_b1_s32",
    "wmma_m8n8k4_f64_f64",
    "mma_sync_m16n8k8_f16_f32",
    "mma_sync_m16n8k16_f16_f32",
    "mma_sync_m16n8k16_bf16_f32",
    "mma_sync_m16n8k8_tf32_f32",
    "mma_sync_m16n8k32_s8_s32",
    "mma_sync_m8n8k4_f64_f64",
    "mma_sync_m16n8k32_e4m3_f32",
    "mma_sync_m16n8k32_e5m2_f32",
    "vnni_dpbusd_m16k4_u8_s8_s32",
    "vnni_dpbusds_m16k4_u8_s8_s32",
    "vnni_dpwssd_m16k2_s16_s32",
    "vnni_dpbusd_m8k4_u8_s8_s32",
    "vnni_dpbusds_m8k4_u8_s8_s32",
    "vnni_dpwssd_m8k2_s16_s32",
    "vnni_dpbusd_lhs_m16k4_u8_s8_s32",
    "vnni_dpwssd_lhs_m8k2_s16_s32",
    "avxvnni_dpbusd_m8k4_u8_s8_s32",
    "avxvnni_dpbusds_lhs_m8k4_u8_s8_s32",
    "avxvnni_dpwssd_m8k2_s16_s32",
    "avx512bf16_dpbf16ps_m16k2_bf16_f32",
    "avx512_fmadd_m16_f32_f32",
    "avx2_fmadd_m8_f32_f32",
    "avx512_vaddpd_m8_f64_f64",
    "avx512_vpaddd_acc_m16_u8_s32",
    "avx2_vmaxps_m8_f32_f32",
    "avx2_vpmaxub_acc_m32_u8_u8",
    "amx_tdpbusd_m16n16k64_u8_s8_s32",
    "amx_tdpbusd_m14n16k64_u8_s8_s32",
    "amx_tdpbusd_m7n16k64_u8_s8_s32",
    "amx_tdpbf16ps_m16n16k32_bf16_f32",
    "amx_tdpbf16ps_m14n16k32_bf16_f32",
    "amx_tdpbf16ps_m7n16k32_bf16_f32",
    "arm_sdot_m4k4_s8_s32",
    "arm_udot_m4k4_u8_u32",
    "arm_usdot_m4k4_u8_s8_s32",
    "arm_smmla_m2n2k8_s8_s32",
    "mali_arm_dot_m1k4_s8_s32",
    "vta_gemm_m1n16k16_s8_s32",
    "tpu_mxu_m128n128k128_bf16_f32",
    "gemmini_matmul_m16n16k16_s8_s32",
]


def test_the_catalogue_is_complete() -> None:
    assert set(EXPECTED) <= set(intrinsics.names())


#: Ranges that names have a short word for.
_SHORT = {"s8 in [-64, 64]": "s7", "u8 in [0, 128]": "u7"}
#: The units of the paper have no hardware, and one has more dimensions than letters.
REAL = [name for name in intrinsics.names() if not name.startswith("virtual_")]


@pytest.mark.parametrize("name", REAL)
def test_names_follow_the_rule(name: str) -> None:
    unit = intrinsics.get(name)
    assert unit.name == name
    kinds = [_SHORT.get(kind.spelled, kind.spelled) for kind in unit.kinds]
    types = list(dict.fromkeys(kinds[:-1])) + kinds[-1:]
    if unit.family == "opencl":  # Vectors of one type.
        types = list(dict.fromkeys(kinds))
    m, n, k = unit.shape
    spatial, reduce = len(unit.compute.spatial), len(unit.compute.reduce)
    shape = f"m{m}" + (f"n{n}" if spatial > 1 else "") + (f"k{k}" if reduce else "")
    assert name.startswith(unit.family + "_")
    assert name.endswith(f"_{shape}_{'_'.join(types)}")


@pytest.mark.parametrize("name", REAL)
def test_every_entry_says_what_it_needs_and_where_its_figures_come_from(name: str) -> None:
    unit = intrinsics.get(name)
    assert len(unit.source) > 20
    assert unit.description
    assert unit.requires
    assert unit.timing
    assert all(len(timing.source) > 15 and timing.machine for timing in unit.timing)
    kept_in_registers = not any(statement.capacity for statement in unit.memory)
    if kept_in_registers and unit.family not in ("khr", "mali", "opencl", "tpu"):
        assert unit.registers > 0
    for kind, source in intrinsics.implementations(name).items():
        assert (source.intrinsic, source.kind) == (name, kind)


Modes = tuple[tuple[int, ...], tuple[int, ...]]

#: The same layouts as NVIDIA writes them for CuTe (CUTLASS, mma_traits_sm80.hpp and _sm89.hpp):
#: sizes and strides of thread and value, giving offsets into a matrix whose rows are fastest.
_ROW_16X8: Modes = (4, 8, 2, 2), (32, 1, 16, 8)
_CUTE: dict[str, tuple[Modes, Modes, Modes]] = {
    "m16n8k8_f16": (_ROW_16X8, ((4, 8, 2), (16, 1, 8)), _ROW_16X8),
    "m16n8k16_f16": (
        ((4, 8, 2, 2, 2), (32, 1, 16, 8, 128)),
        ((4, 8, 2, 2), (16, 1, 8, 64)),
        _ROW_16X8,
    ),
    "m16n8k8_tf32": (((4, 8, 2, 2), (16, 1, 8, 64)), ((4, 8, 2), (8, 1, 32)), _ROW_16X8),
    "m16n8k32_s8": (
        ((4, 8, 4, 2, 2), (64, 1, 16, 8, 256)),
        ((4, 8, 4, 2), (32, 1, 8, 128)),
        _ROW_16X8,
    ),
    "m8n8k4_f64": (((4, 8, 1), (8, 1, 0)), ((4, 8, 1), (8, 1, 0)), ((4, 8, 2), (16, 1, 8))),
}
_ALIKE = {"bf16": "f16", "u8": "s8", "e4m3": "s8", "e5m2": "s8"}


def _offsets(modes: Modes) -> np.ndarray:
    """Offset of each value of each thread: threads × values, the first mode fastest."""
    sizes, strides = modes
    grid = np.indices(sizes[::-1])[::-1]
    total = sum(g * s for g, s in zip(grid, strides, strict=True))
    return np.asarray(total).reshape(-1, 32).T


@pytest.mark.parametrize("name", [n for n in intrinsics.names() if n.startswith("mma_sync")])
def test_mma_layouts_are_those_of_cute(name: str) -> None:
    unit = intrinsics.get(name)
    shape, source = name.split("_")[2:4]
    written = _CUTE[f"{shape}_{_ALIKE.get(source, source)}"]
    m, n, _ = unit.shape
    for statement, modes, rows, (row, column) in zip(
        unit.memory, written, (m, n, m), (("i1", "r1"), ("i2", "r1"), ("i1", "i2")), strict=True
    ):
        layout = statement.layout
        assert layout is not None
        elements = layout.table(row) + rows * layout.table(column)
        np.testing.assert_array_equal(elements, _offsets(modes), err_msg=str(statement))


def test_mma_layouts_are_those_of_the_manual() -> None:
    """PTX ISA, figures of m16n8k16 (.f16): a few cells of each."""
    unit = intrinsics.get("mma_sync_m16n8k16_f16_f32")
    a, b, c = (statement.layout for statement in unit.memory)
    assert a is not None and b is not None and c is not None
    # Lane 5 is in group 1, place 1. a2, a3: row + 8; a4, a5: column + 8.
    assert list(zip(a.table("i1")[5], a.table("r1")[5], strict=True)) == [
        (1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)
    ]  # fmt: skip
    assert list(zip(b.table("r1")[5], b.table("i2")[5], strict=True)) == [
        (2, 1), (3, 1), (10, 1), (11, 1)
    ]  # fmt: skip
    assert list(zip(c.table("i1")[5], c.table("i2")[5], strict=True)) == [
        (1, 2), (1, 3), (9, 2), (9, 3)
    ]  # fmt: skip


def test_vta_has_its_buffers_and_its_write_constraint() -> None:
    memory = intrinsics.get("vta_gemm_m1n16k16_s8_s32").memory
    assert [m.capacity >> 10 for m in memory] == [32, 256, 128]
    assert memory[-1].write_interval == 3


def test_figures_of_speed_agree_with_the_machine_descriptions() -> None:
    compared = 0
    for name in intrinsics.names():
        for timing in intrinsics.get(name).timing:
            if timing.machine not in machines.names():
                continue
            machine = machines.get(timing.machine)
            if name not in machine.peaks:
                continue
            peak = machine.peaks[name]
            compared += 1
            assert peak.interval * machine.clock == pytest.approx(timing.interval, rel=0.02), name
            if timing.latency is not None:
                assert peak.latency * machine.clock == pytest.approx(timing.latency, rel=0.02)
    assert compared >= 6


def test_a_warp_has_255_registers() -> None:
    # 16 x 16 numbers of 32 bits are 8 registers of each thread; half as many, 4.
    assert intrinsics.get("wmma_m16n16k16_f16_f32").registers == 31
    assert intrinsics.get("wmma_m16n16k16_f16_f16").registers == 63
    assert intrinsics.get("mma_sync_m16n8k16_f16_f32").registers == 63


def test_legal_shapes_of_tiles() -> None:
    unit = intrinsics.get("amx_tdpbusd_m16n16k64_u8_s8_s32")
    assert unit.shapes is not None
    assert (3, 5, 12) in unit.shapes.members and (3, 5, 10) not in unit.shapes.members
    assert str(unit.shapes) == "m = 1, 2 ... 16, n = 1, 2 ... 16, k = 4, 8 ... 64"
    wide = intrinsics.get("wmma_m8n32k16_f16_f32").shapes
    assert str(wide) == "8x32x16, 16x16x16, 32x8x16 with m*n*k == 4096"


def test_the_second_tile_of_amx_is_packed() -> None:
    layout = intrinsics.get("amx_tdpbusd_m16n16k64_u8_s8_s32").memory[1].layout
    assert layout is not None
    np.testing.assert_array_equal(layout.table("r1")[2, :5], [8, 9, 10, 11, 8])
    np.testing.assert_array_equal(layout.table("i2")[2, :5], [0, 0, 0, 0, 1])


def test_capabilities_are_declared() -> None:
    units = [intrinsics.get(name) for name in intrinsics.names()]
    assert {u.family for u in units if u.tile_registers} == {"amx"}
    assert {u.family for u in units if u.architecture} == {"wmma", "mma"}
    assert {u.family for u in units if u.architecture and u.open_registers} == {"mma"}
    assert intrinsics.get("mma_sync_m16n8k32_e4m3_f32").architecture == 89
    assert machines.get("h200").architecture == 90
    assert machines.get("mali_g76").architecture == 0
    for unit in units:
        sources = intrinsics.implementations(unit.name)
        called = {s.instruction for s in sources.values() if s.instruction}
        assert len(called) == int(unit.tile_registers)
        assert not called or called == {f"llvm.x86.{unit.name.split('_')[1]}"}
