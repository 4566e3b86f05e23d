"""Candidates for a GPU that is elsewhere: exported with their records, measured there.

``amos explore --export`` writes the best candidates, each with ``record.json``, the
record of the candidate. ``amos gpu-check --records`` completes these with what it
measured, as JSON lines that ``amos records import`` takes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import amos
from amos.errors import ExportError

if TYPE_CHECKING:
    from amos.cuda.gpu_check import Pieces
    from amos.explore import Exploration
    from amos.intrinsics import Intrinsic
    from amos.ir import Operator
    from amos.records import Trial

_RECORD = "record.json"


def check_target(machine: str) -> None:
    """Raise ExportError for a machine that is no described GPU, before anything is searched."""
    from amos.machine import catalogue

    if machine not in catalogue.names() or not catalogue.get(machine).architecture:
        raise ExportError(f"--export writes CUDA kernels, and machine {machine!r} is no GPU")


def export_top(result: Exploration, folder: Path, top: int) -> list[Path]:
    """Export the best candidates that differ, ``1`` the best, to folders without files."""
    from amos.export import export

    ranked = sorted(result.trials, key=lambda trial: trial.predicted)
    distinct: dict[Any, Trial] = {}
    for trial in ranked:
        distinct.setdefault((trial.mapping.intrinsic.name, trial.candidate.key), trial)
    paths = []
    for number, trial in enumerate(itertools.islice(distinct.values(), top), 1):
        path = folder / str(number)
        architecture = f"sm_{result.machine.architecture}"
        export(trial.candidate, "cuda", path, architecture=architecture)
        record = json.dumps(_record(result, trial), indent=2) + "\n"
        (path / _RECORD).write_text(record, encoding="utf-8")
        paths.append(path)
    return paths


def _record(result: Exploration, trial: Trial) -> dict[str, Any]:
    from amos.machine.identity import Identity
    from amos.records.canonical import definition_of
    from amos.records.record import Record, Run
    from amos.records.rows import row_of

    unit = trial.mapping.intrinsic
    run = Run.of(
        trial.mapping.operator,
        unit,
        Identity(result.machine.name, "described", result.machine.cores),
        method=result.method,
        seed=result.seed,
        options={"rule": trial.mapping.rule},
    )
    record = Record.of_trial(trial, run, datetime.now(UTC).isoformat(timespec="seconds"))
    return row_of(replace(record, definition=definition_of(unit)))


#: Extent of the large product, the intrinsics that compete, and how many elements apart
#: the library's transposed convolution has those of its image that are not zero.
_LARGE, _STRIDE = 4096, 2
_UNITS = ("wmma_m16n16k16_f16_f32", "mma_sync_m16n8k16_f16_f32")


def benchmark_pieces(architecture: str, trials: int, top: int) -> Pieces:
    """Return the model's best kernels of Table 6, batch 1, and of a large product."""
    from amos.cuda.gpu_check import machine_for
    from amos.machine.gpu_costs import capability

    machine = machine_for(architecture).name
    jobs = {
        f"batch1/{name}": amos.operators.get(name, dtype="f16") for name in amos.operators.TABLE_6
    }
    large = amos.operators.get("gemm", dtype="f16", m=_LARGE, n=_LARGE, k=_LARGE)
    jobs[f"gemm/gemm_{_LARGE}"] = large

    def write(name: str, op: Operator, unit: Intrinsic, folder: Path) -> None:
        result = amos.explore(
            op,
            unit,
            machine=machine,
            trials=trials,
            measure=amos.MeasureOptions(executor="model"),
            progress=False,
        )
        for path in export_top(result, folder, top):
            if name == "batch1/transposed_conv2d":
                launch = path / "launch.json"
                described = json.loads(launch.read_text(encoding="utf-8")) | {"upsampled": _STRIDE}
                launch.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")

    return {
        f"{name}/{unit.family}": partial(write, name, op, unit)
        for name, op in jobs.items()
        for unit in map(amos.intrinsics.get, _UNITS)
        if unit.architecture <= capability(architecture)
    }


def write_lines(lines: Sequence[str], file: Path) -> None:
    """Write records as JSON lines, at least one, or raise ExportError."""
    if not lines:
        raise ExportError(
            f"{str(file)!r}: no kernel here has a {_RECORD}, as explore --export gives"
        )
    try:
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise ExportError(f"{str(file)!r}: {error.strerror or error}") from error
