"""Records leave and enter a file whole, or not at all; others' are told from ours."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import amos
from amos.errors import RecordError
from amos.explore.replay import replay
from amos.machine.identity import identify_host
from amos.records import Record, Records
from amos.records.exchange import (
    best_records,
    export_lines,
    import_lines,
    merge,
    select_prunable,
)
from amos.records.rows import record_of, row_of
from amos.records.salvage import salvage
from tests.support.drills import _run

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
GEMM = amos.Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=32, k=8))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record file of a run with a workload that takes no time."""
    path = tmp_path_factory.mktemp("records") / "fake.db"
    _run(path, 30)
    return path


@pytest.fixture
def rows(recorded: Path) -> list[Record]:
    with Records(recorded, readonly=True) as records:
        return records.all()


def test_reading_leaves_no_files_behind(recorded: Path, rows: list[Record]) -> None:
    assert rows
    assert [path.name for path in recorded.parent.iterdir()] == [recorded.name]


def test_json_lines_and_back(recorded: Path, tmp_path: Path, rows: list[Record]) -> None:
    with Records(recorded, readonly=True) as records, Records(tmp_path / "b.db") as target:
        lines = list(export_lines(records))
        assert str(import_lines(target, lines)) == f"{len(rows)} added, 0 there already"
        assert str(import_lines(target, lines)) == f"0 added, {len(rows)} there already"
        assert list(export_lines(target)) == lines


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is no record: expected an object"),
        ("{}", "line 2 is no record: operator: expected this key, found none"),
        ("[" * 100_000, "line 2 is not JSON"),
    ],
)
def test_a_bad_line_adds_nothing(recorded: Path, tmp_path: Path, line: str, words: str) -> None:
    with Records(recorded, readonly=True) as records, Records(tmp_path / "b.db") as target:
        good = next(export_lines(records))
        with pytest.raises(RecordError, match=words):
            import_lines(target, [good, line])
        assert target.all() == []


def test_a_line_that_was_tampered_with(rows: list[Record], tmp_path: Path) -> None:
    row = row_of(rows[0])
    changes: list[dict[str, Any]] = [
        {"times": [1e-9]},
        {"seed": "0"},
        {"phase": "later"},
        {"extra": 1},
    ]
    with Records(tmp_path / "b.db") as target:
        for change in changes:
            with pytest.raises(RecordError, match="line 1 is no record"):
                import_lines(target, [json.dumps(row | change)])


def test_merging(recorded: Path, tmp_path: Path, rows: list[Record]) -> None:
    other_path = tmp_path / "other.db"
    with Records(other_path) as records:
        # The same measurement with other times: what is there stands.
        records.add(replace(rows[0], times=(1.0,)))
        records.add(rows[1])
        counts = merge(records, recorded)
        assert (counts.new, counts.known, counts.differing) == (len(rows) - 2, 1, 1)
        assert records.get(1).times == (1.0,)
    with Records(tmp_path / "b.db") as target, pytest.raises(RecordError, match="no such file"):
        merge(target, tmp_path / "nothing.db")


def test_pruning(rows: list[Record], tmp_path: Path) -> None:
    failed = replace(rows[0], failure="crash", times=())
    old = replace(rows[1], created="2001-01-01T00:00:00.000Z")
    changed = [failed, old, *rows[2:]]
    assert select_prunable(changed, failed=True) == [failed.id]
    assert select_prunable(changed, older_days=1) == [old.id]
    assert len(select_prunable(changed, keep=5)) == len(rows) - 5
    assert len(select_prunable(changed, foreign=True)) == len(rows)  # a fake machine's
    with Records(tmp_path / "b.db") as records:
        records.add_all(rows)
        records.remove([1, 2])
        assert [row.id for row in records.all()][0] == 3


def test_the_best_counts_by_its_last_measurement(rows: list[Record]) -> None:
    first = replace(rows[0], times=(1e-9,), id=1)
    again = replace(rows[0], times=(1.0,), phase="confirm", id=2)
    second = rows[1]
    assert [row.id for row in best_records([first, again, second])] == [second.id]
    wrong = replace(second, failure="wrong", times=(), id=9)
    assert best_records([wrong]) == []


