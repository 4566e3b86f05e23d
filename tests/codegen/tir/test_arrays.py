"""Values of bfloat16 in buffers: the instruction and the sequence on integers round alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amos.codegen.tir import memory
from amos.codegen.tir.arrays import encode, expand_encoded
from amos.codegen.tir.memory import register_cpu_pipeline
from amos.codegen.tir.target import host_target
from amos.ir.floats import pack, quantize
from amos.machine.cpu import cpu

_ROWS, _LANES = 64, 16


def _round(values: np.ndarray, native: bool, vector: bool, monkeypatch: Any) -> np.ndarray:
    """The bits that a compiled loop stores."""
    import tvm
    from tvm import s_tir, te

    monkeypatch.setattr(
        memory, "expand_encoded", lambda body, **_: expand_encoded(body, native=native)
    )
    x = te.placeholder(values.shape, "float32", name="x")
    y = te.compute(values.shape, lambda i, j: encode(x(i, j), "bfloat16"), name="y")
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}))
    if vector:
        schedule.vectorize(schedule.get_loops(schedule.get_sblock("y"))[-1])
    built = tvm.compile(schedule.mod, target=host_target(), tir_pipeline=register_cpu_pipeline())
    result = tvm.runtime.tensor(np.zeros(values.shape, np.uint16))
    built["main"](tvm.runtime.tensor(values), result)
    return np.asarray(result.numpy())


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("native", [True, False])
def test_floats_are_rounded_to_nearest_even(
    native: bool, vector: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native and not cpu().features >= memory._ROUNDS_TO_BFLOAT16:
        pytest.skip("this CPU has no avx512_bf16")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, _ROWS * _LANES, np.uint32)
    bits[:8] = 0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x3F808000, 0x3F818000, 0x7F800001
    values = bits.view(np.float32)
    values[np.abs(values) < np.finfo(np.float32).tiny] = 0  # the instruction has no subnormal ones
    values = values.reshape(_ROWS, _LANES)
    result = _round(values, native, vector, monkeypatch)
    number = ~np.isnan(values)
    exact = quantize(np.where(number, values, 0).astype(np.float32), "bf16")
    expected = pack(exact, "bf16").view(np.uint16).reshape(values.shape)
    np.testing.assert_array_equal(result[number], expected[number])
    wide = (result[~number].astype(np.uint32) << 16).view(np.float32)
    assert np.isnan(wide).all()
