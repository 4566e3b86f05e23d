"""Store the points of a sweep in a file, from which an interrupted sweep resumes.

A line is a point as JSON, under a digest of everything that decides it.
"""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amos.errors import RecordError

if TYPE_CHECKING:
    from amos.explore.sweep import Point


#: Beginning of each line.
_BEGIN = '{"digest": "'


class PointFile:
    """Points by their digest, with ``fields``, in a file; RecordError if it is no such file."""

    def __init__(self, path: Path, fields: Set[str]) -> None:
        self._path = path
        self._points: dict[str, dict[str, Any]] = {}
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
        except (OSError, ValueError) as error:
            raise RecordError(f"points {str(path)!r}: {error}") from None
        # A line that a killed sweep has not completed has no end.
        *complete, last = text.split("\n")
        try:
            for line in complete:
                entry = json.loads(line)
                self._points[entry["digest"]] = point = dict(entry["point"])
                if point.keys() != fields:
                    raise ValueError(f"with {', '.join(fields)}")
            if not _BEGIN.startswith(last[: len(_BEGIN)]):
                raise ValueError("the last line is none")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RecordError(
                f"points {str(path)!r}: expected a line of JSON for each point: {error}"
            ) from None
        if last:
            self._write(text.removesuffix(last), "w")

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the fields of a point; ``None`` if it is not there."""
        return self._points.get(key)

    def add(self, key: str, point: Point) -> None:
        """Append a point; raise RecordError if the file cannot be written."""
        self._write(json.dumps({"digest": key, "point": asdict(point)}) + "\n", "a")

    def _write(self, text: str, mode: str) -> None:
        try:
            with self._path.open(mode, encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            raise RecordError(f"points {str(self._path)!r}: {error.strerror or error}") from None
