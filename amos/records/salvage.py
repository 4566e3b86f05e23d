"""Recovery of records from a damaged file.

SQLite refuses a file when any page on its way is broken. Records are found here
without it: every page is read by itself, as the SQLite file format describes
leaf pages of tables (https://www.sqlite.org/fileformat2.html, section 1.6), and
only rows whose digest fits their values are kept. Committed frames of the
write-ahead log count, as they would for SQLite.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amos.errors import RecordError
from amos.records.record import Record
from amos.records.rows import COLUMNS, STORED, decode, read_definitions, record_of
from amos.records.store import Records
from amos.records.version1 import V1_COLUMNS, convert

_LEAF = 0x0D
_SIZES = [1 << n for n in range(9, 17)]
#: Columns of the table of intrinsics.
_DEFINITION = 5
#: Columns of numbers that SQLite keeps as integers where they are whole.
_REAL = [STORED.index(name) for name, kinds in COLUMNS.items() if float in kinds]


@dataclass(frozen=True)
class Salvage:
    """Records recovered from a damaged file.

    Attributes:
        records: undamaged ones, by their number.
        damaged: numbers of records of which only a part can be read.
        missing: first and last of each range of numbers up to the largest one seen
            of which nothing is left, because of the damage or because they were pruned.
    """

    records: dict[int, Record]
    damaged: tuple[int, ...]
    missing: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        text = f"salvaged {len(self.records)} records"
        if self.damaged:
            text += f"; damaged and left out: {_text(_ranges(self.damaged))}"
        if self.missing:
            text += f"; nothing left of {_text(self.missing)}"
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
    salvaged = _search(_Pages.read(source))
    if not salvaged.records:
        raise RecordError(f"record file {str(source)!r}: not one record can be salvaged")
    if target is not None:
        with Records(target) as records:
            records.add_all([record for _, record in sorted(salvaged.records.items())])
    return salvaged


class _Pages:
    """The pages of a database with the committed frames of its log."""

    def __init__(self, data: bytes, size: int, log: dict[int, bytes]) -> None:
        self.data, self.size, self.log = data, size, log
        #: Bytes of a page that hold content; the header says how many are reserved.
        self.usable = size - (data[20] if data[:6] == b"SQLite" and len(data) > 20 else 0)

    @staticmethod
    def read(path: Path) -> _Pages:
        data = path.read_bytes()
        size = struct.unpack(">H", data[16:18])[0] if len(data) >= 18 else 0
        size = 65536 if size == 1 else size
        if size not in _SIZES or data[:6] != b"SQLite":
            size = 4096
        log_path = path.with_name(path.name + "-wal")
        log = _log(log_path.read_bytes(), size) if log_path.is_file() else {}
        return _Pages(data, size, log)

    @property
    def count(self) -> int:
        return max([-(-len(self.data) // self.size), *self.log])

    def page(self, number: int) -> bytes:
        """Page ``number``, from 1; shorter where the file was cut off."""
        return self.log.get(number) or self.data[(number - 1) * self.size : number * self.size]


def _log(data: bytes, size: int) -> dict[int, bytes]:
    """Pages of the write-ahead log, up to its last commit."""
    if len(data) < 32 or struct.unpack(">I", data[8:12])[0] != size:
        return {}
    salts, pages, waiting = data[16:24], dict[int, bytes](), dict[int, bytes]()
    for start in range(32, len(data) - size - 23, size + 24):
        number, committed = struct.unpack(">II", data[start : start + 8])
        if data[start + 8 : start + 16] != salts:
            break
        waiting[number] = data[start + 24 : start + 24 + size]
        if committed:
            pages |= waiting
            waiting = {}
    return pages


def _search(pages: _Pages) -> Salvage:
    records: dict[int, Record] = {}
    old: dict[int, dict[str, Any]] = {}
    definitions: dict[tuple[str, str], dict[str, Any]] = {}
    seen: set[int] = set()
    for number in range(1, pages.count + 1):
        for rowid, values in _cells(pages, number):
            if values is not None and len(values) == _DEFINITION:
                definitions |= read_definitions([values[1:]])
                continue
            if values is None or len(values) not in (len(STORED), len(V1_COLUMNS)):
                # Of another table, or broken; a number beyond reason is rubbish.
                if values is None and 0 < rowid < 1 << 32:
                    seen.add(rowid)
                continue
            seen.add(rowid)
            if len(values) == len(V1_COLUMNS):
                old[rowid] = dict(zip(V1_COLUMNS, values, strict=True)) | {"id": rowid}
                continue
            with contextlib.suppress(RecordError):
                row = decode(dict(zip(STORED, values, strict=True)))
                records[rowid] = record_of(row, rowid)
    before = Counter[tuple[str, str]]()
    for rowid, row in sorted(old.items()):
        with contextlib.suppress(RecordError):
            records.setdefault(rowid, convert(row, before))
    for rowid, record in records.items():
        if definition := definitions.get((record.intrinsic, record.fingerprint)):
            records[rowid] = replace(record, definition=definition)
    damaged = tuple(sorted(seen - records.keys()))
    last = max(records, default=0)
    there = [0, *sorted(n for n in seen if 0 < n <= last)]
    # A number may be any of 64 bits, so gaps are found between those that are there.
    missing = tuple((a + 1, b - 1) for a, b in itertools.pairwise(there) if b - a > 1)
    return Salvage(records, tuple(n for n in damaged if n <= last + len(damaged)), missing)


def _cells(pages: _Pages, number: int) -> Iterator[tuple[int, list[Any] | None]]:
    """Row number and values of each cell of a leaf page; no values if they are broken."""
    page = pages.page(number)
    start = 100 if number == 1 else 0
    if len(page) < start + 8 or page[start] != _LEAF:
        return
    (count,) = struct.unpack(">H", page[start + 3 : start + 5])
    for n in range(min(count, pages.size // 4)):
        place = start + 8 + 2 * n
        if place + 2 > len(page):
            return
        (offset,) = struct.unpack(">H", page[place : place + 2])
        try:
            size, at = _varint(page, offset)
            rowid, at = _varint(page, at)
        except IndexError:
            continue
        try:
            yield rowid, _values(_payload(pages, page, at, size))
        except (IndexError, TypeError, ValueError, struct.error):
            yield rowid, None


def _payload(pages: _Pages, page: bytes, at: int, size: int) -> bytes:
    """A cell's content, with its overflow pages (section 1.6)."""
    usable = pages.usable
    if size > pages.count * pages.size:
        raise ValueError("longer than the file")
    local, least = size, (usable - 12) * 32 // 255 - 23
    if size > usable - 35:
        local = least + (size - least) % (usable - 4)
        local = least if local > usable - 35 else local
    data = page[at : at + local]
    if local < size:
        (following,) = struct.unpack(">I", page[at + local : at + local + 4])
        while len(data) < size:
            more = pages.page(following) if following else b""
            if len(more) < 4:
                raise ValueError("the rest is missing")
            data += more[4 : min(usable, 4 + size - len(data))]
            (following,) = struct.unpack(">I", more[:4])
    if len(data) < size:
        raise ValueError("cut off")
    return data


