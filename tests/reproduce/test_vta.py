"""ResNet-18 on VTA."""

from __future__ import annotations

import pytest

from amos.reproduce.vta import vta
from amos.streams.runtime import StreamKernel


@pytest.mark.long
def test_a_layer_beside_its_bounds_and_a_plain_schedule() -> None:
    (row,) = vta(["C10"], trials=2, drawn=4)
    assert row.failed == 0
    assert row.peak == 7 * 7 * 32 * 16 / row.cycles
    assert row.peak <= row.bound <= 1
    assert row.plain > 1.5 * row.cycles
    assert row.ranked is not None
    assert row.ranked > 0.6


def test_what_is_drawn_and_wrong_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = StreamKernel.result
    monkeypatch.setattr(StreamKernel, "result", lambda *arguments: wrong(*arguments) + 1)
    (row,) = vta(["C10"], trials=1, drawn=1)
    assert (row.failed, row.ranked) == (1, None)
