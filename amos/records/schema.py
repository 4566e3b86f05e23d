"""The SQLite file of records: its tables, opening it, and detecting its loss."""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
from pathlib import Path

from amos.errors import RecordError
from amos.records.rows import COLUMNS

#: Seconds to wait for another process that is writing.
PATIENCE = 60.0
SCHEMA_VERSION = 2
#: "AMOS": tells our files from other programs' databases.
APPLICATION_ID = 0x414D4F53

_TYPES = {int: "INTEGER", float: "REAL"}
_TRIALS = "CREATE TABLE trials (id INTEGER PRIMARY KEY, {}, digest TEXT NOT NULL)".format(
    ", ".join(f"{name} {_TYPES.get(kinds[0], 'TEXT')} NOT NULL" for name, kinds in COLUMNS.items())
)
#: A run has one measurement of a candidate, the first one written.
_UNIQUE = "CREATE UNIQUE INDEX one_each ON trials (run, candidate, phase, attempt)"
#: Columns that a run needs to resume: the machine as the model saw it.
_RUNS = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY,
    created TEXT NOT NULL,
    description TEXT NOT NULL,
    finished TEXT NOT NULL DEFAULT ''
)
"""

#: The intrinsics that the records were made with; older files have no such table. A digest
#: tells whether one is damaged, as for records.
INTRINSICS = """
CREATE TABLE IF NOT EXISTS intrinsics (
    id INTEGER PRIMARY KEY,
    intrinsic TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    definition TEXT NOT NULL,
    digest TEXT NOT NULL,
    UNIQUE (intrinsic, fingerprint)
)
"""


def create(database: sqlite3.Connection) -> None:
    """Make the tables of the present version; inside a transaction."""
    for statement in (_TRIALS, _UNIQUE, _RUNS, INTRINSICS):
        database.execute(statement)
    database.execute(f"PRAGMA application_id={APPLICATION_ID}")
    database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def connect(path: Path, *, readonly: bool) -> sqlite3.Connection:
    """Open a connection without transactions of its own.

    Raises:
        RecordError: there is no such file to read.
        sqlite3.Error: SQLite cannot open it.
    """
    if not readonly:
        return sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    if not path.is_file():
        raise RecordError(f"record file {str(path)!r}: there is no such file")
    address, last = path.resolve().as_uri(), sqlite3.OperationalError("unreadable")
    # With permission to write, SQLite puts its log away when it is done; without,
    # it can read, but in an unwritable folder only if told that no process writes.
    for mode in ("rw", "ro", "ro&immutable=1"):
        if mode == "rw" and not is_writable(path):
            continue
        database = sqlite3.connect(
            f"{address}?mode={mode}", uri=True, timeout=PATIENCE, isolation_level=None
        )
        try:
            database.execute("PRAGMA query_only=ON")
            database.execute("PRAGMA schema_version")
        except sqlite3.OperationalError as error:
            database.close()
            last = error
            continue
        except BaseException:
            database.close()
            raise
        return database
    raise last


def is_writable(path: Path) -> bool:
    """Return whether this process may write a file; root may only if somebody may."""
    mode = path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    return bool(mode) and os.access(path, os.W_OK)


def is_same_file(path: Path, opened: os.stat_result) -> bool:
    """Return whether a path still names the file that was opened."""
    try:
        return os.path.samestat(path.stat(), opened)
    except OSError:
        return False


def put_back(database: sqlite3.Connection, path: Path) -> str:
    """Restore a deleted file from a connection; return where it is, or why it is lost."""
    names = itertools.chain(
        [path], (path.with_name(f"{path.name}.{n}") for n in itertools.count(1))
    )
    target = next(name for name in names if not name.exists())
    try:
        database.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error as error:
        return f"and its records are lost: {error}"
    return f"and all of its records are in {str(target)!r} now; the same command goes on there"
