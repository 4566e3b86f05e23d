"""Candidates for a GPU that is elsewhere: exported with their records, measured there.

``amos explore --export`` writes the best candidates, each with ``record.json``, the
record of the candidate. ``amos gpu-check --records`` completes these with what it
measured, as JSON lines that ``amos records import`` takes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amos.errors import ExportError, RecordError

if TYPE_CHECKING:
    from amos.explore import Exploration, Trial
    from amos.export.gpu_check import GpuRow
    from amos.perfmodel import Machine

__all__ = ["check_target", "export_top", "measured_lines", "write_lines"]

_RECORD = "record.json"


def check_target(machine: str) -> None:
    """Refuse to export what no GPU runs, before anything is searched.

    Raises:
        ExportError: the machine is no described GPU.
    """
    from amos.perfmodel import catalogue

    if machine not in catalogue.names() or not catalogue.get(machine).architecture:
        raise ExportError(f"--export writes CUDA kernels, and machine {machine!r} is no GPU")


def export_top(result: Exploration, folder: Path, top: int) -> list[Path]:
    """Export the best candidates that differ, ``1`` the best.

    Raises:
        ExportError: a folder has files already.
    """
    from amos.export import export

    made: list[Path] = []
    seen: set[Any] = set()
    for trial in sorted(result.trials, key=lambda t: t.predicted):
        if len(made) == top:
            break
        if trial.candidate.key in seen:
            continue
        seen.add(trial.candidate.key)
        path = folder / str(len(made) + 1)
        architecture = f"sm_{result.machine.architecture}"
        export(trial.candidate, "cuda", path, architecture=architecture)
        record = json.dumps(_record(result, trial), indent=2) + "\n"
        (path / _RECORD).write_text(record, encoding="utf-8")
        made.append(path)
    return made


def _record(result: Exploration, trial: Trial) -> dict[str, Any]:
    from amos.explore.records_rows import common_columns, row_of

    common = common_columns(
        trial.mapping.operator,
        result.intrinsic,
        _identity(result.machine),
        result.method,
        result.seed,
        {"rule": trial.mapping.rule},
    )
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return row_of(trial, common, "search", 0, created)


def _identity(machine: Machine) -> Any:
    from amos.measure.identity import Identity

    return Identity(machine.name, "described", machine.cores)


def measured_lines(rows: Sequence[GpuRow], folder: Path) -> list[str]:
    """A record of each measured kernel that came with one, as a line of JSON.

    Raises:
        RecordError: a record is damaged.
    """
    from amos.explore.records_rows import check_row, run_key, seal
    from amos.measure.identity import Identity

    lines = []
    for row in rows:
        path = folder / row.kernel / _RECORD
        if not path.exists():
            continue
        try:
            record = check_row(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, RecordError) as error:
            raise RecordError(f"{str(path)!r}: {error}") from error
        # The name stays the described machine's: its space has the schedule.
        where = Identity(record["machine"]["name"], row.gpu, record["machine"]["cores"])
        record |= {"machine": where.to_dict(), "machine_key": where.key}
        record |= {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "times": list(row.times) if row.correct else [],
            "implementation": "native",
            "verified_elements": row.elements,
            "max_difference": min(row.largest_difference, 1e300),
            "failure": "" if row.correct else "wrong",
            "message": "" if row.correct else "another result than NumPy's",
        }
        record["run"] = run_key(record)
        lines.append(json.dumps(seal(record)))
    return lines


def write_lines(lines: Sequence[str], file: Path) -> None:
    """Write records as JSON lines.

    Raises:
        ExportError: there are none, or the file cannot be written.
    """
    if not lines:
        raise ExportError(
            f"{str(file)!r}: no kernel here has a {_RECORD}, as explore --export gives"
        )
    try:
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise ExportError(f"{str(file)!r}: {error.strerror or error}") from error
