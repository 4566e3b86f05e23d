"""A record as a row: its columns, its digest, and the checks on reading."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NoReturn

from amos._tables import TableReader
from amos.errors import AmosError, RecordError, quote
from amos.machine.identity import Identity
from amos.records.canonical import digest
from amos.records.record import Record

#: JSON type of a record's field, by the beginning of its annotation.
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "tuple": (list,),
    **dict.fromkeys(("Json", "Mapping", "Identity"), (dict,)),
}
#: Columns of other tables that belong to a record.
_KEPT = ("definition", "figures")
#: Kind of each column but ``id``, which the file gives, and ``digest``. Files depend on the order.
COLUMNS = {"run": (str,), "created": (str,)} | {
    each.name: _KINDS[str(each.type).partition("[")[0]]
    for each in fields(Record)
    if each.name not in ("id", *_KEPT)
}
#: Columns of the file, in its order.
STORED = ("id", *COLUMNS, "digest")
#: Columns that it holds as JSON.
ENCODED = tuple(name for name, kinds in COLUMNS.items() if kinds in ((dict,), (list,)))
#: Values of a column are nested less deep than this.
_DEEPEST = 32


def row_of(record: Record) -> dict[str, Any]:
    """Return a record as plain values by column, with a digest that detects damage."""
    values = record.values()
    row = {name: values[name] for name in COLUMNS} | {"digest": digest(values)}
    extras = {name: getattr(record, name) for name in _KEPT}
    return row | {name: value for name, value in extras.items() if value}


def record_of(row: Any, number: int = 0) -> Record:
    """Return the record of a row of :func:`row_of`; anything else or altered is a RecordError."""
    if not isinstance(row, dict):
        raise RecordError(f"expected an object, got {type(row).__name__}")
    values = {name: value for name, value in row.items() if name not in ("run", "digest", "id")}
    values = {
        name: value for name, value in values.items() if name not in _KEPT or value is not None
    }
    reader = _Reader("", "", RecordError)
    record = reader.call(Record, values, "", needed=[*COLUMNS][1:], id=number)
    if record.phase not in ("search", "confirm"):
        raise RecordError(f"phase: expected search or confirm, got {record.phase!r:.60}")
    if (row.get("run"), row.get("digest")) != (record.key, record.digest):
        raise RecordError("its values are not those that were written")
    return record


class _Reader(TableReader):
    """Check that columns, and the values in them, are of the kinds that the program relies on.

    A digest detects damage, but anybody can compute one.
    """

    def __init__(self, file: str, text: str, error: type[AmosError]) -> None:
        super().__init__(file, text, error)
        self.special = {
            Any: self._check_nested,
            int: self._whole,
            float: self._finite,
            int | str: lambda v, key: v if isinstance(v, str) else self._whole(v, key),
            Identity: self._identity,
        }

    def fail(self, key: str, message: str) -> NoReturn:
        raise self.error(f"{key}: {message}")

    def _whole(self, value: Any, key: str) -> int:
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            self.fail(key, f"expected a whole number of 64 bits, got {quote(value)}")
        return value

    def _finite(self, value: Any, key: str) -> float:
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            self.fail(key, f"expected a finite number, got {quote(value)}")
        number: float = value
        return number

    def _check_nested(self, value: Any, key: str, depth: int = _DEEPEST) -> Any:
        members = value.values() if isinstance(value, dict) else value
        for below in members if isinstance(value, dict | list) else ():
            if not depth:
                self.fail(key, f"nested deeper than {_DEEPEST} levels")
            self._check_nested(below, key, depth - 1)
        return value

    def _identity(self, value: Any, key: str) -> Identity:
        self.table(value, key)
        compilers = self.read(Mapping[str, str], value.get("compilers"), f"{key}.compilers")
        fields = {name: each for name, each in value.items() if name != "compilers"}
        required = ("name", "model", "cores", "system")
        return self.call(Identity, fields, key, needed=required, compilers=tuple(compilers.items()))


def decode(values: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the JSON columns of a row of the file; raise RecordError if a column is not JSON."""
    row = dict(values)
    for name in ENCODED:
        try:
            row[name] = json.loads(row[name])
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(f"{name}: not JSON") from error
    return row


def read_definitions(stored: Iterable[Sequence[Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Read undamaged definitions by intrinsic and version.

    Records are valid without them, so a damaged one is left out.
    """
    definitions = {}
    for name, version, text, sealed in stored:
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            if digest([name, version, text]) == sealed:
                definitions[name, version] = json.loads(text)
    return definitions


def encode(record: Record) -> dict[str, Any]:
    """Encode a record for the file, without its number and its intrinsic's definition."""
    row = row_of(record)
    return row | {name: json.dumps(row[name]) for name in ENCODED}
