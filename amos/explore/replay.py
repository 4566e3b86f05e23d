"""Rebuild the kernel of a record, and check that it still computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from amos.errors import RecordError
from amos.machine.identity import identify_host
from amos.measure import Task
from amos.measure.executor import Executor, LocalExecutor
from amos.plan import Candidate
from amos.plan.target import ExecutorRequest, target_of
from amos.records import Measurement, Record

#: Seconds that a kernel may take.
_PATIENCE = 60.0


@dataclass(frozen=True)
class Replay:
    """A record, measured again.

    Attributes:
        candidate: the mapping and schedule, rebuilt.
        recorded_seconds: of the record, if it was measured.
        notes: why the two may not compare, in words.
    """

    candidate: Candidate
    measurement: Measurement
    recorded_seconds: float | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; times in seconds."""
        mapping = self.candidate.mapping
        return {
            "operator": str(mapping.operator),
            "intrinsic": mapping.intrinsic.name,
            "mapping": str(mapping),
            "schedule": self.candidate.schedule.as_dict(),
            **values_of_replay(self.measurement, self.recorded_seconds, self.notes),
        }


def values_of_replay(
    measured: Measurement, recorded_seconds: float | None, notes: Sequence[str]
) -> dict[str, Any]:
    """Return plain values of a record that was measured again; times in seconds."""
    return {
        "recorded_seconds": recorded_seconds,
        "measured_seconds": measured.seconds,
        "noise": measured.noise,
        "verified_elements": measured.verified_elements,
        "max_difference": measured.max_difference,
        "implementation": measured.implementation,
        "notes": list(notes),
    }


def replay(record: Record, *, repeat: int = 20) -> Replay:
    """Build the kernel of a record, compare it with NumPy, and time it on this machine.

    Args:
        repeat: timings.

    Raises:
        RecordError: the record describes no candidate of the present intrinsic,
            or the kernel fails here.
        UnknownNameError: there is no such intrinsic.
    """
    notes, candidate = [], record.rebuild()
    if (name := candidate.mapping.intrinsic.name) != record.intrinsic:
        notes.append(
            f"made with another version of {record.intrinsic}, which the record keeps: {name}"
        )
    if record.machine.name == "host" and record.machine_key != identify_host().key:
        notes.append(f"recorded on another machine: {record.machine.model}")
    if not record.fingerprint:
        notes.append(
            f"the record does not say which version of {record.intrinsic} it was made with, "
            f"and of the machine only {record.machine.model!r}"
        )
    before = record.measurement
    recorded = before.seconds if before is not None and before.ok else None
    implementation = record.implementation or None
    task = Task(candidate, repeat, implementation, predicted=recorded or 0.0)
    with _executor_of(record) as executor:
        measured = _measure(executor, task)
        if measured.failure == "build" and record.implementation == "native":
            notes.append("this machine lacks the instruction: compiled from its meaning")
            measured = _measure(executor, replace(task, implementation="generic"))
    if not measured.ok:
        raise RecordError(
            f"record {record.id or ''} fails here: {measured.failure}: {measured.message}"
        )
    return Replay(candidate, measured, recorded, tuple(notes))


def _executor_of(record: Record) -> Executor:
    """Open an executor for a record's machine; this CPU if the record names none."""
    machine, executor = record.described, None
    if machine is not None and record.implementation:
        target = target_of(machine)
        executor = target.open_executor(ExecutorRequest(machine, timeout=_PATIENCE))
    return executor or LocalExecutor(_PATIENCE)


def _measure(executor: Executor, task: Task) -> Measurement:
    ((_, measurement),) = executor.measure(iter([(0, task)]))
    return measurement
