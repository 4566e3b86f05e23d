"""The part of a record file that belongs to one run, and what it says of others."""

from __future__ import annotations

from typing import Any

from amos.errors import RecordError
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.plan import Candidate
from amos.records import Measurement, Trial
from amos.records.canonical import machine_from, machine_values
from amos.records.definitions import definition_of
from amos.records.rows import candidate_key, measurement_of, row_of
from amos.records.store import Records, now

__all__ = ["RunLog"]


class RunLog:
    """What one run has recorded; the same command finds it again.

    Args:
        records: the file, or None to keep nothing.
        common: the columns that say which run it is, with their digest as ``run``.
    """

    def __init__(self, records: Records | None, common: dict[str, Any]) -> None:
        self._records, self._common = records, common
        self._run = str(common["run"])

    def find(
        self, candidate: Candidate, phase: str = "search", attempt: int = 0
    ) -> Measurement | None:
        """What this run has measured of a candidate before."""
        if self._records is None:
            return None
        row = self._records.find(self._run, candidate_key(candidate), phase, attempt)
        return None if row is None else measurement_of(row)

    def add(self, trial: Trial, phase: str = "search", attempt: int = 0) -> Measurement | None:
        """Write a trial, on disk when this returns.

        Returns:
            the measurement that stands: the trial's, unless another process of the
            same run was quicker.

        Raises:
            RecordError: the file cannot be written.
        """
        if self._records is None:
            return trial.measurement
        if self._records.add(row_of(trial, self._common, phase, attempt, now())):
            return trial.measurement
        return self.find(trial.candidate, phase, attempt)

    def first_machine(self) -> Machine | None:
        """The machine as the model saw it when the run began, if that is known."""
        run = self._records.run(self._run) if self._records is not None else None
        return _machine(run["description"]) if run else None

    def last_machine(self) -> Machine | None:
        """The machine as it was measured when the run ended, if it has."""
        run = self._records.run(self._run) if self._records is not None else None
        return _machine(run["finished"]) if run and run["finished"] else None

    def begin(self, machine: Machine, intrinsic: Intrinsic) -> None:
        """Keep how the run begins, and with what."""
        if self._records is None:
            return
        self._records.begin_run(self._run, machine_values(machine))
        if definition := definition_of(intrinsic):
            self._records.define(intrinsic.name, self._common["fingerprint"], definition)

    def finish(self, machine: Machine) -> None:
        """Keep how the run has ended."""
        if self._records is not None:
            self._records.finish_run(self._run, machine_values(machine))

    def check_place(self) -> None:
        """Make sure that what was written can be found again.

        Raises:
            RecordError: the file was deleted or replaced.
        """
        if self._records is not None:
            self._records.check_place()

    def notices(self) -> list[str]:
        """What the file holds that might be mistaken for this run's, in words."""
        if self._records is None:
            return []
        mine = self._common
        other = versions = machines = same = 0
        for row in self._records.census():
            if (row["operator"], row["intrinsic"]) != (mine["operator"], mine["intrinsic"]):
                other += row["count"]
            elif row["fingerprint"] != mine["fingerprint"]:
                versions += row["count"]
            elif row["machine_key"] != mine["machine_key"]:
                machines += row["count"]
            else:
                same += row["count"]
        name = f"record file {str(self._records.path)!r}"
        notices = []
        if versions:
            notices.append(
                f"{name}: {versions} records are of another version of "
                f"{mine['intrinsic']}, not used"
            )
        if machines:
            notices.append(f"{name}: {machines} records were made on another machine, not used")
        if other and not (same or versions or machines):
            notices.append(f"{name}: its {other} records are of other operators, kept and not used")
        return notices


def _machine(values: Any) -> Machine | None:
    """A recorded description; nothing if it is of another version of the model."""
    try:
        return machine_from(values)
    except RecordError:
        return None
