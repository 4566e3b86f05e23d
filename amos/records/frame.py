"""Records as a pandas frame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from amos.errors import ScheduleError
from amos.plan import Schedule, Value
from amos.records.record import Record

if TYPE_CHECKING:
    import pandas as pd

#: Fields of a record that are columns under their own names.
_PLAIN = (
    *("id", "created", "operator", "intrinsic", "method", "seed", "phase", "attempt", "rule"),
    *("implementation", "verified_elements", "max_difference", "failure", "message"),
)
#: Columns besides those of the schedule variables.
COLUMNS = (
    *(*_PLAIN, "machine", "mapping", "trial"),
    *("predicted_seconds", "measured_seconds", "noise", "repeats"),
)


def frame_of(records: Iterable[Record]) -> pd.DataFrame:
    """Return a table of one row a record; all times in seconds.

    ``measured_seconds`` and ``noise`` are empty where nothing ran, as is a schedule variable
    that a record's schedule leaves at its default or does not have.
    """
    import pandas as pd

    rows = [_row(record) for record in records]
    variables = dict.fromkeys(name for row in rows for name in row if name not in COLUMNS)
    return pd.DataFrame(rows, columns=[*COLUMNS, *variables])


def _row(record: Record) -> dict[str, object]:
    measured = record.measurement
    right = measured if measured is not None and measured.ok else None
    return {
        **{name: getattr(record, name) for name in _PLAIN},
        "machine": record.machine.name,
        "mapping": record.mapping_name,
        "trial": record.number,
        "predicted_seconds": record.predicted,
        "measured_seconds": math.nan if right is None else right.seconds,
        "noise": math.nan if right is None else right.noise,
        "repeats": len(record.times),
        **_variables(record),
    }


def _variables(record: Record) -> Mapping[str, Value]:
    """Return the schedule's variables, under today's keys where a target has them all."""
    try:
        return Schedule.of(record.schedule).as_dict()
    except ScheduleError:
        return record.schedule
