"""ResNet-18 on VTA."""

from __future__ import annotations

from amos.reproduce.vta import vta


def test_a_layer_beside_its_bounds_and_a_plain_schedule() -> None:
    (row,) = vta(["C10"], trials=2)
    assert row.failed == 0
    assert row.peak == 7 * 7 * 32 * 16 / row.cycles
    assert row.peak <= row.bound <= 1
    assert row.plain > 1.5 * row.cycles
