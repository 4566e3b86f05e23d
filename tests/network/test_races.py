"""Programs that are timed in turns: who wins, and for how long they run."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest

from amos.network import races
from amos.network.races import Race, race


def test_the_winner_is_faster_by_its_median_and_at_its_best() -> None:
    assert Race((1.0, 2.0), (3.0, 4.0)).wins
    assert not Race((1.0, 5.0), (0.9, 6.0)).wins  # by the median only
    assert not Race((0.99,), (1.0,)).wins


@pytest.mark.parametrize(
    ("amos", "rival", "rounds"),
    [
        ([1.0], [2.0], 5),
        ([2.0], [1.0], 5),
        ([1.0, 1.5], [1.4, 2.0], 31),
        ([1.5, 2.0], [1.0, 1.6], 31),
        # The other one has the best time of the first rounds.
        ([1.0] * 40 + [0.5] * 400, [2.0, 0.9] + [2.0] * 400, 310),
    ],
)
def test_a_race_takes_fewer_rounds_where_it_is_clear_and_more_in_doubt(
    monkeypatch: pytest.MonkeyPatch, amos: list[float], rival: list[float], rounds: int
) -> None:
    rows = {"amos": cycle(amos), "other": cycle(rival)}
    monkeypatch.setattr(races, "_time_call", lambda name: next(rows[name]))
    names: Any = ("amos", "other")
    result = race(*names)
    assert len(result.amos) == len(result.reference) == rounds
    assert result.wins == (amos[0] < rival[0]) and not result.in_doubt
