"""Tuning measures every task, goes on from its records, and compile uses them."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import amos
from amos.cli.app import main
from amos.errors import ExploreError, RecordError, UnknownNameError
from amos.explore.choosing import Chooser
from amos.machine import Machine
from amos.network import Tuning
from amos.network.lowerings.base import ProductLowering
from amos.network.lowerings.choosing import list_lowerings
from amos.network.task_records import rank_records
from amos.records import Measurement, Records
from tests.network.models import Builder, compile_whole, load_whole
from tests.support.fake import Answering

pytestmark = pytest.mark.usefixtures("short_search")


def _two_products() -> Any:
    b = Builder()
    x = b.node("Relu", b.node("MatMul", b.input("x", (4, 16)), b.random(16, 32)))
    return b.model(b.node("MatMul", x, b.random(32, 8)))


@pytest.mark.long
def test_records_are_shared_resumed_and_compiled(tmp_path: Path) -> None:
    network, records = load_whole(_two_products()), tmp_path / "records.db"
    seen: list[tuple[int, int]] = []
    first = amos.tune(
        network,
        trials=3,
        records=records,
        progress=lambda done, total, _: seen.append((done, total)),
    )
    assert sorted(task.trials for task in first.tasks) == [1, 2]
    assert str(network).endswith(": 2 groups, 2 tasks")
    assert "3 trials\n" in str(first) and ", 1 trial\n" in str(first)
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

    compiled = compile_whole(network, records=records, progress=False)
    # Leaders that are too close to call are measured again, each time in a record of its own.
    assert all(kernel.lowering.measured is not None for kernel in compiled.kernels.values())
    assert len(compiled.kernels) == 2
    assert " 2 kernels: at most 0" in str(compiled)
    # What is compared in the network is of both, so that tuning never makes it slower.
    chooser = Chooser("host")
    for task in network.tasks:
        several = [*list_lowerings(task, chooser, rank_records(records)).rank(6, chooser)]
        keys = [each.product.key for each in several if isinstance(each, ProductLowering)]
        assert several[0].measured is not None
        assert chooser.choose(task.operator).key in keys
        assert len({*keys}) == len(keys) <= 6

    rows = compiled.report().tasks
    kernels = {str(task.operator): kernel for task, kernel in compiled.kernels.items()}
    assert {row.operator: row.measured for row in rows} == {
        operator: kernel.lowering.measured for operator, kernel in kernels.items()
    }
    assert {row.instruction for row in rows} == {k.lowering.instruction for k in kernels.values()}
    assert str(compiled.report()).count(", measured ") == 2

    values = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    named = compiled.profile(values, repeat=2).to_frame()
    assert list(named["count"]) == [1, 1]
    assert (named["seconds"] > 0).all()


def _tuned(records: Path, executor: Answering, trials: int = 40, **options: Any) -> Tuning:
    measure = amos.MeasureOptions(executor=executor)
    network = load_whole(_two_products())
    return amos.tune(
        network, trials=trials, records=records, measure=measure, progress=False, **options
    )


def test_a_run_that_was_stopped_divides_its_trials_as_it_would_have(tmp_path: Path) -> None:
    whole = Answering()
    expected = _tuned(tmp_path / "whole.db", whole)
    records = tmp_path / "records.db"
    with pytest.raises(KeyboardInterrupt) as stopped:
        _tuned(records, Answering(most=21))
    (note,) = stopped.value.__notes__
    assert re.match("interrupted after 21 of 40 trials; '.*records.db' keeps them: the same", note)
    remaining = Answering()
    again = _tuned(records, remaining)
    assert again.slices == expected.slices
    assert [task.seconds for task in again.order] == [task.seconds for task in expected.order]
    assert remaining.count == whole.count - 21
    rows = amos.viz.text(again).splitlines()[2:4]
    assert [row.count("█") for row in rows] == [
        sum(each.task == number for each in again.slices) for number in (0, 1)
    ]
    assert "█" in amos.viz.html(again)


@pytest.mark.long
def test_a_machine_that_is_described_anew_changes_no_division(tmp_path: Path) -> None:
    """What the model said when the run began counts."""

    class Slower(Answering):
        def machine(self, intrinsics: Any, **options: Any) -> Machine:
            target = super().machine(intrinsics, **options)
            return replace(target, costs=replace(target.costs, dense=2 * target.costs.dense))

    records = tmp_path / "records.db"
    expected = _tuned(records, Answering())
    again = _tuned(records, Slower())
    assert again.slices == expected.slices
    assert [task.predicted for task in again.order] == [task.predicted for task in expected.order]
    second = _tuned(tmp_path / "other.db", Slower(model="slower"))
    assert [task.predicted for task in second.order] != [task.predicted for task in expected.order]


def test_records_that_do_not_count_here_are_named(tmp_path: Path) -> None:
    network, mine, theirs = load_whole(_two_products()), tmp_path / "a", tmp_path / "b"
    _tuned(theirs, Answering(), trials=4)
    with Records(theirs) as records:
        rows = records.all()
    older = [replace(row, fingerprint="0" * 16, definition={}) for row in rows]
    with Records(mine) as records:
        records.add_all([*rows, *older])
    compiled = compile_whole(network, records=mine, verify=False, progress=False)
    assert all(kernel.lowering.measured is None for kernel in compiled.kernels.values())
    searched = len({(row.key, row.candidate) for row in rows})
    unused = {"other machine": searched, "other version of the intrinsic": searched}
    assert compiled.to_dict()["unused_records"] == unused
    assert f"{searched} records not used: other machine" in str(compiled)
    assert "not used" not in str(compile_whole(network, verify=False, progress=False))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b""), "it is empty"),
        (lambda path: path.write_text("records"), "file is not a database"),
        (lambda path: os.truncate(path, 6000), "malformed; see: amos records salvage"),
        (lambda path: _executed(path, "UPDATE trials SET times='[1.0]'"), "record 1 is damaged"),
        (lambda path: _executed(path, "PRAGMA user_version=99"), "schema version 99, but"),
    ],
)
def test_damaged_records_are_refused_and_left_alone(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    records, out = tmp_path / "records.db", tmp_path / "out"
    _tuned(records, Answering(), trials=4)
    damage(records)
    before = records.read_bytes()
    onnx.save(_two_products(), tmp_path / "model.onnx")
    with pytest.raises(RecordError, match=message):
        compile_whole(load_whole(tmp_path / "model.onnx"), records=records)
    arguments = ["compile", tmp_path / "model.onnx", "--records", records, "--output", out]
    assert main([*map(str, arguments)]) == 2
    if message != "it is empty":  # which is where a new file begins
        with pytest.raises(RecordError, match=message):
            _tuned(records, Answering(), trials=4)
    assert records.read_bytes() == before or message == "it is empty"
    assert not out.exists()


def _executed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()


@pytest.mark.parametrize(
    ("scheduler", "expected"), [("gradient", [8, 16, 20]), ("bound", [*range(1, 21)])]
)
def test_one_task_gets_all(scheduler: str, expected: list[int], tmp_path: Path) -> None:
    """In batches, or one by one where each result may send the next trial elsewhere."""
    b = Builder()
    network = load_whole(b.model(b.node("MatMul", b.input("x", (4, 16)), b.random(16, 32))))
    measure = amos.MeasureOptions(executor=Answering())
    records = tmp_path / "records.db"
    tuned = amos.tune(
        network,
        trials=20,
        records=records,
        scheduler=scheduler,
        measure=measure,
        progress=False,
    )
    assert [each.trials for each in tuned.slices] == expected


@pytest.mark.long
def test_a_task_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    wide = str(load_whole(_two_products()).tasks[0].operator.extents["n"])

    def answer(task: Any) -> Measurement:
        if str(task.candidate.mapping.operator.extents["n"]) == wide:
            return Measurement((), failure="crash", message="signal 11")
        return Measurement((1e-5,) * 9, 1, 0.0, "generic")

    tuned = _tuned(tmp_path / "some.db", Answering(answer))
    failed = [task for task in tuned.order if task.seconds is None]
    message = r"none of \d+ candidates ran \(crash\); the first says: signal 11"
    assert len(failed) == 1 and re.fullmatch(message, failed[0].reason)
    crash = Measurement((), failure="crash", message="signal 11")
    with pytest.raises(ExploreError, match=f"no task of small could be tuned: {message}"):
        _tuned(tmp_path / "none.db", Answering(lambda _: crash))


def test_what_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    network, records = load_whole(_two_products()), tmp_path / "records.db"
    with pytest.raises(UnknownNameError, match="unknown scheduler 'best'"):
        amos.tune(network, trials=3, records=records, scheduler="best")
    with pytest.raises(UnknownNameError, match="unknown scheduler"):
        amos.tune(network, trials=3, records=records, scheduler=["bound"])  # type: ignore[arg-type]
    with pytest.raises(ExploreError, match="retain: expected a share above 0"):
        amos.tune(network, trials=3, records=records, retain=0)
    with pytest.raises(ExploreError, match="seed: expected a number from 0 on, below"):
        amos.tune(network, trials=3, records=records, seed=-1)
    assert not records.exists()


def test_nothing_to_tune_is_told(tmp_path: Path) -> None:
    b = Builder()
    network = load_whole(b.model(b.node("Relu", b.input("x", (4, 16)))))
    with pytest.raises(ExploreError, match="has no task to tune"):
        amos.tune(network, trials=3, records=tmp_path / "records.db")
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
    compiled = compile_whole(network, progress=False)
    np.testing.assert_array_equal(compiled(values), np.maximum(values, 0))


def test_a_network_is_called_by_several_threads() -> None:
    compiled = compile_whole(load_whole(_two_products()), verify=False, progress=False)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((4, 16)).astype(np.float32) for _ in range(4)]
    expected = [compiled(values) for values in inputs]
    with ThreadPoolExecutor(4) as pool:
        for number, got in enumerate(pool.map(compiled, inputs * 50)):
            np.testing.assert_array_equal(got, expected[number % 4])
