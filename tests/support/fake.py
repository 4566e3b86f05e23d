"""Executors whose workload takes no time: one with real processes, one without any."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine, catalogue
from amos.machine.identity import Identity
from amos.measure import Runner
from amos.measure.executor import Executor
from amos.measure.limits import waiting_seconds
from amos.measure.runner import measurement_of
from amos.measure.task import Task
from amos.plan import Candidate
from amos.records import Measurement
from amos.records.record import candidate_key
from tests.support.misbehaviour import Drill

__all__ = ["INTRINSIC", "OPERATOR", "Answering", "FakeExecutor", "fake_seconds", "overhead_of"]

INTRINSIC = "vnni_dpbusd_m16k4_u8_s8_s32"
#: An operator with several mappings and many thousand schedules.
OPERATOR = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=14, q=14, k=64, c=32, r=3, s=3),
    shapes=dict(image=(1, 14, 14, 32)),
)


def fake_seconds(candidate: Candidate) -> float:
    """A time that depends on the candidate alone, between 10 and 20 us."""
    return 1e-5 * (1 + int(candidate_key(candidate)[:8], 16) / 0xFFFFFFFF)


def overhead_of(ask: Callable[[], Measurement]) -> tuple[Measurement, float]:
    """A measurement, and the seconds that it took beyond its own work.

    Time in which this process waits for a core does not count: that is what else runs on
    the machine. The guard's does, as it also waits while the worker works.
    """
    before, start = waiting_seconds(os.getpid()), time.perf_counter()
    answer = ask()
    lost = waiting_seconds(os.getpid()) - before
    return answer, time.perf_counter() - start - answer.work_seconds - lost


class _Fake(Executor):
    """Measures a machine that exists nowhere; a described one stands in for it."""

    model = "fake"

    def close(self) -> None:
        """Nothing is held."""

    @property
    def identity(self) -> Identity:
        """That machine."""
        return Identity("host", self.model, 2)

    def machine(
        self,
        intrinsics: Sequence[Intrinsic],
        *,
        again: bool = False,
        implementation: str | None = None,
    ) -> Machine:
        """The described one."""
        return catalogue.get("xeon_6240", intrinsics)


class Answering(_Fake):
    """Answers in this process.

    Args:
        answer: what becomes of a task; by default its time depends on the candidate alone.
        most: how many are answered before the run is stopped.
        stop: what is raised then.
        model: of the machine.

    Attributes:
        count: tasks that were answered.
    """

    def __init__(
        self,
        answer: Callable[[Task], Measurement] | None = None,
        *,
        most: int = 1 << 30,
        stop: type[BaseException] = KeyboardInterrupt,
        model: str = "fake",
    ) -> None:
        self.model, self.count = model, 0
        self._answer, self._most, self._stop = answer or _quiet, most, stop

    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        """One after the other."""
        for number, task in tasks:
            if self.count >= self._most:
                raise self._stop
            self.count += 1
            yield number, self._answer(task)


def _quiet(task: Task) -> Measurement:
    return Measurement((fake_seconds(task.candidate),) * 9, 1, 0.0, "generic")


class FakeExecutor(_Fake):
    """Workers do nothing, or what is asked of them; times depend on the candidate alone.

    Args:
        hostile: what the task of that number, counted from 0, does instead; keys
            of :data:`tests.support.misbehaviour.HOSTILE`.
        timeout: seconds that one task may take.
        memory: bytes that it may allocate.

    Attributes:
        overheads: seconds that each well-behaved task took beyond its own work.
    """

    def __init__(
        self, hostile: Mapping[int, str] | None = None, timeout: float = 30.0, memory: int = 1 << 28
    ) -> None:
        self.runner, self._hostile = Runner(timeout, memory), dict(hostile or {})
        self._requests = 0
        self.overheads: list[float] = []

    def close(self) -> None:
        """End the worker."""
        self.runner.close()

    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        """One task after the other, each in the worker."""
        for number, task in tasks:
            how = self._hostile.get(self._requests, "work")
            self._requests += 1
            measurement, beyond = overhead_of(partial(self._drill, how))
            if measurement.ok:
                self.overheads.append(beyond)
                times = (fake_seconds(task.candidate),) * 3
                measurement = Measurement(
                    times, 1, 0.0, "generic", work_seconds=measurement.work_seconds
                )
            yield number, measurement

    def _drill(self, how: str) -> Measurement:
        return measurement_of(self.runner.request(Drill(how)))
