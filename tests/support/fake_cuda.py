"""A GPU that is none: a driver and a compiler whose kernels run on the host.

What calls them is the product's own code, unchanged: the driver is a shared library with
the entry points of ``libcuda``, the compiler a command that answers as ``nvcc`` does.
Kernels run in the emulation of :mod:`amos.cuda.codegen.emulate`, and events read the
clock, so that everything is there but a GPU.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from amos.cuda.codegen.emulate import HEADERS, compiler
from amos.errors import ToolchainError

__all__ = ["fake_driver", "fake_nvcc"]

_HERE = Path(__file__).parent


def fake_driver(folder: Path, capability: int = 80) -> str:
    """A shared library that stands for the driver of one GPU.

    Raises:
        ToolchainError: there is no C++ compiler.
    """
    tool = compiler()
    if tool is None:
        raise ToolchainError("the fake driver needs g++ or clang++")
    library = folder / f"libfakecuda{capability}.so"
    flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", f"-DCAPABILITY={capability}"]
    command = [tool, *flags, str(_HERE / "fake_driver.cpp"), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return str(library)


def fake_nvcc(folder: Path, architectures: Sequence[str] = ("sm_80", "sm_90")) -> Path:
    """A folder for the front of ``PATH`` with a command ``nvcc``."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    command = bin_folder / "nvcc"
    names = ",".join(architectures)
    script = f"#!/bin/sh\nexec '{sys.executable}' -I '{_HERE / 'fake_nvcc.py'}' '{HEADERS}' {names}"
    command.write_text(f'{script} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return bin_folder
