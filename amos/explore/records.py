"""Records: every trial in one SQLite file, written as soon as it is known."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Any

from amos.errors import RecordError
from amos.explore.objective import Trial
from amos.perfmodel import Machine

__all__ = ["SCHEMA_VERSION", "Records"]

SCHEMA_VERSION = 1

_TABLE = """
CREATE TABLE trials (
    id INTEGER PRIMARY KEY,
    created TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    operator TEXT NOT NULL,
    intrinsic TEXT NOT NULL,
    machine TEXT NOT NULL,
    method TEXT NOT NULL,
    seed INTEGER NOT NULL,
    number INTEGER NOT NULL,
    mapping TEXT NOT NULL,
    schedule TEXT NOT NULL,
    predicted REAL NOT NULL,
    times TEXT NOT NULL,
    verified_elements INTEGER NOT NULL,
    max_difference REAL NOT NULL,
    failure TEXT NOT NULL,
    message TEXT NOT NULL
)
"""


class Records:
    """A record file that is being written.

    Raises:
        RecordError: the file cannot be created, is not a record file, or was
            written by a newer version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._database = sqlite3.connect(self.path)
        except sqlite3.Error as error:
            raise RecordError(f"record file {str(self.path)!r}: {error}") from error
        try:
            self._open()
        except sqlite3.Error as error:
            self._database.close()
            raise RecordError(f"record file {str(self.path)!r}: {error}") from error
        except RecordError:
            self._database.close()
            raise

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._database.close()

    def add(self, trial: Trial, machine: Machine, method: str, seed: int) -> None:
        """Write one trial; it is on disk when this returns.

        Raises:
            RecordError: the file cannot be written.
        """
        measured = trial.measurement
        row: dict[str, Any] = {
            "operator": str(trial.mapping.operator),
            "intrinsic": trial.mapping.intrinsic.name,
            "machine": machine.source or machine.name,
            "method": method,
            "seed": seed,
            "number": trial.number,
            "mapping": json.dumps({k: list(v) for k, v in trial.mapping.groups.items()}),
            "schedule": json.dumps(trial.schedule.as_dict()),
            "predicted": trial.predicted,
            "times": json.dumps(list(measured.times) if measured else []),
            "verified_elements": measured.verified_elements if measured else 0,
            "max_difference": measured.max_difference if measured else 0.0,
            "failure": measured.failure if measured else "",
            "message": measured.message if measured else "",
        }
        columns, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
        try:
            with self._database:
                self._database.execute(f"INSERT INTO trials ({columns}) VALUES ({marks})", row)
        except sqlite3.Error as error:
            raise RecordError(f"record file {str(self.path)!r}: {error}") from error

    def rows(self) -> list[dict[str, Any]]:
        """Every record as a dictionary, oldest first."""
        cursor = self._database.execute("SELECT * FROM trials ORDER BY id")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def _open(self) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        tables = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version == 0 and tables == 0:
            with self._database:
                self._database.execute(_TABLE)
                self._database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        elif version != SCHEMA_VERSION:
            raise RecordError(
                f"record file {str(self.path)!r}: schema version {version}, "
                f"but this version of amos reads {SCHEMA_VERSION}"
            )
        # Only now: it changes the file, which might have been somebody else's.
        self._database.execute("PRAGMA journal_mode=WAL")
