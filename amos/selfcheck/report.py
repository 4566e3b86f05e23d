"""Outcome of the self-check of one intrinsic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from amos.intrinsics import Intrinsic
from amos.selfcheck.data import compare


@dataclass
class Report:
    """Results of one intrinsic, which the checks fill in one after another.

    Attributes:
        name: the intrinsic.
        described: the description is well formed, and maps onto itself.
        enumerates: mappings of its own statement under rule ``"access"``.
        compiled_for: ``"<compiler>: <target>"``, each a compilation that went well.
        ran_on: ``"<compiler>: <device>"``, each compared with the meaning.
        problems: errors: a difference, a compile failure, a crash.
        skipped: checks that cannot run here, with the reasons.
        compared: elements that were compared with the meaning.
    """

    name: str
    described: bool = False
    enumerates: int = 0
    compiled_for: list[str] = field(default_factory=list)
    ran_on: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    compared: int = 0
    different: bool = False

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return self.described and not self.problems

    @property
    def equal(self) -> bool | None:
        """True if all runs agreed, false if one did not, ``None`` if none ran."""
        return not self.different if self.ran_on or self.different else None

    def differ(self, problem: str) -> None:
        """Note that an implementation differs from the meaning."""
        self.different = True
        self.problems.append(problem)

    def judge(
        self,
        label: str,
        unit: Intrinsic,
        inputs: Mapping[str, np.ndarray],
        got: np.ndarray | str,
        *,
        exact: bool = True,
    ) -> None:
        """Compare an implementation's result, or record why there is none, with the meaning."""
        self.ran_on.append(label)
        if isinstance(got, str):
            self.differ(f"{label}: {got}")
            return
        self.compared += got.size
        if problem := compare(unit, inputs, got, exact=exact):
            self.differ(f"{label}: {problem}")

    def join(self, report: Report) -> None:
        """Add the results of another part of the check."""
        self.compiled_for += report.compiled_for
        self.ran_on += report.ran_on
        self.problems += report.problems
        self.skipped += report.skipped
        self.compared += report.compared
        self.different |= report.different

    def to_dict(self) -> dict[str, Any]:
        """Convert the report for ``--json``."""
        values = asdict(self) | {"ok": self.ok, "equal": self.equal}
        del values["different"]
        return values

    def __str__(self) -> str:
        parts = ["described" if self.described else "NOT DESCRIBED"]
        if self.described:
            parts.append(f"enumerates {self.enumerates}")
        if self.compiled_for:
            parts.append("compiles for " + _group(self.compiled_for))
        if self.ran_on:
            parts.append("ran on " + _group(self.ran_on))
        if self.equal is None:
            parts.append("ran nowhere here, so nothing is compared")
        else:
            parts.append(f"equal ({self.compared:,} elements)" if self.equal else "NOT EQUAL")
        parts += [f"FAILED {problem}" for problem in self.problems]
        parts += [f"skipped {why}" for why in self.skipped]
        return f"{self.name}: {'; '.join(parts)}"


def _group(entries: list[str]) -> str:
    """Group by format: ``cuda: sm_80``, ``cuda: sm_90`` → ``sm_80 sm_90 (cuda)``."""
    groups: dict[str, list[str]] = {}
    for entry in entries:
        who, _, what = entry.partition(": ")
        groups.setdefault(who, []).append(what)
    return ", ".join(f"{' '.join(what)} ({who})" for who, what in groups.items())
