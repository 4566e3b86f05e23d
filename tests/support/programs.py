"""The test program of an export in C, built under sanitizers and run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_OPTIONS = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fwrapv -Wno-psabi"
#: Status of a program on a CPU that lacks what its kernel needs.
_UNSUPPORTED = 77


def run_test_program(folder: Path, options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """What the test program of a kernel named ``kernel`` says.

    The test is skipped without gcc, with one that lacks an option, and on a CPU that lacks an
    instruction of the kernel.

    Args:
        folder: of the export.
        options: of gcc, for the instructions that the kernel uses.
    """
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc here")
    files = ["-o", "check", "kernel.c", "kernel_test.c", "-lm"]
    command = [compiler, *_OPTIONS.split(), *options, *files]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if "unrecognized command-line option" in built.stderr:
        pytest.skip(f"this gcc does not know {' '.join(options)}")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run(["./check"], cwd=folder, capture_output=True, text=True)
    if ran.returncode == _UNSUPPORTED:
        pytest.skip(ran.stdout)
    return ran
