"""Records as a pandas frame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from amos.records.record import Record

if TYPE_CHECKING:
    import pandas as pd

#: Fields of a record that are columns under their own names.
_PLAIN = (
    *("id", "created", "operator", "intrinsic", "method", "seed", "number", "phase", "attempt"),
    *("rule", "implementation", "verified_elements", "max_difference", "failure", "message"),
)


def frame_of(records: Iterable[Record]) -> pd.DataFrame:
    """One row a record; all times in seconds.

    ``measured_seconds`` and ``noise`` are empty where nothing ran, as is a schedule variable
    that a record's schedule leaves at its default or does not have.
    """
    import pandas as pd

    rows = [_row(record) for record in records]
    known = dict.fromkeys(name for row in rows for name in row)
    return pd.DataFrame(rows, columns=list(known) or list(_PLAIN))


def _row(record: Record) -> dict[str, object]:
    measured = record.measurement
    right = measured if measured is not None and measured.ok else None
    return {
        **{name: getattr(record, name) for name in _PLAIN},
        "machine": record.machine.name,
        "mapping": record.mapping_name,
        "predicted_seconds": record.predicted,
        "measured_seconds": None if right is None else right.seconds,
        "noise": None if right is None else right.noise,
        "repeats": len(record.times),
        **record.schedule,
    }
