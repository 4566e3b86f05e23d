"""Modules that exports include."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

_IMPORTED = re.compile(r"^from amos\.(?:\w+\.)*(\w+) import", re.MULTILINE)
#: Modules that are renamed in an export.
_RENAMED = {"loader": "load"}


def standalone_text(module: ModuleType) -> str:
    """Return the text of a module for use outside the package, with siblings imported by name."""

    def sibling(match: re.Match[str]) -> str:
        return f"from {_RENAMED.get(match.group(1), match.group(1))} import"

    return _IMPORTED.sub(sibling, Path(str(module.__file__)).read_text(encoding="utf-8"))
