"""The tables of a record file, its versions, and the way from one to the next."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from amos.errors import AmosError, RecordError
from amos.ir import Operator
from amos.machine.identity import Identity
from amos.records.canonical import digest, operator_values
from amos.records.record import Record
from amos.records.rows import COLUMNS, encode, record_of, row_of

__all__ = [
    "APPLICATION_ID",
    "INTRINSICS",
    "SCHEMA_VERSION",
    "V1_COLUMNS",
    "create",
    "migrate",
    "upgrade_rows",
]

SCHEMA_VERSION = 2
#: "AMOS": tells our files from other programs' databases.
APPLICATION_ID = 0x414D4F53

_TYPES = {int: "INTEGER", float: "REAL"}
_TRIALS = "CREATE TABLE trials (id INTEGER PRIMARY KEY, {}, digest TEXT NOT NULL)".format(
    ", ".join(f"{name} {_TYPES.get(kinds[0], 'TEXT')} NOT NULL" for name, kinds in COLUMNS.items())
)
#: One measurement of a candidate in a run stands, whoever made it first.
_UNIQUE = "CREATE UNIQUE INDEX one_each ON trials (run, candidate, phase, attempt)"
#: What a run needs to go on as it began: the machine as the model saw it.
_RUNS = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY,
    created TEXT NOT NULL,
    description TEXT NOT NULL,
    finished TEXT NOT NULL DEFAULT ''
)
"""

#: The intrinsics that the records were made with; files of before have none. A digest
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

V1_COLUMNS = (
    "id",
    "created",
    "operator",
    "intrinsic",
    "machine",
    "method",
    "seed",
    "number",
    "mapping",
    "schedule",
    "predicted",
    "times",
    "verified_elements",
    "max_difference",
    "failure",
    "message",
)


def create(database: sqlite3.Connection) -> None:
    """Make the tables of the present version; inside a transaction."""
    for statement in (_TRIALS, _UNIQUE, _RUNS, INTRINSICS):
        database.execute(statement)
    database.execute(f"PRAGMA application_id={APPLICATION_ID}")
    database.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def migrate(database: sqlite3.Connection, version: int) -> int:
    """Bring an older file to the present version, inside a transaction.

    Returns:
        how many records it held.

    Raises:
        RecordError: a record of the older version cannot be read.
    """
    if version != 1:
        raise RecordError(f"schema version {version} is unknown")
    names = ", ".join(V1_COLUMNS)
    try:
        cursor = database.execute(f"SELECT {names} FROM trials ORDER BY id")
        old = [dict(zip(V1_COLUMNS, row, strict=True)) for row in cursor]
    except sqlite3.OperationalError as error:
        raise RecordError(f"it is no record file of version 1: {error}") from error
    records = upgrade_rows(old)
    database.execute("DROP TABLE trials")
    create(database)
    columns = ["id", *COLUMNS, "digest"]
    marks = ", ".join(f":{name}" for name in columns)
    for record in records:
        database.execute(
            f"INSERT INTO trials ({', '.join(columns)}) VALUES ({marks})",
            encode(record) | {"id": record.id},
        )
    return len(records)


#: What values of other kinds than version 1 wrote can lead to.
_UNREADABLE = (
    AttributeError,
    KeyError,
    OverflowError,
    RecordError,
    RecursionError,
    TypeError,
    ValueError,
)


def upgrade_rows(old: Sequence[Mapping[str, Any]]) -> list[Record]:
    """Records of version 1 as records of the present one.

    That version did not record which machine and which version of the intrinsic
    it was, so these records are shown and replayed, but never taken for a new
    measurement here.

    Raises:
        RecordError: a record is not of version 1.
    """
    seen: Counter[tuple[str, str]] = Counter()
    records = []
    for row in old:
        try:
            record = _upgrade(row)
            key = record.key, record.candidate
            record = record_of(row_of(replace(record, attempt=seen[key])), row["id"])
        except _UNREADABLE as error:
            raise RecordError(f"record {row.get('id')} cannot be read: {error}") from error
        records.append(record)
        seen[key] += 1
    return records


def _upgrade(row: Mapping[str, Any]) -> Record:
    mapping, schedule = json.loads(row["mapping"]), json.loads(row["schedule"])
    canonical = _canonical(row["operator"])
    operands = len(canonical.get("dtypes", "xxx")) - 1
    return Record(
        operator=row["operator"],
        canonical=canonical,
        intrinsic=row["intrinsic"],
        fingerprint="",
        machine=Identity("", row["machine"], 0),
        machine_key="",
        method=row["method"],
        proposer=row["method"],
        seed=int(row["seed"]),
        options={"schema": 1},
        created=row["created"],
        number=int(row["number"]),
        phase="search",
        attempt=0,
        candidate=digest([mapping, schedule]),
        mapping={str(k): tuple(str(n) for n in v) for k, v in mapping.items()},
        sources=tuple(range(max(1, operands))),
        rule="gather",
        schedule=dict(schedule),
        predicted=float(row["predicted"]),
        times=tuple(float(t) for t in json.loads(row["times"])),
        verified_elements=int(row["verified_elements"]),
        max_difference=float(row["max_difference"]),
        failure=row["failure"],
        message=row["message"],
    )


_V1_OPERATOR = re.compile(r"(?P<text>.+?)  with (?P<extents>[^()]+?)(?:  \((?P<dtypes>.+)\))?")


def _canonical(text: str) -> dict[str, Any]:
    """The operator of version 1's text; its shapes are those that the text explains."""
    found = _V1_OPERATOR.fullmatch(text)
    if found is None:
        return {}
    try:
        operator = Operator.parse(
            found["text"],
            extents={k: int(v) for k, v in _pairs(found["extents"], "=")},
            dtypes=dict(_pairs(found["dtypes"] or "", ": ")),
        )
    except (AmosError, ValueError):
        return {}
    return operator_values(operator)


def _pairs(text: str, sign: str) -> list[tuple[str, str]]:
    return [(k, v) for k, _, v in (item.partition(sign) for item in text.split(", ") if item)]
