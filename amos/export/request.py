"""What is to be exported."""

from __future__ import annotations

from dataclasses import dataclass

from amos.plan import Candidate

__all__ = ["Request"]


@dataclass(frozen=True)
class Request:
    """One kernel to write down.

    Attributes:
        candidate: mapping and schedule.
        name: a C identifier: the function's name, and the stem of every file.
        implementation: ``"native"``, ``"generic"``, or ``None`` to choose.
        architecture: of the GPU that a CUDA kernel is for, as ``"sm_80"``; empty for
            the oldest that has the instruction.
    """

    candidate: Candidate
    name: str
    implementation: str | None = None
    architecture: str = ""
