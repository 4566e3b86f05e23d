"""``--format so``: the C files, and the shared library that this machine's compiler makes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from amos.codegen.c.source import c_kernel
from amos.errors import ExportError
from amos.export import c
from amos.export.request import Request
from amos.plan.planning import cpu_limits

__all__ = ["files"]

_COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 300


def files(request: Request) -> dict[str, str | bytes]:
    """The files of an export by name; see :data:`amos.export.FORMATS`.

    Raises:
        ExportError: there is no C compiler, or it refuses the source.
    """
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise ExportError(f"format so: no C compiler on the path ({', '.join(_COMPILERS)})")
    made, name = c.files(request), request.name
    kernel = c_kernel(request.candidate, cpu_limits(request.machine), request.implementation)
    with tempfile.TemporaryDirectory(prefix="amos-") as folder:
        for file, content in made.items():
            Path(folder, file).write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
        library = Path(folder, f"lib{name}.so")
        command = [*c.command(kernel, compiler), "-mtune=native", "-fPIC", "-shared"]
        command += ["-o", str(library), str(Path(folder, f"{name}.c"))]
        _run(command)
        return {f"lib{name}.so": library.read_bytes(), **made}


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExportError(f"format so: {command[0]} does not answer: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise ExportError(f"format so: {command[0]} refuses the source: {lines[0]}")