def _of_this_machine(path: Path) -> Record:
    """A record of a kernel that this machine can build, as if it had been timed here."""
    amos.explore(GEMM, VNNI, machine="xeon_6240", trials=1, records=path)
    with Records(path) as records:
        row = records.all()[0]
    timed = replace(
        row, machine=identify_host(), machine_key=identify_host().key, times=(1e-6,) * 3
    )
    return replace(timed, definition=None)


def test_whose_a_record_is(tmp_path: Path) -> None:
    row = _of_this_machine(tmp_path / "tuning.db")
    assert row.standing == "here"
    assert replace(row, machine_key="0").standing == "other machine"
    assert replace(row, fingerprint="0").standing == "other version of the intrinsic"
    assert replace(row, intrinsic="nothing").standing == "unknown intrinsic"
    replayed = replay(row, repeat=3)
    assert replayed.measurement.verified_elements == 6 * 32
    assert replayed.notes == ()
    assert replayed.candidate == row.rebuild()
    assert replayed.recorded_seconds == 1e-6
    elsewhere = replay(replace(row, machine_key="0"), repeat=3)
    assert "another machine" in elsewhere.notes[0]
    with pytest.raises(RecordError, match="made with another version of vnni_dpbusd"):
        replay(replace(row, fingerprint="0"))
    with pytest.raises(RecordError, match="describes no candidate"):
        replay(replace(row, schedule={"tile.i": 5}))
    with pytest.raises(RecordError, match="describes no candidate"):
        replay(replace(row, mapping={"i1": ("k",), "r1": ("j",)}))


def test_version_1_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(old)) as database:
        database.execute("CREATE TABLE trials (id INTEGER PRIMARY KEY, created TEXT NOT NULL)")
        database.execute("PRAGMA user_version=1")
        database.commit()
    before = old.read_bytes()
    for readonly in (True, False):
        with pytest.raises(RecordError, match="version 1; .* of commit [0-9a-f]{8} converts"):
            Records(old, readonly=readonly)
    assert old.read_bytes() == before


def test_salvage_reads_the_log_and_long_records(rows: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "open.db"
    long = replace(rows[0], message="x" * 30_000)
    with Records(path) as records:
        records.add_all([long, *rows[1:]])
        # Nothing has been written back from the log yet.
        assert Path(f"{path}-wal").stat().st_size > 30_000
        salvaged = salvage(path)
    assert len(salvaged.records) == len(rows)
    assert salvaged.records[1].message == "x" * 30_000
    assert str(salvaged) == f"salvaged {len(rows)} records"


def test_salvage_refuses(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such file"):
        salvage(tmp_path / "nothing.db")
    with pytest.raises(RecordError, match="it exists; name a new file"):
        salvage(recorded, recorded)
    notes = tmp_path / "notes.txt"
    notes.write_text("nothing of the kind" * 1000)
    with pytest.raises(RecordError, match="not one record can be .*: sqlite3 .* .recover"):
        salvage(notes, tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def test_a_damaged_number_costs_nothing(recorded: Path, tmp_path: Path) -> None:
    """A bit of a row's number is another, so that the numbers of rows behind it are smaller."""
    with Records(recorded, readonly=True) as records:
        first, *remaining = records.all()
    data, path, salvaged = recorded.read_bytes(), tmp_path / "damaged.db", list[set[int]]()
    # SQLite writes the number shortly ahead of a row's first text.
    end = data.index(first.created.encode())
    for place in range(end - 128, end):
        if data[place] == first.id:
            path.write_bytes(data[:place] + bytes([first.id + 64]) + data[place + 1 :])
            salvaged.append(set(salvage(path).records))
    assert {first.id + 64, *(record.id for record in remaining)} in salvaged


def test_rubbish_never_breaks_the_salvage(recorded: Path, tmp_path: Path) -> None:
    import numpy as np

    data, rng = recorded.read_bytes(), np.random.default_rng(0)
    path, counts = tmp_path / "damaged.db", []
    for _ in range(40):
        changed = bytearray(data)
        # The first page has the tables: without it nothing is salvaged.
        for place in rng.integers(4096, len(data), 10):
            changed[place] = int(rng.integers(256))
        path.write_bytes(bytes(changed))
        try:
            salvaged = salvage(path)
        except RecordError:
            continue
        assert all(record_of(row_of(each), each.id) == each for each in salvaged.records.values())
        counts.append(len(salvaged.records))
    assert len(counts) > 20
