"""What became of the self-check of one intrinsic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Report"]


@dataclass
class Report:
    """Filled in by the checks, one after another.

    Attributes:
        name: the intrinsic.
        described: the description is well formed, and maps onto itself.
        enumerates: mappings of its own statement under rule ``"access"``.
        compiled_for: ``"<who>: <for what>"``, each a compilation that went well.
        ran_on: ``"<who>: <on what>"``, each compared with the meaning.
        problems: what went wrong, in words; a difference, a compile failure, a crash.
        skipped: what could not be tried here, with its reason.
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
        """True if nothing that was tried went wrong."""
        return self.described and not self.problems

    @property
    def equal(self) -> bool | None:
        """True if everything that ran agreed, false if something did not, ``None`` if none ran."""
        return not self.different if self.ran_on or self.different else None

    def differ(self, problem: str) -> None:
        """Note that an implementation did something else than the meaning says."""
        self.different = True
        self.problems.append(problem)

    def to_dict(self) -> dict[str, Any]:
        """The report for ``--json``."""
        return {
            "name": self.name,
            "ok": self.ok,
            "described": self.described,
            "enumerates": self.enumerates,
            "compiled_for": self.compiled_for,
            "ran_on": self.ran_on,
            "equal": self.equal,
            "compared": self.compared,
            "skipped": self.skipped,
            "problems": self.problems,
        }

    def __str__(self) -> str:
        parts = ["described" if self.described else "NOT DESCRIBED"]
        if self.described:
            parts.append(f"enumerates {self.enumerates}")
        if self.compiled_for:
            parts.append("compiles for " + _grouped(self.compiled_for))
        if self.ran_on:
            parts.append("ran on " + _grouped(self.ran_on))
        if self.equal is None:
            parts.append("ran nowhere here, so nothing is compared")
        else:
            parts.append(f"equal ({self.compared:,} elements)" if self.equal else "NOT EQUAL")
        parts += [f"FAILED {problem}" for problem in self.problems]
        parts += [f"skipped {why}" for why in self.skipped]
        return f"{self.name}: {'; '.join(parts)}"


def _grouped(entries: list[str]) -> str:
    """``cuda: sm_80``, ``cuda: sm_90`` → ``sm_80 sm_90 (cuda)``."""
    groups: dict[str, list[str]] = {}
    for entry in entries:
        who, _, what = entry.partition(": ")
        groups.setdefault(who, []).append(what)
    return ", ".join(f"{' '.join(what)} ({who})" for who, what in groups.items())
