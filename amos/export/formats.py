"""The formats of an export, and how their files reach the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from amos.chains import ChainCandidate, ChainTrial
from amos.errors import ExportError, UnknownNameError
from amos.export.request import Request, request_of
from amos.mapping import Mapping as Placement
from amos.plan import Candidate
from amos.plan.target import load, targets
from amos.records import Record, Trial

#: A function that makes the files of a request: contents by name.
Writer = Callable[[Request], Mapping[str, str | bytes]]


def formats() -> dict[str, str]:
    """Map the formats of all targets to the places of their :data:`Writer`."""
    return {name: place for target in targets() for name, place in target.exports.items()}


def _writer(format: str) -> Writer:
    """Load the writer of a format; raise UnknownNameError if there is no such format."""
    places = formats()
    if format not in places:
        raise UnknownNameError("export format", str(format), places)
    writer: Writer = load(places[format])
    return writer


def export(
    kernel: Placement | Candidate | Trial | ChainCandidate | ChainTrial | Record | str | Path,
    format: str,
    out: str | Path | None = None,
    *,
    name: str | None = None,
    implementation: str | None = None,
    architecture: str | None = None,
    force: bool = False,
) -> tuple[Path, ...]:
    """Write a kernel to a folder, as files that need no TVM.

    Args:
        kernel: a mapping, a candidate or a trial, also of a chain, a record, or text that names
            a record: ``FILE:ID``, ``FILE`` for its best kernel, or a JSON file with one record.
        format: one of :func:`formats`.
        out: the folder, made if it does not exist; by default one of the function's name.
        name: of the function and the files; by default the operator's.
        implementation: ``"native"`` or ``"generic"``; by default that of the trial or
            record, or else native where one is known for the format, whatever this CPU has.
        architecture: of the GPU that a CUDA kernel is for, as ``"sm_80"``; by default the
            record's, or else the oldest that has the instruction.
        force: replace files that exist.

    Returns:
        The files, in the order they were made.

    Raises:
        ExportError: the name is no identifier, a file exists, cannot be written,
            or the format cannot express this kernel.
        MappingError: there is nothing to be exported.
        RecordError: there is no such record, or it describes no candidate.
        UnknownNameError: there is no such format.
    """
    write = _writer(format)
    request = request_of(kernel, name, implementation, architecture)
    target = Path(request.name if out is None else out)
    paths = {target / key: text for key, text in write(request).items()}
    try:
        if not force and (there := [str(path) for path in paths if os.path.exists(path)]):
            raise ExportError(f"{', '.join(there)} exists; choose another folder or replace it")
        target.mkdir(parents=True, exist_ok=True)
        for path, content in paths.items():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ExportError(f"{str(target)!r}: {error.strerror or error}") from error
    return tuple(paths)
