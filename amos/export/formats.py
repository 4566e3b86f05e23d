"""The formats of an export, and how their files reach the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from amos.errors import ExportError, UnknownNameError
from amos.export import c, cuda, stream
from amos.export.request import Request, request_of
from amos.mapping import Mapping as Placement
from amos.plan import Candidate
from amos.records import Record, Trial

#: By the name of a format, what makes the files of a request: their contents by name.
FORMATS: Mapping[str, Callable[[Request], Mapping[str, str | bytes]]] = {
    "c": c.files,  # C source, a header, and a test program that checks and times it
    "so": c.library,  # the same, and the shared library that the C compiler makes of it
    "cuda": cuda.files,  # CUDA source, its launch, and loaders for Python and C++
    "stream": stream.files,  # instructions of a unit as JSON, inputs and what comes out
    "vta": partial(stream.files, encoding="vta"),  # the same of VTA, and its binary encoding
}


def export(
    kernel: Placement | Candidate | Trial | Record | str | Path,
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
        kernel: a mapping, a candidate, a trial, a record, or text that names a record:
            ``FILE:ID``, ``FILE`` for its best kernel, or a JSON file with one record.
        format: a key of :data:`FORMATS`.
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
            or the format has no way to write this kernel.
        MappingError: there is nothing to be exported.
        RecordError: there is no such record, or it describes no candidate.
        UnknownNameError: there is no such format.
    """
    if format not in FORMATS:
        raise UnknownNameError("export format", str(format), FORMATS)
    request = request_of(kernel, name, implementation, architecture)
    target = Path(request.name if out is None else out)
    paths = {target / key: text for key, text in FORMATS[format](request).items()}
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
