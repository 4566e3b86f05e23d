"""The learned correction, where xgboost is installed."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from amos.errors import MachineError
from amos.perfmodel.residual import Residual


def test_it_learns_a_factor() -> None:
    pytest.importorskip("xgboost", reason="xgboost is not installed (extra: learned)")
    rng = np.random.default_rng(0)
    rows = rng.random((200, 3))
    predicted = rng.random(200) + 0.1
    measured = predicted * np.where(rows[:, 0] > 0.5, 4.0, 1.0)
    corrected = Residual.train(rows, predicted, measured).correct(rows, predicted)
    assert np.abs(np.log(corrected / measured)).max() < 0.1


def test_without_xgboost_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MachineError, match="learned"):
        Residual.train(np.ones((2, 1)), np.ones(2), np.ones(2))
