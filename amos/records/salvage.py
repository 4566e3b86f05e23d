"""Recovery of records from a damaged file.

SQLite gives up at the first unreadable page. This module continues after it, row by row, and
accepts only rows whose digest fits their values. A file whose first page is damaged needs SQLite's
own ``.recover`` before.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amos.errors import RecordError
from amos.records.record import Record
from amos.records.rows import STORED, decode, read_definitions, record_of
from amos.records.store import Records

#: Numbers behind a damaged row that are tried before the end of the table is assumed, and by how
#: much numbers may grow from row to row in an undamaged table.
_TRIES = 10_000
_DEFINITION = ("id", "intrinsic", "fingerprint", "definition", "digest")


@dataclass(frozen=True)
class Salvage:
    """Records recovered from a damaged file.

    Attributes:
        records: undamaged ones, by their number.
        missing: first and last of each range of numbers, up to the largest recovered one, that
            were lost to the damage or had been pruned.
    """

    records: dict[int, Record]
    missing: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        text = f"salvaged {len(self.records)} records"
        if self.missing:
            shown = [str(a) if a == b else f"{a}-{b}" for a, b in self.missing[:10]]
            more = ", …" if len(self.missing) > 10 else ""
            text += f"; damaged or pruned: {', '.join(shown)}{more}"
        return text


def salvage(path: str | Path, target: str | Path | None = None) -> Salvage:
    """Find every undamaged record of a file; write them to a new one.

    Args:
        path: the damaged file, which is only read.
        target: file to write to; it must not exist. None writes nothing.

    Raises:
        RecordError: there is no such file, the target exists, or not one record
            was found.
    """
    source = Path(path)
    if not os.path.isfile(source):
        raise RecordError(f"record file {str(source)!r}: there is no such file")
    if target is not None and os.path.exists(target):
        raise RecordError(f"record file {str(target)!r}: it exists; name a new file")
    records = _read_records(source)
    if not records:
        raise RecordError(
            f"record file {str(source)!r}: not one record can be salvaged; try again with the "
            f"file that this writes: sqlite3 {source} .recover | sqlite3 NEW_FILE"
        )
    if target is not None:
        with Records(target) as file:
            file.add_all([record for _, record in sorted(records.items())])
    gaps = itertools.pairwise([0, *sorted(records)])
    return Salvage(records, tuple((a + 1, b - 1) for a, b in gaps if b - a > 1))


def _read_records(path: Path) -> dict[int, Record]:
    """Read undamaged records by their number."""
    records: dict[int, Record] = {}
    try:
        with contextlib.closing(_connect(path)) as database:
            stored = [row[1:] for row in _read_rows(database, "intrinsics", _DEFINITION)]
            definitions = read_definitions(stored)
            for row in _read_rows(database, "trials", STORED):
                values = dict(zip(STORED, row, strict=True))
                with contextlib.suppress(RecordError):
                    record = record_of(decode(values), values["id"])
                    definition = definitions.get((record.intrinsic, record.fingerprint))
                    records[record.id] = replace(record, definition=definition)
    except (sqlite3.Error, UnicodeDecodeError):
        pass
    return records


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    # Otherwise SQLite refuses a file that is shorter than its header claims.
    database.execute("PRAGMA writable_schema=ON")
    return database


def _read_rows(
    database: sqlite3.Connection, table: str, columns: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield rows of a table by their number; unreadable ones are left out."""
    query = f"SELECT {', '.join(columns)} FROM {table} NOT INDEXED WHERE id>? ORDER BY id"
    last, tries = 0, 0
    while tries < _TRIES:
        try:
            for row in database.execute(query, (last,)):
                # A damaged page may hold any number: undamaged ones may be smaller.
                if not isinstance(row[0], int) or row[0] < 1:
                    continue
                yield row
                if last < row[0] <= last + _TRIES:
                    last, tries = row[0], 0
            return
        except (sqlite3.Error, UnicodeDecodeError):
            last, tries = last + 1, tries + 1
