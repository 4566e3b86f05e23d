"""``amos export``: the kernel of a record as source or library, without TVM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import amos
from amos.cli.options import AsJson, IntrinsicFiles, load_intrinsics
from amos.cli.output import print_json, print_line


def export_command(
    record: Annotated[
        str,
        typer.Argument(
            metavar="RECORD",
            help="FILE:ID of a file written by explore --records, or FILE alone for its best "
            "kernel; or a JSON file that holds one record, as `amos records show --json` prints.",
        ),
    ],
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="c, so, cuda, opencl, stream or vta.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the files; by default the function's name."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Of the function; by default the operator's.")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="GPU of a CUDA kernel, as sm_80; by default the record's."
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
    load_intrinsics(intrinsics)
    files = amos.export(record, form, out, name=name, architecture=arch, force=force)
    if as_json:
        print_json({"format": form, "files": files})
    else:
        print_line("\n".join(map(str, files)))