def _values(data: bytes) -> list[Any]:
    """The columns of a record (section 2.1)."""
    end, at = _varint(data, 0)
    kinds = []
    while at < end:
        kind, at = _varint(data, at)
        kinds.append(kind)
    values: list[Any] = []
    at = end
    for kind in kinds:
        if kind >= 12:
            length = (kind - 12) // 2
            raw = data[at : at + length]
            values.append(raw.decode() if kind % 2 else raw)
        elif kind == 7:
            length = 8
            values.append(struct.unpack(">d", data[at : at + 8])[0])
        else:
            length = (0, 1, 2, 3, 4, 6, 8, 0, 0, 0)[kind]
            value = int.from_bytes(data[at : at + length], "big", signed=True)
            values.append({0: None, 8: 0, 9: 1}.get(kind, value))
        at += length
    if len(values) == len(STORED):
        for n in _REAL:
            values[n] = float(values[n])
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to nine bytes, and where the next thing stands."""
    value = 0
    for n in range(9):
        byte = data[at + n]
        if n == 8:
            return (value << 8) | byte, at + 9
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, at + n + 1
    raise IndexError


def _ranges(numbers: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """First and last of each range of ascending numbers."""
    ranges: list[tuple[int, int]] = []
    for n in numbers:
        if ranges and ranges[-1][1] == n - 1:
            ranges[-1] = ranges[-1][0], n
        else:
            ranges.append((n, n))
    return tuple(ranges)


def _text(ranges: tuple[tuple[int, int], ...]) -> str:
    """``1, 4-6, 9``, cut short where it gets long."""
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:10]]
    return ", ".join(shown) + (", …" if len(ranges) > 10 else "")
