"""One record as a row: its columns, its digest, and how it is checked when it is read."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import Any

from amos.errors import AmosError, RecordError
from amos.intrinsics import Intrinsic, names
from amos.intrinsics import get as get_intrinsic
from amos.machine import Machine, catalogue
from amos.machine.identity import Identity
from amos.mapping import Mapping as LoopMapping
from amos.plan import Candidate, Schedule
from amos.records.canonical import digest, fingerprint, operator_from, operator_values
from amos.records.definitions import kept_intrinsic
from amos.records.measurement import Measurement
from amos.records.trial import Trial
from amos.schedule import ScheduleSpace

__all__ = [
    "COLUMNS",
    "ENCODED",
    "candidate_key",
    "candidate_of",
    "check_row",
    "common_columns",
    "decode",
    "encode",
    "intrinsic_of",
    "measurement_of",
    "read_definitions",
    "row_of",
    "run_key",
    "seal",
]

#: Kind of each column but ``id``, which the file gives, and ``digest``.
COLUMNS: dict[str, tuple[type, ...]] = {
    "run": (str,),
    "created": (str,),
    "operator": (str,),
    "canonical": (dict,),
    "intrinsic": (str,),
    "fingerprint": (str,),
    "machine": (dict,),
    "machine_key": (str,),
    "method": (str,),
    "proposer": (str,),
    "seed": (int,),
    "options": (dict,),
    "number": (int,),
    "phase": (str,),
    "attempt": (int,),
    "candidate": (str,),
    "mapping": (dict,),
    "sources": (list,),
    "rule": (str,),
    "schedule": (dict,),
    "predicted": (float, int),
    "times": (list,),
    "implementation": (str,),
    "verified_elements": (int,),
    "max_difference": (float, int),
    "failure": (str,),
    "message": (str,),
}
#: Columns that the file holds as JSON.
ENCODED = tuple(name for name, kinds in COLUMNS.items() if kinds in ((dict,), (list,)))
PHASES = ("search", "confirm")
#: Values of a column are nested less deep than this.
_DEEPEST = 32
#: What every record of a run shares; two commands are one run if all of it is equal.
_COMMON = (
    "operator",
    "canonical",
    "intrinsic",
    "fingerprint",
    "machine",
    "machine_key",
    "method",
    "proposer",
    "seed",
    "options",
)


def seal(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the digest of its values, by which damage is found."""
    values = {name: row[name] for name in COLUMNS}
    return values | {"digest": digest(values)}


def check_row(row: Any) -> dict[str, Any]:
    """A row as it was written.

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
        if not isinstance(row[name], kinds) or isinstance(row[name], bool):
            raise RecordError(f"{name}: expected {kinds[0].__name__}, got {row[name]!r:.40}")
    _check_inside(row)
    if row["phase"] not in PHASES:
        raise RecordError(f"phase: expected {' or '.join(PHASES)}, got {row['phase']!r:.40}")
    sealed = seal(row)
    if row.get("digest") != sealed["digest"] or row["run"] != run_key(row):
        raise RecordError("its values are not those that were written")
    if (definition := row.get("definition")) is None:
        return sealed
    if not isinstance(definition, dict):
        raise RecordError(f"definition: expected dict, got {definition!r:.40}")
    _check_depth("definition", definition)
    return sealed | {"definition": definition}


def _check_inside(row: Mapping[str, Any]) -> None:
    """The values within each column are of the kinds that the rest of the program relies on.

    A digest tells damage from what was written, but anybody can compute one.
    """
    for name in ENCODED:
        _check_depth(name, row[name])
    for name, kinds in COLUMNS.items():
        if kinds == (int,) and not -(1 << 63) <= row[name] < 1 << 63:
            raise RecordError(f"{name}: expected a number of 64 bits")
        if float in kinds and not _is_number(row[name]):
            raise RecordError(f"{name}: expected a finite number")
    for name, (right, what) in _INSIDE.items():
        if not right(row[name]):
            raise RecordError(f"{name}: expected {what}, got {row[name]!r:.60}")


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
            _all(str, (machine.get(name) for name in ("name", "model", "system")))
            and _all(int, [machine.get("cores")])
            and isinstance(machine.get("compilers"), dict)
        ),
        "name, model, cores, system and compilers",
    ),
    "mapping": (
        lambda groups: _all(list, groups.values()) and all(_all(str, g) for g in groups.values()),
        "a list of iterations for each of the intrinsic",
    ),
    "sources": (lambda order: _all(int, order), "whole numbers"),
    "schedule": (lambda schedule: _all(int | str, schedule.values()), "numbers and words"),
    "times": (lambda times: all(map(_is_number, times)), "seconds"),
}


def run_key(row: Mapping[str, Any]) -> str:
    """Stands for everything that makes two commands one run."""
    return digest({name: row[name] for name in _COMMON})


def candidate_key(candidate: Candidate) -> str:
    """Stands for a mapping and a schedule, whatever rule the mapping was found under."""
    mapping = candidate.mapping
    groups = {step: list(group) for step, group in mapping.groups.items()}
    return digest([groups, list(mapping.order), candidate.schedule.as_dict()])


def row_of(
    trial: Trial,
    common: Mapping[str, Any],
    phase: str,
    attempt: int,
    created: str,
) -> dict[str, Any]:
    """What is kept of a trial.

    Args:
        trial: the trial, measured or not.
        common: the columns that every trial of a run shares.
        phase: ``"search"``, or ``"confirm"`` for a measurement of a leader.
        attempt: 0 for the first measurement of that phase.
        created: when, in UTC.
    """
    measured = trial.measurement or Measurement()
    mapping = trial.mapping
    return seal(
        {
            **common,
            "created": created,
            "number": trial.number,
            "phase": phase,
            "attempt": attempt,
            "candidate": candidate_key(trial.candidate),
            "mapping": {step: list(group) for step, group in mapping.groups.items()},
            "sources": list(mapping.order),
            "rule": mapping.rule,
            "schedule": trial.schedule.as_dict(),
            "predicted": _finite(trial.predicted),
            "times": [float(t) for t in measured.times],
            "implementation": measured.implementation,
            "verified_elements": measured.verified_elements,
            "max_difference": _finite(measured.max_difference),
            "failure": measured.failure,
            "message": measured.message,
        }
    )


def common_columns(
    operator: Any,
    intrinsic: Intrinsic,
    identity: Identity,
    method: str,
    seed: int,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The columns that say which run a trial belongs to, and the run's key."""
    common: dict[str, Any] = {
        "operator": str(operator),
        "canonical": operator_values(operator),
        "intrinsic": intrinsic.name,
        "fingerprint": fingerprint(intrinsic),
        "machine": identity.to_dict(),
        "machine_key": identity.key,
        "method": method,
        "proposer": method,
        "seed": seed,
        "options": dict(options),
    }
    return common | {"run": run_key(common)}


