"""Where a benchmark ran, for its results."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from amos.machine.cpu import cpu


def machine(*packages: str) -> dict[str, Any]:
    """This machine, its load, and the version of each package ("" if it is missing)."""
    return {
        "cpu": cpu().model,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: _installed(package) for package in packages},
    }


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
