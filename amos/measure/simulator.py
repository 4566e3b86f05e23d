"""Measuring on a simulated unit, in the worker that has limits of time and memory."""

from __future__ import annotations

from dataclasses import replace

from amos.measure.executor import DescribedExecutor
from amos.measure.task import Task
from amos.runtime.stream.kernel import check_operator as check_operator


class SimulatorExecutor(DescribedExecutor):
    """A described machine whose streams are simulated here."""

    exact = True

    def _placed(self, task: Task) -> Task:
        return replace(task, unit=self._machine)
