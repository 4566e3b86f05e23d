"""TVM's LLVM on this CPU: the native implementation, and the loops of the meaning."""

from __future__ import annotations

import platform

import numpy as np

from amos.intrinsics import Intrinsic, implementations
from amos.machine.cpu import cpu
from amos.measure import Runner
from amos.measure.call import Call
from amos.measure.messages import Failure
from amos.selfcheck.data import compare, fragments
from amos.selfcheck.report import Report

__all__ = ["check_llvm"]


def check_llvm(unit: Intrinsic, report: Report, runner: Runner, rng: np.random.Generator) -> None:
    """Compile and run in the runner's worker process, so that a crash is only a failure."""
    source = implementations(unit.name).get("llvm")
    if source is not None and source.machine in ("", platform.machine()):
        if missing := {*unit.requires, *source.requires} - cpu().features:
            report.skipped.append(f"llvm native: this CPU lacks {', '.join(sorted(missing))}")
        else:
            _run(unit, report, runner, rng, "native")
    _run(unit, report, runner, rng, "generic")


def _run(
    unit: Intrinsic, report: Report, runner: Runner, rng: np.random.Generator, kind: str
) -> None:
    given = fragments(unit, rng)
    arrays = [given[load.tensor.name] for load in unit.operands]
    answer = runner.request(Call(unit, kind, tuple(arrays))).answer
    label = f"llvm {kind}: {platform.machine()}"
    if isinstance(answer, Failure):
        if answer.failure == "unheld":
            said = answer.message.removeprefix(f"{unit.name}: ")
            report.skipped.append(f"llvm {kind}: {said}")
            return
        report.problems.append(f"{label}: {answer.failure}: {answer.message}")
        report.different |= answer.failure != "build"
        return
    report.compiled_for.append(label)
    report.ran_on.append(label)
    report.compared += arrays[-1].size
    if problem := compare(unit, given, answer, exact=kind == "native"):
        report.differ(f"{label}: {problem}")
