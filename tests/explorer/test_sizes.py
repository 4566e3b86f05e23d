"""Sizes of an instruction, its buffers and its machine on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.explorer.test_engine import _judge, _rows, _run

VTA: dict[str, Any] = dict(
    operator="resnet18:C10", intrinsic="vta_gemm_m1n16k16_s8_s32", dtype="s8", machine="vta_pynq"
)


def test_sizes_change_mappings_utilization_and_time(tmp_path: Path) -> None:
    """20 columns leave 12 lanes of the last of 26 empty; half the calls take half the cycles."""
    described, wide = _judge(**VTA), _judge(**VTA, sizes="extents.i2=20")
    assert described["mapping"]["utilization"] == 1
    assert wide["mapping"]["utilization"] == pytest.approx(512 / 520)
    assert wide["prediction"]["seconds"] < described["prediction"]["seconds"]
    slow = _judge(**VTA, sizes="extents.i2=20, machine.clock=5e7")
    assert slow["prediction"]["seconds"] > 1.3 * wide["prediction"]["seconds"]
    (width,) = [x for x in wide["sizes"] if x["path"] == "extents.i2"]
    assert (width["base"], width["value"]) == (16, 20)
    assert width["values"] == [2, 4, 8, 16, 20, 32, 64, 128]
    buffers = [x["path"] for x in wide["sizes"] if x["path"].startswith("memory.")]
    assert buffers == [f"memory.{name}.capacity" for name in ("inp", "wgt", "acc")]
    small = _judge(**VTA, sizes="memory.acc.capacity=4k")
    assert small["prediction"]["seconds"] > described["prediction"]["seconds"]
    none = _judge(**VTA, sizes="memory.wgt.capacity=256, memory.inp.capacity=16")
    assert none["prediction"]["error"] == "no schedule that was drawn fits vta_pynq"
    ranked = _rows(VTA | {"sizes": "extents.i2=20"}, order="seconds")["rows"]
    assert wide["prediction"]["seconds"] >= ranked[0]["seconds"]
    output = _run(slow["code"], tmp_path)
    assert f"{slow['prediction']['seconds'] * 1e6:.4g} us" in output


@pytest.mark.parametrize(
    ("sizes", "machine", "message"),
    [
        ("extents.i9=2", "vta_pynq", "unknown value to set 'extents.i9': known are i1, i2, r1"),
        ("memory.wgt.capacity=100", "vta_pynq", "at least one fragment, 256 bytes, got 100"),
        ("machine.stream.latency=-2", "vta_pynq", "0 or more cycles, below 2**31, got -2"),
        ("compute=1", "vta_pynq", "'compute=1': expected PATH=VALUE"),
        ("extents.i2", "vta_pynq", "'extents.i2': expected PATH=VALUE"),
        ("extents.i2=8", "", "choose a machine"),
    ],
)
def test_sizes_that_cannot_be(sizes: str, machine: str, message: str) -> None:
    answer = _judge(**VTA | {"sizes": sizes, "machine": machine})
    assert message in answer["errors"]["sizes"]
