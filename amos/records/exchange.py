"""Records as JSON lines; merging, pruning, finding the best."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from amos.errors import RecordError
from amos.records.record import Record
from amos.records.rows import record_of, row_of
from amos.records.store import Records


@dataclass(frozen=True)
class Added:
    """Records that are new, there already, and there with other times."""

    new: int
    known: int
    differing: int

    def __str__(self) -> str:
        text = f"{self.new} added, {self.known} there already"
        return text + (f", {self.differing} left out: measured here already" * (self.differing > 0))


def export_lines(records: Records) -> Iterator[str]:
    """Yield each record as one JSON object, oldest first, without line ends."""
    for record in records.all():
        yield json.dumps(row_of(record), sort_keys=True)


def import_lines(records: Records, lines: Iterable[str]) -> Added:
    """Add records from JSON lines; all of them, or none if one is damaged.

    Raises:
        RecordError: a line is not a record; the message names the line.
    """
    read = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read.append(record_of(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise RecordError(f"line {number} is not JSON: {error}") from error
        except RecordError as error:
            raise RecordError(f"line {number} is no record: {error}") from error
    return _add(records, read)


def merge(records: Records, *sources: str | Path) -> Added:
    """Add the records of other files; existing records stand.

    Raises:
        RecordError: a source cannot be read.
    """
    merged: list[Record] = []
    for source in sources:
        with Records(source, readonly=True) as source_records:
            merged += source_records.all()
    return _add(records, merged)


def _add(records: Records, candidates: list[Record]) -> Added:
    there = {record.digest for record in records.all()}
    fresh = {key: record for record in candidates if (key := record.digest) not in there}
    new = records.add_all(list(fresh.values()))
    return Added(new, len(candidates) - len(fresh), len(fresh) - new)


def best_records(records: list[Record]) -> list[Record]:
    """Return the fastest correct record of each operator, intrinsic, version and machine.

    Records of one operator are adjacent, the fastest first.
    """
    best: dict[tuple[str, ...], Record] = {}
    for record in right_records(records):
        key = record.operator, record.intrinsic, record.fingerprint, record.machine_key
        best.setdefault(key, record)
    return list(best.values())


def right_records(records: list[Record]) -> list[Record]:
    """Return the records of candidates that ran correctly, by operator, then the fastest first.

    A leader that was measured again counts by its last measurement.
    """
    last: dict[tuple[str, str], Record] = {}
    order = {"search": 0, "confirm": 1}
    for record in sorted(records, key=lambda item: (order[item.phase], item.attempt)):
        last[record.key, record.candidate] = record
    right = (record for record in last.values() if not record.failure)
    return sorted(right, key=lambda record: (record.operator, record.seconds))


def select_prunable(
    records: list[Record],
    *,
    failed: bool = False,
    foreign: bool = False,
    older_days: float | None = None,
    keep: int | None = None,
) -> list[int]:
    """Return the numbers of the records that any of the criteria selects.

    Args:
        foreign: records of other machines, and of other versions of an intrinsic.
        older_days: records older than that many days.
        keep: number of best records of each operator, intrinsic and machine that stay.
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
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        key = record.operator, record.intrinsic, record.machine_key
        groups.setdefault(key, []).append(record)
        if (
            (failed and record.failure)
            or (foreign and not record.counts_here)
            or (limit is not None and record.created < limit)
        ):
            given_up.add(record.id)
    if keep is not None:
        for group in groups.values():
            group.sort(key=lambda record: record.seconds)
            given_up |= {record.id for record in group[keep:]}
    return sorted(given_up)
