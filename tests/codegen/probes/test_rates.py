"""Programs that tell how fast an intrinsic can run: they make the calls that they count."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.codegen.probes import memory as probe
from amos.codegen.probes import rates as rate_probe
from amos.codegen.probes.rates import (
    RateProgram,
    cache_program,
    least_interval,
    register_program,
    tiles,
)
from amos.codegen.tir.target import host_target
from amos.codegen.tir.tensor_intrin import implementation
from amos.intrinsics import Intrinsic, execute
from amos.machine.cpu import cpu

pytestmark = pytest.mark.features

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
LANES_FIRST = amos.intrinsics.get("vnni_dpbusd_lhs_m16k4_u8_s8_s32")
AMX = "amx_tdpbusd_m16n16k64_u8_s8_s32"
FLOATS = amos.intrinsics.get("avx512_fmadd_m16_f32_f32")


def _run(program: RateProgram) -> list[np.ndarray]:
    import tvm

    tvm.compile(program.module, target=host_target())["main"](*program.tensors)
    return [tensor.numpy() for tensor in program.tensors]


def _call(unit: Intrinsic, *fragments: np.ndarray) -> np.ndarray:
    names = (load.tensor.name for load in unit.operands)
    return execute(unit, dict(zip(names, fragments, strict=True)))


def _native(unit: Intrinsic) -> None:
    if implementation(unit, cpu().features) != "native":
        pytest.skip(f"this CPU lacks {', '.join(unit.requires)}")


@pytest.mark.parametrize("unit", [VNNI, LANES_FIRST, FLOATS], ids=lambda unit: unit.name)
@pytest.mark.parametrize("tile", [(2, 3), (4, 1)])
def test_what_is_fed_is_summed(
    unit: Intrinsic, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_probe, "_CALLS", 96)
    monkeypatch.setattr(rate_probe, "_BYTES", 1024)
    program = cache_program(unit, implementation(unit, cpu().features), tile, 2)
    first, second, out = _run(program)
    steps = len(first)
    again, remainder = divmod(program.calls, tile[0] * tile[1] * steps)
    assert again >= 1 and remainder == 0
    for i, j in np.ndindex(*tile):
        expected = np.zeros_like(out[0, 0, 0])
        for _ in range(again):
            for step in range(steps):
                expected = _call(unit, first[step, i], second[step, j], expected)
        for core in range(2):
            np.testing.assert_allclose(out[core, i, j], expected, rtol=1e-5, atol=1e-4)


def test_chains_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_probe, "_CALLS", 60)
    program = register_program(VNNI, implementation(VNNI, cpu().features), 5, 2)
    first, second, out = _run(program)
    assert program.calls == 60
    expected = np.zeros_like(out[0, 0, 0])
    for _ in range(12):
        expected = _call(VNNI, first[0, 0], second[0, 0], expected)
    assert np.array_equal(out.reshape(10, *expected.shape), np.broadcast_to(expected, (10, 16)))


def _grouped(source: np.ndarray) -> np.ndarray:
    """The second source of AMX as the tile that these bytes are: columns of four rows."""
    return source.reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16).astype(np.int64)


@pytest.mark.parametrize("rows", [16, 7])
def test_tiles_are_multiplied(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = amos.intrinsics.get(AMX.replace("m16", f"m{rows}"))
    _native(unit)
    monkeypatch.setattr(rate_probe, "_CALLS", 48)
    monkeypatch.setattr(rate_probe, "_BYTES", 8192)
    program = cache_program(unit, "native", (2, 2), 2)
    first, second, out = _run(program)
    again = program.calls // (4 * len(first))
    for i, j in np.ndindex(2, 2):
        expected = sum(
            first[step, i].astype(np.int64) @ _grouped(second[step, j])
            for step in range(len(first))
        )
        assert np.array_equal(out[0, i, j], again * expected)
    chains = register_program(unit, "native", 6, 1)
    first, second, out = _run(chains)
    expected = chains.calls // 6 * (first[0, 0].astype(np.int64) @ _grouped(second[0, 0]))
    assert all(np.array_equal(each, expected) for each in out.reshape(6, rows, 16))


def test_tiles_put_the_smaller_source_on_the_long_side() -> None:
    assert all(m >= n for m, n in tiles(VNNI, "native"))
    assert all(m <= n for m, n in tiles(LANES_FIRST, "native"))


def test_loops_that_are_long_have_one_fragment() -> None:
    assert tiles(amos.intrinsics.get("wmma_m16n16k16_s8_s32"), "generic") == ((1, 1),)
    assert len(tiles(VNNI, "generic")) > 1


#: An instruction of AVX2 that every x86 with it executes, as two: a product, and its addition.
_MADD = """
name = "test_madd_m8k2_s16_s32"
family = "test"
source = "VPMADDWD and VPADDD"
compute = "Dst[i1] += Src1[r1] * Src2[i1, r1]"
extents = {i1 = 8, r1 = 2}
dtypes = {Src1 = "s16", Src2 = "s16", Dst = "s32"}
requires = ["avx2"]
registers = 16
memory = [
    {statement = "reg.Src1[r1] = memory.Src1[addr_a + r1]", broadcast = ["i1"]},
    {statement = "reg.Src2[i1, r1] = memory.Src2[addr_b + i1 * 2 + r1]"},
    {statement = "memory.Dst[addr_c + i1] = reg.Dst[i1]"},
]

