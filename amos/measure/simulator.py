"""Measuring on a simulated unit, in the worker that has limits of time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.machine.identity import Identity
from amos.measure.executor import LocalExecutor, Task
from amos.measure.runner import DEFAULT_TIMEOUT

__all__ = ["SimulatorExecutor"]


class SimulatorExecutor(LocalExecutor):
    """A described machine whose streams are simulated here.

    Args:
        machine: the description.
        identity: that it has in records.
        timeout: seconds that one candidate may take.
        memory: bytes that it may allocate.
    """

    exact = True

    def __init__(
        self,
        machine: Machine,
        identity: Identity,
        timeout: float = DEFAULT_TIMEOUT,
        memory: int | None = None,
    ) -> None:
        super().__init__(timeout, memory)
        self._machine, self._identity = machine, identity

    @property
    def identity(self) -> Identity:
        """The machine that is simulated."""
        return self._identity

    def machine(
        self,
        intrinsics: Sequence[Intrinsic],
        *,
        again: bool = False,
        implementation: str | None = None,
    ) -> Machine:
        """The description."""
        return self._machine

    def _placed(self, task: Task) -> Task:
        return replace(task, unit=self._machine)
