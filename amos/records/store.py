"""Records: every trial in one SQLite file, written as soon as it is known.

Everything in the file is text and numbers: nothing read from it is unpickled or
evaluated, and a row whose digest does not fit its values is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from amos._closing import Closing
from amos.errors import RecordError, check_path
from amos.machine import catalogue
from amos.records.canonical import digest
from amos.records.frame import frame_of
from amos.records.record import Record, Run
from amos.records.rows import STORED, decode, encode, read_definitions, record_of
from amos.records.schema import (
    APPLICATION_ID,
    INTRINSICS,
    PATIENCE,
    SCHEMA_VERSION,
    connect,
    create,
    is_same_file,
    is_writable,
    put_back,
)

if TYPE_CHECKING:
    import pandas as pd

#: SQLite errors of a damaged file (https://www.sqlite.org/rescode.html). Where
#: the schema is damaged, a table or a column seems not to exist, its generic error.
_DAMAGED = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_NOTADB,
)
#: The first page of every record file holds the statement that creates our table.
_SIGN, _FIRST_PAGE = b"TABLE trials", 1 << 16
#: The last version that reads files of schema version 1.
_CONVERTER = "`amos records merge NEW_FILE FILE` of commit 32f43f65"


def now() -> str:
    """Return the present time in UTC, as records hold it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Records(Closing):
    """A record file.

    Several processes may write one file at once.

    Args:
        path: the file; it is created unless ``readonly``.
        readonly: change nothing, and need no permission to.

    Raises:
        RecordError: the file cannot be created, read or written, is damaged, is
            not a record file, or is of another version.
    """

    def __init__(self, path: str | Path, *, readonly: bool = False) -> None:
        self.path, self.readonly = check_path("records", path, RecordError), readonly
        self._opened: os.stat_result | None = None
        with self._errors():
            self._database = connect(self.path, readonly=readonly)
        try:
            with self._errors():
                self._open()
                self._opened = self.path.stat()
        except RecordError:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def add(self, record: Record) -> bool:
        """Write one record; it is on disk when this returns.

        Raises:
            RecordError: the file cannot be written.
        """
        return self.add_all([record]) == 1

    def add_all(self, records: Sequence[Record]) -> int:
        """Write records, all or none; return how many were new, or raise RecordError."""
        columns, marks = ", ".join(STORED[1:]), ", ".join(f":{name}" for name in STORED[1:])
        statement = f"INSERT INTO trials ({columns}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        with self.transaction():
            before = self._database.total_changes
            for record in records:
                self._database.execute(statement, encode(record))
            added = self._database.total_changes - before
            for record in records:
                if definition := record.definition:
                    self._define(record.intrinsic, record.fingerprint, definition, "NOTHING")
                if record.figures:
                    self._begin(record.key, record.figures)
            return added

    def define(self, intrinsic: str, version: str, definition: Mapping[str, Any]) -> None:
        """Store the definition of an intrinsic, for the records that name it with that version.

        Its meaning is its version's, but its implementations may have changed: the last
        ones stand.

        Raises:
            RecordError: the file cannot be written.
        """
        newer = "UPDATE SET definition=excluded.definition, digest=excluded.digest"
        with self.transaction():
            self._define(intrinsic, version, definition, newer)

    def _define(
        self, intrinsic: str, version: str, definition: Mapping[str, Any], otherwise: str
    ) -> None:
        text = json.dumps(definition)
        self._database.execute(
            "INSERT INTO intrinsics (intrinsic, fingerprint, definition, digest) "
            f"VALUES (?, ?, ?, ?) ON CONFLICT (intrinsic, fingerprint) DO {otherwise}",
            (intrinsic, version, text, digest([intrinsic, version, text])),
        )

    def all(self) -> list[Record]:
        """Return every record, oldest first; raise RecordError if a record is damaged."""
        return self._select()

    def to_frame(self) -> pd.DataFrame:
        """Return a table of one row a record; see :func:`amos.records.frame.frame_of`."""
        return frame_of(self.all())

    def find(self, run: str, candidate: str, phase: str, attempt: int) -> Record | None:
        """Find the record of one measurement; ``None`` if there is none."""
        where = "run=? AND candidate=? AND phase=? AND attempt=?"
        return next(iter(self._select(where, (run, candidate, phase, attempt))), None)

    def get(self, number: int) -> Record:
        """Return the record of a number; raise RecordError if there is none, or it is damaged."""
        if not (records := self._select("id=?", (number,))):
            raise self._error(f"there is no record {number}")
        return records[0]

    def census(self, run: Run) -> dict[str, list[int]]:
        """Count records of each operator, by their first difference from a run.

        A difference is ``operator``, ``intrinsic``, ``version``, ``machine``, or nothing.
        """
        identity = (run.operator, run.intrinsic, run.fingerprint, run.machine_key)
        with self._errors():
            cursor = self._database.execute(
                "SELECT CASE WHEN operator!=? THEN 'operator' WHEN intrinsic!=? THEN 'intrinsic' "
                "WHEN fingerprint!=? THEN 'version' WHEN machine_key!=? THEN 'machine' "
                "ELSE '' END, count(*) FROM trials GROUP BY 1, operator",
                identity,
            )
            counts: dict[str, list[int]] = {}
            for kind, count in cursor:
                counts.setdefault(kind, []).append(count)
            return counts

    def run(self, key: str, column: Literal["description", "finished"]) -> Any:
        """Return how a run began or ended, as plain values; ``None`` if the file does not say."""
        with self._errors():
            row = self._database.execute(f"SELECT {column} FROM runs WHERE run=?", (key,))
            values = row.fetchone() or ("",)
        # A hint on how the run began, not a record: without it the run starts again.
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(values[0] or "null")
        return None

    def begin_run(self, key: str, description: Mapping[str, Any]) -> None:
        """Store the beginning of a run; an existing entry stands."""
        with self.transaction():
            self._begin(key, description)

    def _begin(self, key: str, description: Mapping[str, Any]) -> None:
        self._database.execute(
            "INSERT INTO runs (run, created, description) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (key, now(), json.dumps(description)),
        )

    def finish_run(self, key: str, outcome: Mapping[str, Any]) -> None:
        """Keep how a run ended."""
        with self.transaction():
            self._database.execute(
                "UPDATE runs SET finished=? WHERE run=?", (json.dumps(outcome), key)
            )

    def remove(self, numbers: Sequence[int]) -> None:
        """Delete records, leaving nothing of them in the file."""
        with self.transaction():
            self._database.executemany("DELETE FROM trials WHERE id=?", [(n,) for n in numbers])

    def check_place(self) -> None:
        """Make sure that written records are readable.

        SQLite keeps writing to a file that was unlinked, and finally loses it.

        Raises:
            RecordError: the file was deleted or replaced; the message says where its
                records are now.
        """
        if self._opened is None or is_same_file(self.path, self._opened):
            return
        fate = put_back(self._database, self.path)
        raise self._error(f"it was deleted or replaced while it was in use, {fate}")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the block as a whole or not at all; wait for other writers."""
        with self._errors():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                raise
            try:
                self._database.execute("COMMIT")
            except sqlite3.Error:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                raise
        self.check_place()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of SQLite as errors of ours that name the file."""
        try:
            yield
        except (OverflowError, UnicodeEncodeError) as error:
            raise self._error(f"a value cannot be kept: {error}") from error
        except UnicodeDecodeError as error:
            # SQLite quotes text that it cannot read, and Python cannot read that either.
            raise self._error(f"malformed text: {error.reason}{self._hint()}") from error
        except sqlite3.Error as error:
            # Text that is no UTF-8 is found by Python, which gives no code.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            hint = self._hint() if code in _DAMAGED else ""
            raise self._error(f"{' '.join(str(error).split())}{hint}") from error
        except OSError as error:
            raise self._error(str(error.strerror or error)) from error

    def _hint(self) -> str:
        """Say how to salvage a damaged file, if it ever was one of ours."""
        return f"; see: amos records salvage {self.path} NEW_FILE" if self._looks_ours() else ""

    def _looks_ours(self) -> bool:
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            return _SIGN in file.read(_FIRST_PAGE)
        return False

    def _error(self, message: str) -> RecordError:
        return RecordError(f"record file {str(self.path)!r}: {message}")

    def _open(self) -> None:
        if not self.readonly and not is_writable(self.path):
            raise self._error("it is read-only")
        if self.readonly and self._empty():
            raise self._error("it is empty")
        if self.readonly or not self._empty():
            self._check_ours()
        if self.readonly:
            return
        with self.transaction():
            # Checked again: another process may have been quicker.
            if self._empty():
                create(self._database)
            else:
                self._database.execute(INTRINSICS)
        self._use_log()

    def _number(self, statement: str) -> int:
        (number,) = self._database.execute(statement).fetchone()
        return int(number)

    def _empty(self) -> bool:
        tables = self._number("SELECT count(*) FROM sqlite_master")
        return tables == 0 == self._number("PRAGMA user_version")

    def _check_ours(self) -> None:
        version = self._number("PRAGMA user_version")
        if version > SCHEMA_VERSION:
            raise self._error(
                f"schema version {version}, but this version of amos reads {SCHEMA_VERSION}"
            )
        if version == 1 and self._looks_ours():
            raise self._error(f"schema version 1; {_CONVERTER} converts it")
        if not version or self._number("PRAGMA application_id") != APPLICATION_ID:
            raise self._error(
                f"it is another program's database (schema version {version}){self._hint()}"
            )
        (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"malformed: {verdict}")

    def _use_log(self) -> None:
        """Turn on write-ahead logging: readers beside a writer, and one append a commit."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self._database.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                # SQLite does not wait by itself while another process does the same.
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.01)
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("PRAGMA secure_delete=ON")

    def _select(self, where: str = "", values: Sequence[Any] = ()) -> list[Record]:
        """Select records by a condition with ``?`` for each of ``values``, oldest first."""
        condition = f" WHERE {where}" if where else ""
        with self._errors():
            cursor = self._database.execute(
                f"SELECT {', '.join(STORED)} FROM trials{condition} ORDER BY id", values
            )
            rows = [dict(zip(STORED, row, strict=True)) for row in cursor]
        definitions = self._definitions() if rows else {}
        return [self._decode(row, definitions) for row in rows]

    def _definitions(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Read the stored definitions of intrinsics, by name and version."""
        with self._errors():
            # An older file that is only read has no such table.
            there = self._number("SELECT count(*) FROM sqlite_master WHERE name='intrinsics'")
            columns = "SELECT intrinsic, fingerprint, definition, digest FROM intrinsics"
            return read_definitions(self._database.execute(columns)) if there else {}

    def _decode(
        self, values: dict[str, Any], definitions: Mapping[tuple[str, str], dict[str, Any]]
    ) -> Record:
        key = values["intrinsic"], values["fingerprint"]
        stored = {"definition": definitions[key]} if key in definitions else {}
        try:
            record = record_of(decode(values) | stored, values["id"])
        except RecordError as error:
            raise self._error(f"record {values['id']} is damaged: {error}{self._hint()}") from error
        if record.machine.name in ("host", *catalogue.names()):
            return record
        return replace(record, figures=self.run(values["run"], "description"))
