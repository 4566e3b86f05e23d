"""``amos compile --machine``: the costs of a network on a unit, and its files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import amos
from amos.cli.output import milliseconds, percent, print_json, print_line, print_table

if TYPE_CHECKING:
    from amos.streams.networks import UnitNetwork

#: Name of the picture in the folder.
_TIMELINE = "timeline.html"


def print_unit(compiled: UnitNetwork, folder: Path | None, *, as_json: bool) -> None:
    """Print the layers of a network on a unit, and write its files if there is a folder."""
    written = [*(compiled.export(folder) if folder is not None else ())]
    if folder is not None and compiled.runs:
        amos.viz.write(amos.viz.timeline(compiled), folder / _TIMELINE)
        written.append(folder / _TIMELINE)
    if as_json:
        print_json(compiled.to_dict() | {"files": [str(path) for path in written]})
        return
    print_table(
        ["layer", "stream", "operator", "cycles", "ms", "of peak", "KiB", "of port", "host"],
        [
            [run.name, run.stream, run.operator, run.cycles, milliseconds(run.seconds)]
            + [percent(run.utilization), run.moved_bytes / 1024, percent(run.transfer_share)]
            + [", ".join(step.partition(" ")[0] for step in run.host_steps)]
            for run in compiled.runs
        ],
    )
    print_line(str(compiled))
    if folder is not None:
        print_line(f"exported   {len(written)} files to {folder}")
