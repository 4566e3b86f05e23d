"""The C implementation, with this machine's C compiler."""

from __future__ import annotations

import platform
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np

from amos.intrinsics import Implementation, Intrinsic, implementations
from amos.machine.cpu import cpu
from amos.selfcheck.data import compare, fragments
from amos.selfcheck.program import c_program, run_program, tool
from amos.selfcheck.report import Report

__all__ = ["check_c", "compare_program"]

_COMPILERS = ("cc", "gcc", "clang")


def check_c(unit: Intrinsic, report: Report, rng: np.random.Generator) -> None:
    """Compile for this machine; run if the CPU has the instruction."""
    source = implementations(unit.name).get("c")
    if source is None or source.machine not in ("", platform.machine()):
        return
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        report.skipped.append(f"c: no compiler on the path ({', '.join(_COMPILERS)})")
        return
    missing = {*unit.requires, *source.requires} - cpu().features
    reason = f"c: this CPU lacks {', '.join(sorted(missing))}" if missing else ""
    compare_program(unit, source, report, rng, [compiler], [], f"c: {platform.machine()}", reason)


def compare_program(
    unit: Intrinsic,
    source: Implementation,
    report: Report,
    rng: np.random.Generator,
    compiler: list[str],
    emulator: list[str],
    label: str,
    not_run: str = "",
) -> None:
    """Compile a C implementation, run it through an emulator if need be, and compare.

    Args:
        compiler: command and options, before those of the implementation.
        emulator: command that runs the program; nothing for this machine.
        label: how the report calls it.
        not_run: why the program is not run, if it is not.
    """
    with tempfile.TemporaryDirectory(prefix="amos-") as folder:
        text, program = Path(folder, "call.c"), Path(folder, "call")
        text.write_text(c_program(unit, source), encoding="utf-8")
        if problem := tool([*compiler, "-O2", *source.flags, "-o", program, text]):
            problem = re.sub(r"^\S*call\.c:\S*\s*", "", problem)
            report.problems.append(f"{label}: does not compile: {problem}")
            return
        report.compiled_for.append(label)
        if not_run:
            report.skipped.append(not_run)
            return
        given = fragments(unit, rng)
        got = run_program([*emulator, str(program)], unit, given)
    report.ran_on.append(label)
    if isinstance(got, str):
        report.differ(f"{label}: {got}")
        return
    report.compared += got.size
    if problem := compare(unit, given, got, exact=True):
        report.differ(f"{label}: {problem}")
