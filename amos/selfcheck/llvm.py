"""TVM's LLVM on this CPU: the native implementation, and the loops of the meaning."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import numpy as np

from amos.errors import AmosError
from amos.intrinsics import Intrinsic, implementations
from amos.ir import Operator
from amos.machine.cpu import cpu
from amos.measure import Runner
from amos.measure.messages import LOADER, Context, Failure
from amos.selfcheck.data import Fragments
from amos.selfcheck.report import Report


def check_llvm(unit: Intrinsic, inputs: Fragments, report: Report, runner: Runner) -> None:
    """Compile and run in the runner's worker process, so that a crash is only a failure."""
    source = implementations(unit.name).get("llvm")
    if source is not None and source.runs_here:
        if missing := {*unit.requires, *source.requires} - cpu().features:
            report.skipped.append(f"llvm native: this CPU lacks {', '.join(sorted(missing))}")
        else:
            _run(unit, inputs, report, runner, "native")
    _run(unit, inputs, report, runner, "generic")


def _run(unit: Intrinsic, inputs: Fragments, report: Report, runner: Runner, kind: str) -> None:
    arrays = [inputs[load.tensor.name] for load in unit.operands]
    answer = runner.request(_Call(unit, kind, tuple(arrays))).answer
    label = f"llvm {kind}: {platform.machine()}"
    if isinstance(answer, Failure):
        if answer.failure == "unheld":
            reason = answer.message.removeprefix(f"{unit.name}: ")
            report.skipped.append(f"llvm {kind}: {reason}")
            return
        report.problems.append(f"{label}: {answer.failure}: {answer.message}")
        report.different |= answer.failure != "build"
        return
    report.compiled_for.append(label)
    report.judge(label, unit, inputs, answer, exact=kind == "native")


@dataclass(frozen=True)
class _Call:
    """Calls of an intrinsic, as its self-check makes them: arrays of calls × fragment."""

    intrinsic: Intrinsic
    implementation: str
    arrays: tuple[np.ndarray, ...]

    @property
    def intrinsics(self) -> tuple[Intrinsic, ...]:
        return (self.intrinsic,)

    @property
    def needs(self) -> frozenset[Operator | str]:
        return frozenset({LOADER})

    def run(self, context: Context) -> np.ndarray | Failure:
        from amos.codegen.tir.tensor_intrin import check_operands
        from amos.runtime.calls import run_calls

        try:
            check_operands(self.intrinsic)
        except AmosError as error:
            return Failure("unheld", str(error))
        try:
            return run_calls(self.intrinsic, self.implementation, self.arrays)
        except AmosError as error:
            return Failure("build", str(error))
