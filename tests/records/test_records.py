"""The record file: what it holds, and which files are refused."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import amos
from amos.errors import RecordError
from amos.ir import Operator
from amos.records import Records, Trial
from amos.records.schema import SCHEMA_VERSION
from tests.support.fake import FakeExecutor

pytestmark = pytest.mark.usefixtures("short_search", "one_guard")

VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
GEMM = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=32, k=8))


def _explore(path: Path, seed: int = 0) -> amos.explore.Exploration:  # type: ignore[name-defined]
    return amos.explore(GEMM, VNNI, machine="xeon_6240", trials=5, seed=seed, records=path)


def test_every_trial_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    result = _explore(path)
    with Records(path) as records:
        rows = records.all()
    assert len(rows) == 5
    for row, trial in zip(rows, result.trials, strict=True):
        assert row.number == trial.number
        assert row.operator == str(result.operator)
        assert row.intrinsic == VNNI
        assert row.schedule == trial.schedule.as_dict()
        assert row.mapping == trial.mapping.groups
        assert row.predicted == trial.predicted
        assert row.times == ()
        assert (row.method, row.seed, row.failure) == ("ga", 0, "")
        assert row.created.endswith("Z")


def test_later_explorations_are_added(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    _explore(path)
    _explore(path, seed=1)
    with Records(path) as records:
        assert [row.seed for row in records.all()] == [0] * 5 + [1] * 5
    _explore(path)
    with Records(path) as records:
        assert len(records.all()) == 10


def test_a_text_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, and long enough to be looked at as one" * 20)
    before = path.read_bytes()
    with pytest.raises(RecordError, match=r"record file '.*notes.txt': file is not a database"):
        _explore(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    _explore(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(RecordError, match=f"schema version {SCHEMA_VERSION + 1}, .*reads"):
        _explore(path)


def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE birds (name TEXT)")
        database.commit()
    before = path.read_bytes()
    with pytest.raises(RecordError, match="theirs.db"):
        _explore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["missing/tuning.db", "."])
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match="unable to open database file"):
        _explore(tmp_path / name)


def test_a_refused_file_stays_open_nowhere(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    import gc

    with pytest.raises(RecordError):
        Records(tmp_path / "missing" / "tuning.db")
    path = tmp_path / "notes.txt"
    path.write_text("x" * 2000)
    with pytest.raises(RecordError):
        Records(path)
    gc.collect()
    assert not recwarn.list


@pytest.mark.parametrize("content", ["", "of somebody else"])
@pytest.mark.parametrize("executor", ["fake", "model"])
def test_a_file_that_is_deleted_meanwhile_is_put_back(
    tmp_path: Path, content: str, executor: str
) -> None:
    path = tmp_path / "tuning.db"
    seen: list[int] = []

    def tell(trial: Trial, _: int) -> None:
        seen.append(trial.number)
        if trial.number == 1:
            path.unlink()
            if content:
                path.write_text(content)

    how = (
        {"machine": "xeon_6240"}
        if executor == "model"
        else {"measure": amos.MeasureOptions(executor=FakeExecutor())}
    )
    with pytest.raises(RecordError, match="deleted or replaced while .* are in '.*'") as caught:
        amos.explore(GEMM, VNNI, trials=4, records=path, progress=tell, **how)
    where = Path(str(caught.value).rpartition(" in '")[2].partition("'")[0])
    assert (where == path) == (not content)
    with Records(where) as records:
        rows = records.all()
        assert len(rows) > 2
        records.add_all(rows)
    if content:
        assert path.read_text() == content
    # With its folder gone too, nothing can be put back, and nothing is silent about it.
    with Records(tmp_path / "new.db") as records:
        shutil.rmtree(tmp_path)
        with pytest.raises(RecordError, match=r"new\.db"):
            records.finish_run("run", {})


def test_another_process_makes_the_tables_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look at a new file and the second."""
    path, looked = tmp_path / "new.db", Records._empty

    def late(self: Records) -> bool:
        monkeypatch.setattr(Records, "_empty", looked)
        Records(path).close()
        return looked(self)

    monkeypatch.setattr(Records, "_empty", late)
    with Records(path) as records:
        assert not records.all()


@pytest.mark.parametrize(
    "command", ["prune FILE --failed", "salvage FILE new.db", "list FILE", "merge new.db FILE"]
)
def test_a_name_that_no_file_can_have(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from amos.cli import main

    assert main(["records", *command.replace("FILE", "x" * 400).split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 3
