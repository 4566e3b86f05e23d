"""Start Python with the modules of this process, and none of the working directory."""

from __future__ import annotations

import os
import sys
import sysconfig

_CODE = (
    "import sys; sys.path[:] = {folders!r}; "
    "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def python(module: str) -> list[str]:
    """Return the command that runs a module as a program; arguments follow.

    ``python -m`` would search the working directory first, where a file may have any name,
    ``re.py`` among them, and any content. Here Python's own modules come first, and then the paths
    that this process imports from, in its order.
    """
    folders = [os.path.abspath(folder) for folder in sys.path]
    folders.sort(key=lambda folder: not _is_library(folder))
    return [sys.executable, "-P", "-c", _CODE.format(folders=folders, module=module)]


def _is_library(folder: str) -> bool:
    """Return whether a folder holds modules of Python itself."""
    libraries = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    within = {os.path.join(library, "lib-dynload") for library in libraries}
    return folder in libraries | within or os.path.basename(folder) == archive
