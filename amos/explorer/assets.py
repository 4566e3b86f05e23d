"""The files of the page: one by one for the server, as one module for the widget."""

from __future__ import annotations

import re
from importlib import resources

#: Scripts that both front ends run; each may import those before it.
SCRIPTS = ("elements.js", "matrices.js", "listing.js", "legend.js", "explorer.js")

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[\w.]+";\n', re.MULTILINE)


def read(name: str) -> bytes:
    """Read a file of the page."""
    return (resources.files("amos.explorer") / "static" / name).read_bytes()


def module(front: str) -> str:
    """Build one JavaScript module of a front end and all its imports.

    A notebook gets a single text, so the scripts are concatenated without their imports of one
    another.

    Args:
        front: the file that comes last.
    """
    texts = (read(name).decode() for name in (*SCRIPTS, front))
    return "\n".join(_IMPORT.sub("", text) for text in texts)
