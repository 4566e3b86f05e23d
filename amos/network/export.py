"""Compiled networks as files that any application of onnxruntime loads, and examples of such."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from math import prod
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from amos.errors import NetworkError, check_path
from amos.network.external.library import LIBRARY
from amos.network.external.source import ELEMENT_TYPES

if TYPE_CHECKING:
    from amos.network.external.compiled import CompiledNetwork

#: How folders of what is not complete begin; the number of the process follows.
_PARTIAL = ".amos-"
_EXAMPLES = ("example.py", "example.cpp")
#: Files of constants have digits of their digest in their names.
_CONSTANTS = f"constants-{'[0-9a-f]' * 16}.bin"


def export_models(models: Sequence[CompiledNetwork], folder: str | Path) -> tuple[Path, ...]:
    """See :meth:`CompiledNetwork.export <amos.network.external.compiled.CompiledNetwork.export>`.

    Args:
        models: that lie in one folder.
    """
    target = check_path("export", folder, NetworkError)
    is_new = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        prefix = f"{_PARTIAL}{os.getpid()}-"
        with TemporaryDirectory(prefix=prefix, dir=target, ignore_cleanup_errors=True) as name:
            partial = Path(name)
            for path in models[0].folder.path.iterdir():
                if path.is_file() and not path.name.startswith("."):
                    shutil.copyfile(path, partial / path.name)
            _write_examples(models[0], partial)
            return _move_files(partial, target)
    except OSError as error:
        raise NetworkError(f"export to {str(target)!r}: {error.strerror or error}") from error
    finally:
        if is_new:
            with suppress(OSError):  # it has files
                target.rmdir()


def _write_examples(model: CompiledNetwork, folder: Path) -> None:
    """Write applications in Python and C++ that run a model."""
    library = LIBRARY if model.library is not None else ""
    ports = model.network.inputs
    shapes = [[*port.shape] for port in ports]
    extents = ", ".join(f"{{{', '.join(map(str, shape))}}}" for shape in shapes) or "{}"
    sizes = (
        ", ".join(str(prod(port.shape) * ELEMENT_TYPES[port.dtype][2] // 8) for port in ports)
        or "0"
    )
    for name in _EXAMPLES:
        text = files("amos.network").joinpath("templates", f"{name}.in").read_text("utf-8")
        written = Template(text).substitute(
            model=model.file,
            library=library,
            bytes=sizes,
            shapes=shapes,
            extents=extents,
            level=model.session.get_session_options().graph_optimization_level.name,
        )
        (folder / name).write_text(written, encoding="utf-8")


def _remove_leftovers(target: Path) -> None:
    """Remove the leftovers of killed exports."""
    for path in target.glob(f"{_PARTIAL}*-*"):
        process = path.name.removeprefix(_PARTIAL).partition("-")[0]
        if process.isdigit() and not Path("/proc", process).exists():
            shutil.rmtree(path, ignore_errors=True)


def _move_files(partial: Path, target: Path) -> tuple[Path, ...]:
    """Put files in their places, each at once and models last, and remove older ones.

    A new model then has all that it needs; an older one refuses a library that is not its own.
    """
    names = sorted(path.name for path in partial.iterdir())
    with _lock_folder(target):
        try:
            _replace(partial, target, names)
        except KeyboardInterrupt:
            _replace(partial, target, names)  # half of the files would be no model
            raise
    return tuple(target / name for name in names)


def _replace(partial: Path, target: Path, names: Sequence[str]) -> None:
    """Move the files that are not moved yet."""
    for path in sorted(partial.iterdir(), key=lambda path: path.suffix == ".onnx"):
        os.replace(path, target / path.name)
    for path in (*target.glob(_CONSTANTS), target / LIBRARY):
        if path.name not in names:
            path.unlink(missing_ok=True)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Keep other exports to a folder away, which would remove the constants of this one."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # network file systems lock no folders
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
