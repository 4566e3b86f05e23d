"""The same command goes on where it stopped, whatever stopped it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import amos
from amos.errors import ExploreError, RecordError
from amos.explore import Exploration
from amos.measure.task import Task
from amos.records import Measurement, Records, Trial
from tests.support.exploring import grouped
from tests.support.fake import INTRINSIC, OPERATOR, Answering

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")


class _Stop(Exception):
    """The run is over before its time."""


def _noisy(task: Task) -> Measurement:
    return Measurement(tuple(1e-5 * (1 + 0.05 * (n % 3)) for n in range(9)), 1, 0.0, "generic")


def _run(path: Path | None, executor: Any, **options: Any) -> Exploration:
    pinned: dict[str, Any] = {"trials": 12, "method": "ga", "rule": "gather"} | options
    return amos.explore(
        OPERATOR, INTRINSIC, records=path, **grouped(pinned | {"executor": executor})
    )


def _plain(result: Exploration) -> list[tuple[Any, ...]]:
    return [(t.number, t.candidate, t.predicted, t.seconds) for t in result.trials]


@pytest.mark.parametrize("method", ["ga", "random"])
@pytest.mark.long
def test_a_run_that_was_stopped_anywhere_ends_the_same(tmp_path: Path, method: str) -> None:
    whole = Answering()
    expected = _run(None, whole, method=method)
    # In the first batch and in the last one, and while the leaders are confirmed.
    for stop in (5, 10, 13) if method == "ga" else (0, 12):
        path = tmp_path / f"{stop}.db"
        with pytest.raises(_Stop):
            _run(path, Answering(most=stop, stop=_Stop), method=method)
        remaining_answers = Answering()
        result = _run(path, remaining_answers, method=method)
        assert remaining_answers.count == whole.count - stop
        assert result.replayed == min(stop, 12)
        assert _plain(result) == _plain(expected)
        assert result.best.candidate == expected.best.candidate
        nothing = Answering(most=0, stop=_Stop)
        assert _plain(_run(path, nothing, method=method)) == _plain(expected)


def test_more_trials_measure_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    for trials in (5, 12, 30):
        _run(path, Answering(), trials=trials, method="random")
    with Records(path) as records:
        rows = [row for row in records.all() if row.phase == "search"]
    assert len({row.candidate for row in rows}) == len(rows) <= 36


@pytest.mark.parametrize(
    "change",
    [dict(seed=1), dict(method="random"), dict(timeout=9.0), dict(flush=1), dict(commute=True)],
    ids=str,
)
def test_another_run_takes_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "tuning.db"
    _run(path, Answering(), trials=4)
    assert _run(path, Answering(), **({"trials": 4} | change)).replayed == 0


def test_another_machine_takes_nothing_and_says_so(tmp_path: Path) -> None:
    path, messages = tmp_path / "tuning.db", list[str]()
    _run(path, Answering(model="one"), trials=4)
    result = _run(path, Answering(model="two"), trials=4, notify=messages.append)
    assert result.replayed == 0
    assert len(messages) == 1
    assert "records were made on another machine, not used" in messages[0]
    with Records(path) as records:
        assert len({row.machine_key for row in records.all()}) == 2


def test_an_older_intrinsic_is_not_taken(tmp_path: Path) -> None:
    path, messages = tmp_path / "tuning.db", list[str]()
    _run(path, Answering(), trials=4)
    with Records(path) as records:
        rows = records.all()
    target = tmp_path / "other.db"
    older = [replace(row, fingerprint="0" * 16) for row in rows]
    with Records(target) as records:
        records.add_all(older)
    assert _run(target, Answering(), trials=4, notify=messages.append).replayed == 0
    assert "another version of vnni" in messages[0]


def test_other_operators_are_kept_and_said(tmp_path: Path) -> None:
    path, messages = tmp_path / "tuning.db", list[str]()
    gemm = amos.Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=32, k=8))
    amos.explore(gemm, INTRINSIC, machine="xeon_6240", trials=3, records=path)
    _run(path, Answering(), trials=4, notify=messages.append)
    assert messages == [
        f"record file {str(path)!r}: its 3 records are of another operator, kept and not used"
    ]
    with Records(path) as records:
        assert {row.operator for row in records.all() if row.id < 4} != {str(OPERATOR)}


@pytest.mark.long
def test_a_file_of_several_operators_is_no_news(tmp_path: Path) -> None:
    """Nor are records of the operator on another instruction those of another operator."""
    path, messages = tmp_path / "tuning.db", list[str]()
    for rows in (6, 7, 8):
        extents = dict(i=rows, j=32, k=8)
        gemm = amos.Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=extents)
        for intrinsic in (INTRINSIC, "vnni_dpbusd_m8k4_u8_s8_s32"):
            amos.explore(
                gemm, intrinsic, machine="xeon_6240", trials=2, records=path, notify=messages.append
            )
    assert len(messages) == 1
    assert "its 4 records are of another operator" in messages[0]


def test_the_model_alone_is_not_recorded_twice(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    for _ in range(2):
        amos.explore(OPERATOR, INTRINSIC, machine="xeon_6240", trials=6, records=path)
    with Records(path) as records:
        assert len(records.all()) == 6


def test_leaders_that_are_too_close_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    _run(path, Answering(_noisy), trials=6)
    with Records(path) as records:
        again = [row.attempt for row in records.all() if row.phase == "confirm"]
    assert again == [0, 0, 0, 0, 1, 1, 2, 2]
    clear = Answering()
    _run(None, clear, trials=6)
    assert clear.count == 6 + 4


def test_a_time_limit(tmp_path: Path) -> None:
    result = _run(None, Answering(), trials=10_000, method="random", time_limit=0.2)
    assert 1 <= len(result.trials) < 10_000
    assert len(_run(None, Answering(), time_limit=1e-9).trials) == 1
    with pytest.raises(ExploreError, match="time_limit: expected a positive number of seconds"):
        _run(None, Answering(), time_limit=0)
    with pytest.raises(ExploreError, match="memory: expected a number of bytes, got -1"):
        _run(None, Answering(), memory=-1)


def test_progress_counts_replayed_trials_too(tmp_path: Path) -> None:
    path, seen = tmp_path / "tuning.db", list[int]()

    def tell(trial: Trial, _: int) -> None:
        seen.append(trial.number)

    for _ in range(2):
        _run(path, Answering(), trials=5, progress=tell)
    assert seen == [0, 1, 2, 3, 4] * 2


def test_a_read_only_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    _run(path, Answering(), trials=4)
    path.chmod(0o444)
    before = path.read_bytes()
    with pytest.raises(RecordError, match="tuning.db': (it is read-only|attempt to write)"):
        _run(path, Answering(), trials=4)
    assert path.read_bytes() == before
    with Records(path, readonly=True) as records:
        assert records.all()


def test_a_damaged_row_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    _run(path, Answering(), trials=4)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE trials SET times='[1.0]' WHERE id=2")
        database.commit()
    with (
        Records(path) as records,
        pytest.raises(RecordError, match="record 2 is damaged: .*salvage"),
    ):
        records.all()
    with pytest.raises(RecordError, match="record 2 is damaged"):
        _run(path, Answering(), trials=4)


def test_another_programs_database_of_version_2_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE trials (id INTEGER PRIMARY KEY)")
        database.execute("PRAGMA user_version=2")
        database.commit()
    with pytest.raises(RecordError, match="another program's database"):
        Records(path)