def measurement_of(row: Mapping[str, Any]) -> Measurement | None:
    """What was measured; ``None`` for a record of the model alone."""
    if not row["times"] and not row["failure"]:
        return None
    return Measurement.of(row)


def intrinsic_of(row: Mapping[str, Any]) -> Intrinsic:
    """The intrinsic of a record: the registered one if it still means the same, or its own.

    What the record keeps is registered, beside another version under a name of its own.

    Raises:
        RecordError: it means something else by now, or the record does not say, and
            the record keeps none.
        IntrinsicError: the one that it keeps is not well formed.
        UnknownNameError: there is no such intrinsic, and the record keeps none.
    """
    name, version = row["intrinsic"], row["fingerprint"]
    unit = get_intrinsic(name) if name in names() or not row.get("definition") else None
    if unit is not None and version == fingerprint(unit):
        return unit
    if not version:
        raise RecordError(f"the record does not say which version of {name} it was made with")
    if row.get("definition"):
        return kept_intrinsic(row, name if unit is None else f"{name}_{version}")
    assert unit is not None
    raise RecordError(
        f"the record was made with another version of {name} ({version}, now {fingerprint(unit)})"
    )


def candidate_of(row: Mapping[str, Any], *, any_version: bool = False) -> Candidate:
    """Rebuild the candidate of a record, with every check that a new one passes.

    Args:
        row: the record.
        any_version: take the intrinsic of that name where the record does not say
            which version it was.

    Raises:
        RecordError: the record does not describe a candidate.
        UnknownNameError: there is no such intrinsic.
    """
    unversioned = any_version and not row["fingerprint"]
    unit = get_intrinsic(row["intrinsic"]) if unversioned else intrinsic_of(row)
    operator = operator_from(row["canonical"])
    try:
        steps = [it.name for it in unit.iterations]
        where = {name: t for t, step in enumerate(steps) for name in row["mapping"][step]}
        matrix = [
            [where.get(it.name) == t for it in operator.iterations] for t in range(len(steps))
        ]
        mapping = LoopMapping.of(operator, unit, matrix, row["rule"], _order(row["sources"]))
        schedule = ScheduleSpace(mapping, _gpu(row)).check(Schedule.of(row["schedule"]))
    except (KeyError, TypeError, ValueError, AmosError) as error:
        raise RecordError(f"the record describes no candidate: {error}") from error
    return Candidate(mapping, schedule)


def _gpu(row: Mapping[str, Any]) -> Machine | None:
    """The GPU that a record is about: its schedules have variables that others lack."""
    name = str(row["machine"].get("name", ""))
    machine = catalogue.get(name) if name in catalogue.names() else None
    return machine if machine is not None and machine.architecture else None


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


def encode(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the file holds it."""
    return {
        name: json.dumps(value) if name in ENCODED else value
        for name, value in row.items()
        if name in COLUMNS or name == "digest"
    }


def _order(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _finite(value: float) -> float:
    """JSON has no infinity; the largest number stands for it."""
    return float(value) if math.isfinite(value) else math.copysign(1.7976931348623157e308, value)
