"""Whatever a record file holds, whoever reads it gets records or an error of ours."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amos.cli.records import _print, _row_values
from amos.errors import AmosError
from amos.records import Records
from amos.records.exchange import best_records, export_lines, import_lines, select_prunable
from amos.records.rows import COLUMNS, ENCODED, row_of
from amos.records.salvage import salvage
from tests.support.drills import _run
from tests.support.forged import encoded, sealed

#: What a column or a value inside it is replaced by.
_JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**63, 10**400, 1.5, float("inf"), float("nan"), "", "x", "\0", "\ud800"),
    *(
        [],
        [1],
        [[]],
        ["k"],
        {},
        {"k": 1},
        {"": None},
        {"i1": "k"},
        {"i1": ["k", "k"]},
        "host",
        "9" * 5000,
    ),
)
_DEEP = ("[" * 100_000, "[" * 500 + "]" * 500, '{"a":' * 300 + "1" + "}" * 300, "[" * 33 + "]" * 33)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "fake.db"
    _run(path, 6)
    return path


def _read(path: Path) -> None:
    """Everything that commands do with a file, short of building a kernel."""
    with Records(path, readonly=True) as records:
        rows = records.all()
        lines = list(export_lines(records))
    for row in rows:
        json.dumps(_row_values(row))
        assert row.standing
    with contextlib.suppress(AmosError):
        rows[0].rebuild()
    _print(best_records(rows), as_json=False)
    select_prunable(rows, failed=True, foreign=True, older_days=1, keep=1)
    with Records(path.with_name("other.db")) as target:
        import_lines(target, lines)


def _attempts(path: Path) -> tuple[Callable[[], object], ...]:
    def write() -> None:
        with Records(path) as records:
            records.finish_run("run", {})

    return (lambda: _read(path), lambda: salvage(path, path.with_name("saved.db")), write)


def _survives(path: Path, what: object) -> int:
    """Run everything on a file; how much of it was refused."""
    refused = 0
    for attempt in _attempts(path):
        for name in ("saved.db", "other.db"):
            path.with_name(name).unlink(missing_ok=True)
        try:
            attempt()
        except AmosError as error:
            refused += 1
            assert len(str(error).splitlines()) <= 2, (what, error)
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    for name in ("-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)
    return refused


def _flip(recorded: Path, path: Path, rounds: int, seed: int) -> None:
    data, rng = recorded.read_bytes(), np.random.default_rng(seed)
    refused = 0
    for number in range(rounds):
        changed = bytearray(data)
        # The first page holds the header and the schema, which Python quotes in errors.
        place = int(rng.integers(0, (4096, len(data))[number % 2]))
        changed[place] = int(rng.integers(256))
        path.write_bytes(bytes(changed))
        refused += _survives(path, f"byte {place} = {changed[place]}")
    assert refused > rounds // 10


def _paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    below = value.items() if isinstance(value, dict) else ()
    return [here, *(path for key, each in below for path in _paths(each, (*here, key)))]


def _replaced(row: dict[str, Any], place: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    changed = json.loads(json.dumps({name: row[name] for name in COLUMNS}))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = junk
    return dict(changed)


def _store(path: Path, values: dict[str, Any]) -> bool:
    """Put values into the first record as they are; false if SQLite cannot hold them."""
    names = ", ".join(f"{name}=:{name}" for name in values)
    with closing(sqlite3.connect(path)) as database:
        try:
            database.execute(f"UPDATE trials SET {names} WHERE id=1", values)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError):
            return False
        database.commit()
    return True


def _tamper(recorded: Path, path: Path, rounds: int, seed: int) -> None:
    """Values of wrong types under a digest that fits them."""
    rng = np.random.default_rng(seed)
    with Records(recorded, readonly=True) as records:
        row = row_of(records.all()[0])
    places = [place for place in _paths({name: row[name] for name in COLUMNS}) if place]
    refused = 0
    for _ in range(rounds):
        place, junk = places[rng.integers(len(places))], _JUNK[rng.integers(len(_JUNK))]
        changed = _replaced(row, place, junk)
        path.write_bytes(recorded.read_bytes())
        if _store(path, encoded(sealed(changed))):
            refused += _survives(path, f"{place} = {junk!r:.40}")
    assert refused > rounds // 10


@pytest.mark.long
def test_a_changed_byte(recorded: Path, tmp_path: Path) -> None:
    _flip(recorded, tmp_path / "damaged.db", 30, seed=0)


def test_wrong_types_under_a_right_digest(recorded: Path, tmp_path: Path) -> None:
    _tamper(recorded, tmp_path / "damaged.db", 30, seed=0)


@pytest.mark.parametrize("text", _DEEP, ids=len)
def test_deep_json(recorded: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "deep.db"
    for name in ENCODED:
        path.write_bytes(recorded.read_bytes())
        assert _store(path, {name: text})
        assert _survives(path, name)


def test_a_huge_number(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "huge.db"
    path.write_bytes(recorded.read_bytes())
    assert _store(path, {"id": 2**63 - 1})
    salvaged = salvage(path)
    assert salvaged.missing == (
        (1, 1),
        (max(n for n in salvaged.records if n < 2**60) + 1, 2**63 - 2),
    )


@pytest.mark.slow
def test_many_of_each(recorded: Path, tmp_path: Path) -> None:
    _flip(recorded, tmp_path / "damaged.db", 1000, seed=1)
    _tamper(recorded, tmp_path / "damaged.db", 1000, seed=1)
