"""Tuning measures every task, goes on from its records, and compile uses them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amos
from amos.errors import ExploreError, UnknownNameError
from tests.network.models import Builder


def _two_products() -> Any:
    b = Builder()
    x = b.node("Relu", b.node("MatMul", b.input("x", (4, 16)), b.random(16, 32)))
    return b.model(b.node("MatMul", x, b.random(32, 8)))


def test_records_are_shared_resumed_and_compiled(tmp_path: Path) -> None:
    network, records = amos.load_network(_two_products()), tmp_path / "records.db"
    seen: list[tuple[int, int]] = []
    first = amos.tune(
        network,
        trials=3,
        records=records,
        progress=lambda done, total, _: seen.append((done, total)),
    )
    assert sorted(task.trials for task in first.tasks) == [1, 2]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    history = first.history
    assert [*history.columns] == ["slice", "task", "trials", "best_seconds", "network_seconds"]
    assert history["trials"].groupby(history["task"]).max().sum() == 3
    figure = amos.viz.allocation(first)
    assert sum(len(trace.x) for trace in figure.data[:-1]) == len(history) == 3
    assert first.seconds == pytest.approx(sum(task.seconds or 0 for task in first.tasks))

    # A run that is continued divides its trials as it did.
    again = amos.tune(network, trials=3, records=records, progress=False)
    assert [task.replayed for task in again.tasks] == [task.trials for task in again.tasks]
    assert again.seconds == first.seconds
    assert list(again.history["task"]) == list(history["task"])

    compiled = amos.compile(network, records=records, progress=False)
    # Leaders that are too close to call are measured again, each time in a record of its own.
    assert all(kernel.choice.seconds is not None for kernel in compiled.kernels.values())
    assert len(compiled.kernels) == 2
    values = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    named = compiled.profile(values, repeat=2).to_frame()
    assert list(named["count"]) == [1, 1]
    assert (named["seconds"] > 0).all()


def test_what_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    network, records = amos.load_network(_two_products()), tmp_path / "records.db"
    with pytest.raises(UnknownNameError, match="unknown scheduler 'best'"):
        amos.tune(network, trials=3, records=records, scheduler="best")
    with pytest.raises(ExploreError, match="retain: expected a share above 0"):
        amos.tune(network, trials=3, records=records, retain=0)
    assert not records.exists()


def test_nothing_to_tune_is_told(tmp_path: Path) -> None:
    b = Builder()
    network = amos.load_network(b.model(b.node("Relu", b.input("x", (4, 16)))))
    with pytest.raises(ExploreError, match="has no task to tune"):
        amos.tune(network, trials=3, records=tmp_path / "records.db")
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
    compiled = amos.compile(network, progress=False)
    np.testing.assert_array_equal(compiled(values), np.maximum(values, 0))


def test_a_network_is_called_by_several_threads() -> None:
    compiled = amos.compile(amos.load_network(_two_products()), verify=False, progress=False)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((4, 16)).astype(np.float32) for _ in range(4)]
    expected = [compiled(values) for values in inputs]
    with ThreadPoolExecutor(4) as pool:
        for number, got in enumerate(pool.map(compiled, inputs * 50)):
            np.testing.assert_array_equal(got, expected[number % 4])
