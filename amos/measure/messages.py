"""What a program asks of a process that may be lost, and what it hears back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from amos.intrinsics import Implementation, Intrinsic
from amos.ir import Operator
from amos.measure.references import References

__all__ = ["GO", "Context", "Failure", "Job", "NeedsCores", "Reply", "Request"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
#: The guard's word to a worker that waits for the cores.
GO = "go"


@dataclass(frozen=True)
class Failure:
    """What a worker could not do.

    Attributes:
        failure: kind, as in :class:`amos.records.Measurement`; also ``"probe"``, ``"unheld"``
            for a dtype that no CPU kernel can hold, or ``"unreachable"``.
        message: what happened, in one line.
    """

    failure: str
    message: str


@dataclass(frozen=True)
class Context:
    """What a job finds in its worker.

    Attributes:
        references: expected results, computed by the guard as far as the job needs them.
        wait: returns when this process has the cores to itself.
        limit: seconds that the job may take.
    """

    references: References
    wait: Callable[[], None]
    limit: float = math.inf


class Job(Protocol[T_co]):
    """Work for a process that may be lost; it travels pickled."""

    @property
    def intrinsics(self) -> Sequence[Intrinsic]:
        """Intrinsics that the worker's registry must have."""
        ...

    @property
    def needs(self) -> frozenset[Operator | str]:
        """What must be ready before: code for ``"cpu"`` or ``"gpu"``, results of operators."""
        ...

    def run(self, context: Context) -> T_co | Failure:
        """Do it, in the worker. Any exception is a failure too."""
        ...


@dataclass(frozen=True)
class Request:
    """A job with its limits.

    Attributes:
        job: what to do.
        limit: seconds that it may take.
        memory: bytes that it may allocate; 0 for no limit.
        provided: what the worker has to know of intrinsics that a file or a program described.
    """

    job: Job[Any]
    limit: float
    memory: int
    provided: tuple[Intrinsic | Implementation, ...]


@dataclass(frozen=True)
class Reply(Generic[T]):
    """What became of a request.

    Attributes:
        answer: of the job, or why there is none.
        work_seconds: that the job took.
        fresh_worker: True if a worker was started for it.
        retire: True if the worker has grown too much to be kept.
    """

    answer: T | Failure
    work_seconds: float = 0.0
    fresh_worker: bool = False
    retire: bool = False

    @property
    def failure(self) -> str:
        """Kind of failure; empty if the job was done."""
        return str(getattr(self.answer, "failure", ""))


class NeedsCores:
    """A worker's message that it waits for the cores."""
