"""The part of a record file that belongs to one run, and notes about other runs."""

from __future__ import annotations

import contextlib
from typing import Literal

from amos.errors import RecordError
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.plan import Candidate
from amos.records import Measurement, Trial
from amos.records.canonical import definition_of, machine_from, machine_values
from amos.records.record import Record, Run, candidate_key
from amos.records.store import Records, now


class RunLog:
    """Records of one run, which the same command finds again; without a file nothing is kept."""

    def __init__(self, records: Records | None, run: Run) -> None:
        self.run, self._records, self._key = run, records, run.key

    def find(
        self, candidate: Candidate, phase: str = "search", attempt: int = 0
    ) -> Measurement | None:
        """Find an earlier measurement of a candidate in this run."""
        if self._records is None:
            return None
        record = self._records.find(self._key, candidate_key(candidate), phase, attempt)
        return None if record is None else record.measurement

    def add(self, trial: Trial, phase: str = "search", attempt: int = 0) -> Measurement | None:
        """Write a trial; it is on disk when this returns.

        Returns:
            the measurement that stands: the trial's, unless another process of the
            same run was quicker.

        Raises:
            RecordError: the file cannot be written.
        """
        if self._records is None:
            return trial.measurement
        record = Record.of_trial(trial, self.run, now(), phase=phase, attempt=attempt)
        if self._records.add(record):
            return trial.measurement
        return self.find(trial.candidate, phase, attempt)

    def machine(self, column: Literal["description", "finished"]) -> Machine | None:
        """Return the machine as the model saw it when the run began, or as it was at the end.

        ``None`` where that is not recorded, or is of another version of the model.
        """
        values = self._records.run(self._key, column) if self._records is not None else None
        with contextlib.suppress(RecordError):
            return machine_from(values) if values else None
        return None

    def begin(self, machine: Machine, intrinsic: Intrinsic) -> None:
        """Store the beginning of the run."""
        if self._records is None:
            return
        self._records.begin_run(self._key, machine_values(machine))
        if definition := definition_of(intrinsic):
            self._records.define(intrinsic.name, self.run.fingerprint, definition)

    def finish(self, machine: Machine) -> None:
        """Store how the run ended."""
        if self._records is not None:
            self._records.finish_run(self._key, machine_values(machine))

    def notices(self) -> list[str]:
        """Describe contents of the file that might be mistaken for this run's."""
        if self._records is None:
            return []
        counts, notices = self._records.census(self.run), []
        if version := counts.get("version"):
            notices.append(
                f"{sum(version)} records are of another version of {self.run.intrinsic}, not used"
            )
        if machine := counts.get("machine"):
            notices.append(f"{sum(machine)} records were made on another machine, not used")
        # A file with records of several operators is shared on purpose.
        if counts.keys() == {"operator"} and len(counts["operator"]) == 1:
            (count,) = counts["operator"]
            notices.append(f"its {count} records are of another operator, kept and not used")
        return [f"record file {str(self._records.path)!r}: {notice}" for notice in notices]
