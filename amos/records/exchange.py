"""Records as JSON lines and as a pandas frame; merging, pruning, finding the best."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amos.errors import AmosError, RecordError
from amos.intrinsics import get as get_intrinsic
from amos.machine.identity import here
from amos.records.canonical import fingerprint
from amos.records.rows import COLUMNS, check_row, measurement_of
from amos.records.store import Records

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "best_rows",
    "export_lines",
    "from_frame",
    "import_lines",
    "merge",
    "prunable",
    "seconds_of",
    "standing",
    "to_frame",
]


@dataclass(frozen=True)
class Added:
    """What became of records that were to be added.

    Attributes:
        new: how many were added.
        known: how many were there already.
        differing: how many stand for a measurement that is there with other times.
    """

    new: int
    known: int
    differing: int

    def __str__(self) -> str:
        text = f"{self.new} added, {self.known} there already"
        return text + (f", {self.differing} left out: measured here already" * (self.differing > 0))


def export_lines(records: Records) -> Iterator[str]:
    """One JSON object a record, oldest first, without line ends."""
    for row in records.rows():
        yield json.dumps({k: v for k, v in row.items() if k != "id"}, sort_keys=True)


def import_lines(records: Records, lines: Iterable[str]) -> Added:
    """Add records from JSON lines; all of them, or none if one is damaged.

    Raises:
        RecordError: a line is not a record; the message names the line.
    """
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(check_row(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise RecordError(f"line {number} is not JSON: {error}") from error
        except RecordError as error:
            raise RecordError(f"line {number} is no record: {error}") from error
    return _add(records, rows)


def to_frame(records: Records) -> pd.DataFrame:
    """One row a record; times, mapping and schedule as lists and dictionaries."""
    import pandas as pd

    return pd.DataFrame(records.rows(), columns=["id", *COLUMNS, "digest", "definition"])


def from_frame(records: Records, frame: pd.DataFrame) -> Added:
    """Add records from a frame that :func:`to_frame` made.

    Raises:
        RecordError: a row is not a record; the message names the row.
    """
    rows = []
    for number, values in enumerate(frame.to_dict("records")):
        row = {str(name): value for name, value in values.items()}
        for name in ("seed", "number", "attempt", "verified_elements"):
            row[name] = int(row[name]) if name in row else None
        if not isinstance(row.get("definition"), dict):
            row.pop("definition", None)
        try:
            rows.append(check_row(row))
        except RecordError as error:
            raise RecordError(f"row {number} is no record: {error}") from error
    return _add(records, rows)


def merge(records: Records, source: str | Path) -> Added:
    """Add the records of another file; what is there already stands.

    Raises:
        RecordError: the source cannot be read.
    """
    with Records(source, readonly=True) as other:
        return _add(records, other.rows())


def _add(records: Records, rows: list[dict[str, Any]]) -> Added:
    there = {row["digest"] for row in records.rows()}
    fresh = {row["digest"]: row for row in rows if row["digest"] not in there}
    new = records.add_all(list(fresh.values()))
    return Added(new, len(rows) - len(fresh), len(fresh) - new)


def seconds_of(row: dict[str, Any]) -> float:
    """Median seconds of a record; predicted ones if it is of the model alone."""
    measured = measurement_of(row)
    return float(row["predicted"]) if measured is None else measured.seconds


def standing(row: dict[str, Any]) -> str:
    """Whose record it is: ``here``, ``model``, or why it does not count here."""
    try:
        version = fingerprint(get_intrinsic(row["intrinsic"]))
    except AmosError:
        if not row.get("definition"):
            return "unknown intrinsic"
        version = row["fingerprint"]
    if row["fingerprint"] != version:
        return "other version of the intrinsic" if row["fingerprint"] else "unknown version"
    if row["machine"].get("name") != "host":
        return "model"
    return "here" if row["machine_key"] == here().key else "other machine"


def best_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fastest right record of each operator, intrinsic, version and machine.

    A leader that was measured again counts by its last measurement.
    """
    last: dict[tuple[str, str], dict[str, Any]] = {}
    order = {"search": 0, "confirm": 1}
    for row in sorted(rows, key=lambda row: (order[row["phase"]], row["attempt"])):
        last[row["run"], row["candidate"]] = row
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in last.values():
        key = row["operator"], row["intrinsic"], row["fingerprint"], row["machine_key"]
        if row["failure"]:
            continue
        if key not in found or seconds_of(row) < seconds_of(found[key]):
            found[key] = row
    return sorted(found.values(), key=lambda row: (row["operator"], row["id"]))


def prunable(
    rows: list[dict[str, Any]],
    *,
    failed: bool = False,
    foreign: bool = False,
    older_days: float | None = None,
    keep: int | None = None,
) -> list[int]:
    """Numbers of the records that any of the criteria gives up.

    Args:
        rows: every record.
        failed: candidates that failed.
        foreign: records of other machines, and of other versions of an intrinsic.
        older_days: records older than that many days.
        keep: all but the best so many of each operator, intrinsic and machine.
    """
    given_up = set()
    limit = None
    if older_days is not None:
        try:
            limit = (datetime.now(UTC) - timedelta(days=older_days)).isoformat()
        except OverflowError:  # before the calendar begins: nothing is that old
            limit = ""
        except ValueError:
            raise RecordError(f"older_days: expected a number of days, got {older_days}") from None
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["operator"], row["intrinsic"], row["machine_key"]), []).append(row)
        if (
            (failed and row["failure"])
            or (foreign and standing(row) not in ("here", "model"))
            or (limit is not None and row["created"] < limit)
        ):
            given_up.add(row["id"])
    if keep is not None:
        for group in groups.values():
            group.sort(key=seconds_of)
            given_up |= {row["id"] for row in group[keep:]}
    return sorted(given_up)