[implementation.llvm]
machine = "x86_64"
requires = ["avx2"]
source = '''
Dst[T.ramp(T.int32(0), 1, 8)] = Dst.vload([0], "int32x8") + T.call_llvm_pure_intrin(
    "int32x8",
    "llvm.x86.avx2.pmadd.wd",
    T.reinterpret(
        "int16x16", T.broadcast(T.reinterpret("int32", Src1.vload([0], "int16x2")), 8)
    ),
    Src2.vload([0, 0], "int16x16"),
)
'''
"""


def _products(module: object) -> int:
    """How many products a compiled program has: alone, or as one instruction with their sum."""
    import tvm

    text = str(tvm.compile(module, target=host_target()).mod.inspect_source("s"))
    return text.count("vpmaddwd") + text.count("vpdpwssd")


def test_no_product_is_taken_out_of_the_loop(provided_madd: Intrinsic) -> None:
    """Each accumulator has its own; with the same sources in every call there is a single one."""
    _native(provided_madd)
    assert _products(cache_program(provided_madd, "native", (4, 3), 1).module) >= 12
    assert _products(register_program(provided_madd, "native", 12, 1).module) == 1


@pytest.fixture
def provided_madd() -> Intrinsic:
    read = amos.intrinsics.read(_MADD)
    amos.intrinsics.provide(read)
    unit = read[0]
    assert isinstance(unit, Intrinsic)
    return unit


@pytest.mark.parametrize("name", [FLOATS.name, "avxvnni_dpbusd_m8k4_u8_s8_s32"])
def test_no_rate_is_beyond_what_a_core_can_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the CPU has the instruction or not."""
    monkeypatch.setattr(rate_probe, "_CALLS", 1 << 14)
    monkeypatch.setattr(probe, "_REPEAT", 3)
    unit, clock = amos.intrinsics.get(name), probe.probe_clock()
    for kind in {"generic", implementation(unit, cpu().features)}:
        probe.check_rates(unit, kind, probe.probe_rates(unit, kind, 1), clock)


def test_a_rate_that_no_core_can_reach_is_refused() -> None:
    """3.5 GHz: 32 products of bytes fill a vector of 256 bits."""
    unit = amos.intrinsics.get("avxvnni_dpbusd_m8k4_u8_s8_s32")
    rates = {"latency": 1e-9, "interval": 0.00971e-9}
    for kind in ("generic", "native"):
        with pytest.raises(amos.errors.MeasureError, match=r"interval measured as 0.00971 ns"):
            probe.check_rates(unit, kind, rates, 3.5e9)
    probe.check_rates(unit, "native", {"interval": 0.15e-9}, 3.5e9)


def test_a_tile_register_is_multiplied_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_probe, "_has_numbered_registers", lambda *_: True)
    unit = amos.intrinsics.get(AMX.replace("m16", "m7"))
    assert least_interval(unit, "native", 2e9) == pytest.approx(7 / 2e9)
