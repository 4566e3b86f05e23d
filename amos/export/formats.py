"""The formats of an export, and how their files reach the disk."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from amos.codegen.c.types import KEYWORDS
from amos.codegen.naming import spelled
from amos.errors import ExportError, UnknownNameError
from amos.export import c, cuda, so
from amos.export.request import Request
from amos.plan import Candidate

__all__ = ["FORMATS", "Format", "Request", "export"]

#: What a kernel must not be called: keywords, and what it and its test program call themselves.
_OWN = re.compile(
    f"{KEYWORDS}|main|memcpy|memset|exit|atoi|qsort|printf|fabs|ldexpf|nearbyintf|posix_memalign"
    r"|clock_gettime|malloc|free|atexit|random_bits|bfloat16|from_bfloat16|float_bits|scaled"
    r"|allocate|release|blocks|seconds|order"
    r"|[if]_(?:add|subtract|multiply|max|min|round|integer)|of_\w+|at_\w+"
    r"|(?:load|store|all|max|min|select|round|nearest|call|amos)_\w+"
)


@dataclass(frozen=True)
class Format:
    """One way to write a kernel down.

    Attributes:
        about: what is written, in a line.
        files: makes the files of a request: their contents by name.
    """

    about: str
    files: Callable[[Request], Mapping[str, str | bytes]]


FORMATS: dict[str, Format] = {
    "c": Format("C source, a header, and a test program that checks and times it", c.files),
    "so": Format("the same, and the shared library that the C compiler makes of it", so.files),
    "cuda": Format("CUDA source, its launch, and loaders for Python and C++", cuda.files),
}


def export(
    candidate: Candidate,
    form: str,
    folder: str | Path,
    *,
    name: str | None = None,
    implementation: str | None = None,
    architecture: str = "",
    force: bool = False,
) -> tuple[Path, ...]:
    """Write a candidate's kernel to a folder.

    Args:
        candidate: mapping and schedule.
        form: a key of :data:`FORMATS`.
        folder: where to; made if it does not exist.
        name: of the function and the files; by default the operator's.
        implementation: ``"native"`` or ``"generic"``; by default native where one
            is known for the format, whatever this CPU has.
        architecture: of the GPU that a CUDA kernel is for, as ``"sm_80"``; by default
            the oldest that has the instruction.
        force: replace files that exist.

    Returns:
        The files, in the order they were made.

    Raises:
        ExportError: the name is no identifier, a file exists, cannot be written,
            or the format has no way to write this kernel.
        UnknownNameError: there is no such format.
    """
    if form not in FORMATS:
        raise UnknownNameError("export format", str(form), FORMATS)
    operator = candidate.mapping.operator
    tensors = {tensor.name for tensor in (*operator.inputs, operator.output.tensor)}
    chosen = name if name is not None else _identifier(operator.name, tensors)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", chosen, re.ASCII):
        raise ExportError(f"name {chosen!r}: expected a C identifier, such as conv2d_c5")
    if chosen in tensors or _OWN.fullmatch(chosen):
        raise ExportError(f"name {chosen!r}: a tensor or C itself has that name; choose another")
    target = Path(folder)
    made = FORMATS[form].files(Request(candidate, chosen, implementation, architecture))
    paths = {target / key: content for key, content in made.items()}
    try:
        if not force and (there := [str(path) for path in paths if path.exists()]):
            raise ExportError(f"{', '.join(there)} exists; choose another folder or replace it")
        target.mkdir(parents=True, exist_ok=True)
        for path, content in paths.items():
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ExportError(f"{str(target)!r}: {error.strerror or error}") from error
    return tuple(paths)


def _identifier(name: str, taken: set[str]) -> str:
    plain = spelled(name.lower().strip("_") or "kernel", _OWN)
    return f"{plain}_kernel" if plain in taken else plain
