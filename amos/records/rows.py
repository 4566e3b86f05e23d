"""A record as a row: its columns, its digest, and how it is checked when it is read."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from types import UnionType
from typing import Any

from amos.errors import RecordError
from amos.machine.identity import Identity
from amos.records.canonical import digest
from amos.records.record import Record

#: What a field of a record is in JSON, by the beginning of its annotation.
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "tuple": (list,),
    **dict.fromkeys(("Json", "Mapping", "Identity"), (dict,)),
}
#: Kind of each column but ``id``, which the file gives, and ``digest``. Files depend on the order.
COLUMNS = {"run": (str,), "created": (str,)} | {
    each.name: _KINDS[str(each.type).partition("[")[0]]
    for each in fields(Record)
    if each.name not in ("id", "definition", "figures")
}
#: Columns of the file, in its order.
STORED = ("id", *COLUMNS, "digest")
#: Columns that it holds as JSON.
ENCODED = tuple(name for name, kinds in COLUMNS.items() if kinds in ((dict,), (list,)))
#: Values of a column are nested less deep than this.
_DEEPEST = 32


def row_of(record: Record) -> dict[str, Any]:
    """A record as plain values by column, with the digest by which damage is found."""
    values = record.values()
    row = {name: values[name] for name in COLUMNS} | {"digest": digest(values)}
    return row | ({"definition": record.definition} if record.definition else {})


def record_of(row: Any, number: int = 0) -> Record:
    """The record that a row holds.

    Args:
        row: what :func:`row_of` made, read back.
        number: of the record in its file.

    Raises:
        RecordError: a column is missing, unknown or of another kind, inside or
            outside, or the values are not those that were written.
    """
    if not isinstance(row, dict):
        raise RecordError(f"expected an object, got {type(row).__name__}")
    if missing := sorted(COLUMNS.keys() - row.keys()):
        raise RecordError(f"missing {', '.join(missing)}")
    if unknown := sorted(row.keys() - COLUMNS.keys() - {"id", "digest", "definition"}):
        raise RecordError(f"unknown {', '.join(unknown)}")
    for name, kinds in COLUMNS.items():
        _check(name, row[name], kinds)
    if row.get("definition") is not None:
        _check("definition", row["definition"], (dict,))
    machine, rest = row["machine"], row.keys() - {"run", "digest", "id"}
    record = Record(
        **{name: row[name] for name in rest}
        | {
            "machine": Identity(**machine | {"compilers": tuple(machine["compilers"].items())}),
            "mapping": {step: tuple(group) for step, group in row["mapping"].items()},
            "sources": tuple(row["sources"]),
            "times": tuple(row["times"]),
            "id": number,
        }
    )
    if row["run"] != record.key or row.get("digest") != record.digest:
        raise RecordError("its values are not those that were written")
    return record


def _check(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    """A column and what is in it are of the kinds that the rest of the program relies on.

    A digest tells damage from what was written, but anybody can compute one.
    """
    if type(value) not in kinds:
        raise RecordError(f"{name}: expected {kinds[0].__name__}, got {value!r:.40}")
    if kinds == (int,) and not -(1 << 63) <= value < 1 << 63:
        raise RecordError(f"{name}: expected a number of 64 bits")
    if float in kinds and not _is_number(value):
        raise RecordError(f"{name}: expected a finite number")
    _check_depth(name, value)
    right, what = _INSIDE.get(name, (None, ""))
    if right is not None and not right(value):
        raise RecordError(f"{name}: expected {what}, got {value!r:.60}")


def _check_depth(name: str, value: Any, left: int = _DEEPEST) -> None:
    inside = value.values() if isinstance(value, dict) else value
    for below in inside if isinstance(value, dict | list) else ():
        if not left:
            raise RecordError(f"{name}: nested deeper than {_DEEPEST} levels")
        _check_depth(name, below, left - 1)


def _is_number(value: Any) -> bool:
    kind = isinstance(value, float | int) and not isinstance(value, bool)
    return kind and abs(value) <= sys.float_info.max


def _all(kind: type | UnionType, values: Iterable[Any]) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


#: What a column holds, beyond what :data:`COLUMNS` says, and in words.
_INSIDE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "machine": (
        lambda machine: (
            machine.keys() == {"name", "model", "cores", "system", "compilers"}
            and _all(str, (machine[name] for name in ("name", "model", "system")))
            and _all(int, [machine["cores"]])
            and isinstance(machine["compilers"], dict)
            and _all(str, machine["compilers"].values())
        ),
        "name, model, cores, system and compilers",
    ),
    "mapping": (
        lambda groups: _all(list, groups.values()) and all(_all(str, g) for g in groups.values()),
        "a list of iterations for each of the intrinsic",
    ),
    "phase": (lambda phase: phase in ("search", "confirm"), "search or confirm"),
    "sources": (lambda order: _all(int, order), "whole numbers"),
    "schedule": (lambda schedule: _all(int | str, schedule.values()), "numbers and words"),
    "times": (lambda times: all(map(_is_number, times)), "seconds"),
}


def decode(values: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the file with its JSON columns read.

    Raises:
        RecordError: a column is not JSON.
    """
    row = dict(values)
    for name in ENCODED:
        try:
            row[name] = json.loads(row[name])
        except (TypeError, ValueError, RecursionError) as error:
            raise RecordError(f"{name}: not JSON") from error
    return row


def read_definitions(
    stored: Iterable[Sequence[Any]],
) -> dict[tuple[str, str], dict[str, Any]]:
    """Undamaged definitions by intrinsic and version.

    Records stand without them, so a damaged one is left out.

    Args:
        stored: intrinsic, version, JSON text and digest of each.
    """
    definitions = {}
    for name, version, text, sealed in stored:
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            if digest([name, version, text]) == sealed:
                definitions[name, version] = json.loads(text)
    return definitions


def encode(record: Record) -> dict[str, Any]:
    """A record as the file holds it, but for its number and what it keeps of its intrinsic."""
    row = row_of(record)
    return row | {name: json.dumps(row[name]) for name in ENCODED}
