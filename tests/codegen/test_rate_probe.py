"""Programs that tell how fast an intrinsic can run: they make the calls that they count."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.codegen import rate_probe
from amos.codegen.rate_probe import RateProgram, fed_program, register_program, tiles
from amos.codegen.target import host_target
from amos.codegen.tensor_intrin import implementation
from amos.intrinsics import Intrinsic, execute
from amos.perfmodel.host import cpu

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
    program = fed_program(unit, tile, 2)
    first, second, out = _run(program)
    steps = len(first)
    again, rest = divmod(program.calls, tile[0] * tile[1] * steps)
    assert again >= 1 and rest == 0
    for i, j in np.ndindex(*tile):
        expected = np.zeros_like(out[0, 0, 0])
        for _ in range(again):
            for step in range(steps):
                expected = _call(unit, first[step, i], second[step, j], expected)
        for core in range(2):
            np.testing.assert_allclose(out[core, i, j], expected, rtol=1e-5, atol=1e-4)


def test_chains_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_probe, "_CALLS", 60)
    program = register_program(VNNI, 5, 2)
    first, second, out = _run(program)
    assert program.calls == 60
    expected = np.zeros_like(out[0, 0, 0])
    for _ in range(12):
        expected = _call(VNNI, first, second, expected)
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
    program = fed_program(unit, (2, 2), 2)
    first, second, out = _run(program)
    again = program.calls // (4 * len(first))
    for i, j in np.ndindex(2, 2):
        expected = sum(
            first[step, i].astype(np.int64) @ _grouped(second[step, j])
            for step in range(len(first))
        )
        assert np.array_equal(out[0, i, j], again * expected)
    chains = register_program(unit, 6, 1)
    first, second, out = _run(chains)
    expected = chains.calls // 6 * (first[0, 0].astype(np.int64) @ _grouped(second[0, 0]))
    assert all(np.array_equal(each, expected) for each in out.reshape(6, rows, 16))


def test_tiles_put_the_smaller_source_on_the_long_side() -> None:
    assert all(m >= n for m, n in tiles(VNNI))
    assert all(m <= n for m, n in tiles(LANES_FIRST))
