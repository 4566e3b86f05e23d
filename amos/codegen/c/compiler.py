"""The C compiler of this machine, and its messages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

#: Names of C compilers, in the order of the search.
NAMES = ("cc", "gcc", "clang")
#: Advice where there is no compiler.
INSTALL = "apt install gcc, or pip install ziglang"
#: Seconds that it may take.
_PATIENCE = 300.0


def c_compiler() -> str | None:
    """Return the path of the first C compiler found; ``None`` if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def compiler_command() -> list[str] | None:
    """Return the command of the first C compiler on the path, or of the package ziglang."""
    if (path := c_compiler()) is not None:
        return [path]
    return (
        [sys.executable, "-P", "-m", "ziglang", "cc"] if find_spec("ziglang") is not None else None
    )


def complaint(command: Sequence[str | Path], folder: str | None = None) -> str:
    """Run a compiler, in a folder if one is named; return its first complaint, empty if none."""
    try:
        done = subprocess.run(
            list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE:g} s"
    except OSError as error:
        return str(error)
    if not done.returncode:
        return ""
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [x for x in lines if "error" in x.lower() or "undefined reference" in x]
    return (errors or lines or [f"status {done.returncode}"])[0]
