"""The files of the page: one by one for the server, as one module for the widget."""

from __future__ import annotations

import re
from importlib import resources

#: Scripts that both front ends run; each may import those before it.
SCRIPTS = ("elements.js", "matrices.js", "listing.js", "legend.js", "explorer.js")

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[\w.]+";\n', re.MULTILINE)


def read(name: str) -> bytes:
    """The content of a file of the page."""
    return (resources.files("amos.explorer") / "static" / name).read_bytes()


def module(front: str) -> str:
    """One JavaScript module that holds all that a front end imports.

    A notebook is given a single text, so the scripts stand in it one after another,
    without the imports of one another.

    Args:
        front: the file that comes last.
    """
    texts = (read(name).decode() for name in (*SCRIPTS, front))
    return "\n".join(_IMPORT.sub("", text) for text in texts)
