"""``amos records``: what earlier explorations measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from amos.cli.options import AsJson, Limit
from amos.cli.output import print_json, print_table
from amos.errors import RecordError

__all__ = ["records_command"]

_ENCODED = ("mapping", "schedule", "times")


def records_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written by explore --records.")],
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Show what explorations have recorded.

    The newest record stands last; with --limit N only the newest N are shown.
    """
    rows = _read(file)
    rows = rows if limit is None else rows[max(0, len(rows) - limit) :]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["id", "operator", "intrinsic", "mapping", "predicted us", "measured us"],
        [
            [
                row["id"],
                row["operator"].partition("  with ")[0],
                row["intrinsic"],
                " ".join(f"{key}={'.'.join(names)}" for key, names in row["mapping"].items()),
                row["predicted"] * 1e6,
                min(row["times"]) * 1e6 if row["times"] else row["failure"] or "-",
            ]
            for row in rows
        ],
    )


def _read(file: Path) -> list[dict[str, Any]]:
    from amos.explore import Records

    if not file.is_file():
        raise RecordError(f"record file {str(file)!r}: there is no such file")
    with Records(file) as records:
        rows = records.rows()
    return [
        {key: json.loads(value) if key in _ENCODED else value for key, value in row.items()}
        for row in rows
    ]
