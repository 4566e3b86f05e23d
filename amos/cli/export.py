"""``amos export``: the kernel of a record as source or library, without TVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from amos.cli.options import AsJson, IntrinsicFiles, load_intrinsics
from amos.cli.output import print_json, print_line
from amos.errors import RecordError

__all__ = ["export_command"]


def export_command(
    record: Annotated[
        str,
        typer.Argument(
            metavar="RECORD",
            help="FILE:ID of a file written by explore --records, or FILE alone for its best "
            "kernel; or a JSON file that holds one record, as `amos records show --json` prints.",
        ),
    ],
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="c, so or cuda.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the files.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Of the function; by default the operator's.")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch",
            metavar="NAME",
            help="GPU of a CUDA kernel, as sm_80; by default the record's.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    intrinsics: IntrinsicFiles = None,
    as_json: AsJson = False,
) -> None:
    """Write the kernel of a record as files that need no TVM.

    An intrinsic that is not registered is the one that --intrinsic describes, or
    the one that the record keeps.
    """
    from amos.export import export
    from amos.records.rows import candidate_of

    load_intrinsics(intrinsics)
    row = _read(record)
    files = export(
        candidate_of(row),
        form,
        out,
        name=name,
        implementation=row["implementation"] or None,
        architecture=_architecture(row) if arch is None else arch,
        force=force,
    )
    if as_json:
        print_json({"format": form, "files": [str(path) for path in files]})
        return
    for path in files:
        print_line(str(path))


def _architecture(row: dict[str, Any]) -> str:
    """The architecture of the GPU that a record is about; empty if it is about none."""
    from amos.machine import catalogue

    name = str(row["machine"].get("name", ""))
    number = catalogue.get(name).architecture if name in catalogue.names() else 0
    return f"sm_{number}" if number else ""


def _read(text: str) -> dict[str, Any]:
    """The record that an argument names."""
    path, _, number = text.rpartition(":")
    if path and number.isdigit():
        return _stored(Path(path), int(number))
    if Path(text).suffix in (".json", ".jsonl"):
        return _written(Path(text))
    return _best(Path(text))


def _stored(file: Path, number: int) -> dict[str, Any]:
    from amos.records import Records

    with Records(file, readonly=True) as records:
        return records.get(number)


def _best(file: Path) -> dict[str, Any]:
    from amos.records import Records
    from amos.records.exchange import best_rows, standing

    with Records(file, readonly=True) as records:
        rows = best_rows(records.rows())
    here = [row for row in rows if standing(row) in ("here", "model")] or rows
    if len(here) == 1:
        return here[0]
    if not here:
        raise RecordError(f"{str(file)!r} holds no record of a kernel that ran")
    choice = ", ".join(f"{file}:{row['id']}" for row in here[:6])
    raise RecordError(f"{str(file)!r} holds the best of {len(here)} kernels; name one: {choice}")


def _written(file: Path) -> dict[str, Any]:
    """A record on its own in a JSON file, or the only line of an exported one."""
    from amos.records.rows import COLUMNS, check_row

    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{str(file)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{str(file)!r}: expected one record as JSON; amos records import reads several"
        ) from error
    if isinstance(found, dict):
        # What `records show --json` adds to a record is not part of it.
        found = {
            name: value
            for name, value in found.items()
            if name in (*COLUMNS, "digest", "definition")
        }
    try:
        return check_row(found)
    except RecordError as error:
        raise RecordError(f"{str(file)!r}: {error}") from error
