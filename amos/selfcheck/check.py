"""The self-check: describe, enumerate, compile, run, compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from amos.errors import AmosError
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.mapping import enumerate_mappings
from amos.measure import Runner
from amos.plan.target import load, targets
from amos.selfcheck.arm import check_arm
from amos.selfcheck.data import draw_fragments
from amos.selfcheck.llvm import check_llvm
from amos.selfcheck.opencl import check_opencl
from amos.selfcheck.program import check_c
from amos.selfcheck.report import Report
from amos.validate import check_matching

_SEED = 20220618


def check(
    intrinsics: Sequence[Intrinsic], progress: Callable[[Report], None] | None = None
) -> list[Report]:
    """Check intrinsics with everything that this machine has."""
    intrinsics = [unit.ordered for unit in intrinsics]  # as implementations take fragments
    reports = {unit.name: Report(unit.name) for unit in intrinsics}
    with ThreadPoolExecutor(2) as pool, Runner(timeout=60.0) as runner:
        compiled = [
            pool.submit(load(target.selfcheck), intrinsics, np.random.default_rng(_SEED))
            for target in targets()
            if target.selfcheck
        ]
        for unit in intrinsics:
            report, inputs = reports[unit.name], draw_fragments(unit, np.random.default_rng(_SEED))
            _describe(unit, report)
            check_llvm(unit, inputs, report, runner)
            check_c(unit, inputs, report)
            check_arm(unit, inputs, report)
            check_opencl(unit, inputs, report)
        for target_reports in compiled:
            for name, target_report in target_reports.result().items():
                reports[name].join(target_report)
        for report in reports.values():
            if progress is not None:
                progress(report)
    return list(reports.values())


def _describe(unit: Intrinsic, report: Report) -> None:
    """Check that an intrinsic maps onto itself, each iteration to its own, by rule ``paper``."""
    try:
        op = Operator(unit.compute, name=unit.name)
        # An operator's sums wrap around; the statement is compared without saturation.
        plain = replace(unit, arithmetic=replace(unit.arithmetic, saturate=False))
        identity = np.eye(len(unit.iterations), dtype=bool)
        verdict = check_matching(op, plain, identity, rule="paper")
        report.described = bool(verdict)
        report.problems += [f"onto itself: {reason}" for reason in verdict.reasons]
        report.enumerates = enumerate_mappings(op, plain, rule="access").count
        if not report.enumerates:
            report.problems.append("enumerates no mapping of its own statement")
    except AmosError as error:
        report.problems.append(str(error))
