"""Record files of schema version 1, which did not note the machine and the intrinsic's version."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from amos.errors import AmosError, RecordError
from amos.ir import Operator
from amos.machine.identity import Identity
from amos.records.canonical import digest, operator_values
from amos.records.record import Record
from amos.records.rows import STORED, encode, record_of, row_of
from amos.records.schema import create

V1_COLUMNS = (
    *("id", "created", "operator", "intrinsic", "machine", "method", "seed", "number"),
    *("mapping", "schedule", "predicted", "times", "verified_elements", "max_difference"),
    *("failure", "message"),
)
#: Errors that values of other kinds than version 1 wrote can lead to.
_UNREADABLE = (
    *(AmosError, ArithmeticError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)
_OPERATOR = re.compile(r"(?P<text>.+?)  with (?P<extents>[^()]+?)(?:  \((?P<dtypes>.+)\))?")


def migrate(database: sqlite3.Connection) -> None:
    """Bring the tables of version 1 to the present one; inside a transaction.

    Raises:
        RecordError: a record is not of version 1.
        sqlite3.Error: the tables are not.
    """
    rows = database.execute(f"SELECT {', '.join(V1_COLUMNS)} FROM trials ORDER BY id").fetchall()
    seen = Counter[tuple[str, str]]()
    records = [convert(dict(zip(V1_COLUMNS, row, strict=True)), seen) for row in rows]
    database.execute("DROP TABLE trials")
    create(database)
    database.executemany(
        f"INSERT INTO trials ({', '.join(STORED)}) VALUES (:{', :'.join(STORED)})",
        [encode(record) | {"id": record.id} for record in records],
    )


def convert(row: Mapping[str, Any], seen: Counter[tuple[str, str]]) -> Record:
    """A record of version 1 as one of the present version.

    It is shown and replayed, but never taken for a measurement of here.

    Args:
        row: values by column.
        seen: how often each candidate of each run was converted before; updated.

    Raises:
        RecordError: the row is not of version 1.
    """
    try:
        record = _record(row)
        key = record.key, record.candidate
        record = record_of(row_of(replace(record, attempt=seen[key])), row["id"])
    except _UNREADABLE as error:
        raise RecordError(f"record {row.get('id')} cannot be read: {error}") from error
    seen[key] += 1
    return record


def _record(row: Mapping[str, Any]) -> Record:
    mapping, schedule, times = (json.loads(row[name]) for name in ("mapping", "schedule", "times"))
    operator = _operator(row["operator"])
    added = {
        "canonical": operator_values(operator) if operator else {},
        "fingerprint": "",
        "machine": Identity("", row["machine"], 0),
        "machine_key": "",
        "proposer": row["method"],
        "options": {"schema": 1},
        "phase": "search",
        "attempt": 0,
        "candidate": digest([mapping, schedule]),
        "mapping": {step: tuple(group) for step, group in mapping.items()},
        "sources": tuple(range(len(operator.sources) if operator else 2)),
        "rule": "gather",
        "schedule": schedule,
        # SQLite keeps whole numbers of a REAL column as integers.
        "predicted": float(row["predicted"]),
        "max_difference": float(row["max_difference"]),
        "times": tuple(map(float, times)),
    }
    return Record(**dict(row) | added)


def _operator(text: str) -> Operator | None:
    """The operator of version 1's text, if the text explains its shapes."""
    if (written := _OPERATOR.fullmatch(text)) is None:
        return None
    try:
        return Operator.parse(
            written["text"],
            extents={name: int(extent) for name, extent in _pairs(written["extents"], "=")},
            dtypes=dict(_pairs(written["dtypes"] or "", ": ")),
        )
    except (AmosError, ValueError):
        return None


def _pairs(text: str, sign: str) -> list[tuple[str, str]]:
    return [(a, b) for a, _, b in (item.partition(sign) for item in text.split(", ") if item)]
