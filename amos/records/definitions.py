"""The intrinsics that records keep, so that a record needs neither their file nor their plug-in.

A definition is the intrinsic and its implementations as plain values. It is checked like
a file when it is read. What its implementations do is not: whoever replays or exports a
record runs the code that came with it, as with any other program.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from amos.errors import IntrinsicError, RecordError
from amos.intrinsics import (
    Implementation,
    Intrinsic,
    implementations,
    provide,
    read_values,
    values_of,
)
from amos.intrinsics import get as get_intrinsic
from amos.records.canonical import fingerprint

if TYPE_CHECKING:
    from amos.records.record import Record

__all__ = ["definition_of", "kept_intrinsic"]


def definition_of(unit: Intrinsic) -> dict[str, Any] | None:
    """An intrinsic with its implementations as plain values.

    Returns:
        None for one whose values do not describe it, as of a program that builds its
        memory statements by hand.
    """
    values = values_of(unit, implementations(unit.name).values())
    try:
        again = read_values(values, unit.name)[0]
    except IntrinsicError:
        return None
    return values if again == unit else None


def kept_intrinsic(record: Record, name: str) -> Intrinsic:
    """Register the intrinsic that a record keeps.

    Args:
        record: one with a definition.
        name: what it is called here.

    Raises:
        RecordError: it is another one than the record was made with.
        IntrinsicError: it is not well formed, or the name is taken by another.
    """
    assert record.definition is not None
    unit, *sources = read_values(record.definition, f"the intrinsic of record {record.id or ''}")
    assert isinstance(unit, Intrinsic)
    if unit.name != record.intrinsic or fingerprint(unit) != record.fingerprint:
        raise RecordError(
            f"the record keeps another intrinsic than {record.intrinsic} {record.fingerprint}: "
            f"{unit.name} {fingerprint(unit)}"
        )
    named = [replace(s, intrinsic=name) for s in sources if isinstance(s, Implementation)]
    provide([replace(unit, name=name), *named])
    return get_intrinsic(name)
