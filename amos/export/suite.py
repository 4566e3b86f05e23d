"""A folder of many exports, which is written piece by piece and can be interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from amos.errors import ExportError

__all__ = ["Pieces", "Tell", "write_pieces"]

#: What a folder was asked for; only the same request goes on with it.
_REQUEST = "suite.json"

#: Told the pieces that are done, all of them, and the one that comes next.
Tell = Callable[[int, int, str], None]


#: The parts of a suite, each there as a whole or not at all: by the name of its folder, from
#: the top, what writes it to a folder that does not exist yet.
Pieces = dict[str, Callable[[Path], object]]


def write_pieces(
    folder: Path, pieces: Pieces, request: Mapping[str, object], tell: Tell | None = None
) -> list[Path]:
    """Write what is not there yet, each piece beside its place and then moved to it.

    Args:
        folder: top of the suite; a new one, an empty one, or one of the same request.
        pieces: what belongs there; it depends on the request alone.
        request: what was asked for, as JSON values.
        tell: told before each piece, and at the end.

    Returns:
        the folders of all kernels.

    Raises:
        ExportError: the folder holds something else, or cannot be written.
    """
    try:
        _claim(folder, json.dumps(dict(request), indent=2, sort_keys=True) + "\n")
        kernels = []
        for number, (name, write) in enumerate(pieces.items()):
            if tell is not None:
                tell(number, len(pieces), name)
            path = folder / name
            if not path.exists():
                partial = path.with_name(f".{path.name}.partial")
                shutil.rmtree(partial, ignore_errors=True)
                partial.parent.mkdir(parents=True, exist_ok=True)
                write(partial)
                partial.rename(path)
            kernels += sorted(file.parent for file in path.rglob("launch.json"))
    except OSError as error:
        raise ExportError(f"{str(folder)!r}: {error.strerror or error}") from error
    if tell is not None:
        tell(len(pieces), len(pieces), "")
    return kernels


def _claim(folder: Path, request: str) -> None:
    """Say in a folder what it is for, or make sure that it is for the same."""
    asked = folder / _REQUEST
    if asked.is_file():
        if asked.read_text(encoding="utf-8") != request:
            raise ExportError(
                f"{str(folder)!r} was written with other options ({asked.name}); "
                "repeat those, or choose another folder"
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise ExportError(
            f"{str(folder)!r}: expected a new folder, or one that the same command has begun"
        )
    folder.mkdir(parents=True, exist_ok=True)
    asked.write_text(request, encoding="utf-8")
