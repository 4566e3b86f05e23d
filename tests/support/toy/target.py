"""A target that is no part of the package: a unit that fetches lines ahead of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

import amos
from amos.errors import BuildError, ScheduleError
from amos.intrinsics import Intrinsic
from amos.machine import Level, Machine, Peak
from amos.machine.identity import Identity
from amos.measure.executor import Executor
from amos.measure.reference import References, compare_arrays
from amos.measure.task import Task
from amos.perfmodel.terms import BatchPrediction
from amos.plan.schedule import Plan, Schedule
from amos.plan.structure import LoopBatch, Structure
from amos.plan.target import ExecutorRequest, Target
from amos.plan.variables import variable
from amos.records import Measurement
from amos.records.canonical import identity_of
from amos.schedule import rules
from amos.schedule.draft import Draft, Rule
from amos.schedule.memory_rules import registers

UNIT = "avx512_fmadd_m16_f32_f32"
MACHINE = Machine(
    name="toy",
    cores=1,
    clock=1e9,
    levels=(Level("buffer", 1 << 16, 1e11, 1e11), Level("DRAM", 0, 1e10, 1e10)),
    peaks={UNIT: Peak(4e-9, 1e-9)},
    features=("toy",),
)


@dataclass(frozen=True)
class ToyBatch(LoopBatch):
    """Schedules with the lines that each fetches ahead."""

    lines: np.ndarray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ToySchedule(Schedule):
    """Tiles, orders, and lines that are fetched ahead."""

    _batch: ClassVar[type[LoopBatch]] = ToyBatch

    lines: int = variable("lines", 1)

    def _row(self, structure: Structure) -> dict[str, Any]:
        ahead = [False] * len(structure.choices)
        return {"parallel": 1, "unroll": 1, "ahead": ahead, "lines": self.lines}


def orders(draft: Draft) -> None:
    """C3: the order of loops, and the lines."""
    for name, loops in (("order", draft.context.spatial), ("reduce", draft.context.reduce)):
        if loops:
            draft.tunable(name, rules.permutations(loops))
    draft.tunable("lines", (1, 2, 4), default=1)


class ToyExecutor(Executor):
    """Runs candidates call by call in NumPy."""

    exact = True

    def close(self) -> None:
        """Nothing is open."""

    @property
    def identity(self) -> Identity:
        """The description."""
        return identity_of(MACHINE)

    def machine(
        self,
        intrinsics: Sequence[Intrinsic],
        *,
        again: bool = False,
        implementation: str | None = None,
    ) -> Machine:
        """The description."""
        return MACHINE

    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        """One after the other."""
        for number, task in tasks:
            inputs, (expected,) = References().get(task.operator)
            got = amos.simulate(task.candidate.mapping, inputs)
            difference, strange = compare_arrays(got, expected)
            assert not strange
            seconds = amos.predict(task.candidate, MACHINE).seconds
            yield number, Measurement((seconds,), expected.size, difference, "simulated")


class Toy(Target):
    """Machines with the feature ``toy``."""

    name: ClassVar[str] = "toy"
    schedule: ClassVar[type[Schedule]] = ToySchedule
    exports: ClassVar[Mapping[str, str]] = {"toy": "tests.support.toy.target.files"}

    def claims(self, machine: Machine) -> bool:
        """By its features."""
        return "toy" in machine.features

    @property
    def rules(self) -> Sequence[Rule]:
        """Tiles in registers, one to a block."""
        return [
            Rule("C1", partial(rules.tiles, counts=(1,))),
            Rule("C3", orders),
            Rule("C5", registers),
            Rule("C6", rules.limit_by_description),
        ]

    def plan(self, mapping: Any, schedule: Schedule, machine: Machine | None) -> Plan:
        """The loops as they are."""
        if not isinstance(schedule, ToySchedule):
            raise ScheduleError(f"expected a ToySchedule, got a {type(schedule).__name__}")
        return Plan(mapping, schedule)

    def emit(self, plan: Plan) -> str:
        """A line a loop."""
        loops = (*plan.spatial, *plan.reduce_loops)
        assert isinstance(plan.schedule, ToySchedule)
        return "\n".join([*(f"for {x.name} {x.extent}" for x in loops), f"{plan.schedule.lines}"])

    def predict(
        self, structure: Structure, machine: Machine, batch: LoopBatch, *, refined: bool
    ) -> BatchPrediction:
        """Calls, and operands that come from DRAM line by line."""
        lines = ToyBatch.of(batch).lines
        result = BatchPrediction.empty(len(batch), machine.levels)
        peak = machine.peak(structure.mapping.intrinsic.name)
        result.compute[:] = structure.nest.calls * peak.interval
        size = sum(op.origin * op.size for op in structure.operands)
        outermost = machine.levels[-1]
        seconds = size / outermost.read_bandwidth / (1 if lines is None else lines)
        result.read[outermost.name] = np.broadcast_to(seconds, len(batch))
        result.seconds[:] = np.maximum(result.compute, result.read[outermost.name])
        return result

    def overflows(self, structure: Structure, machine: Machine, batch: LoopBatch) -> list[str]:
        """Nothing is placed anywhere."""
        return []

    def check_operator(self, operator: Any, intrinsic: Intrinsic, machine: Machine) -> None:
        """Sums leave as they are."""
        if operator.epilogue is not None:
            raise BuildError(f"toy: nothing computes {operator.epilogue}")

    def open_executor(self, request: ExecutorRequest) -> Executor | None:
        """An interpreter."""
        if request.address is None:
            return ToyExecutor()
        return super().open_executor(request)


def files(request: Any) -> dict[str, str]:
    """The loops of a kernel."""
    toy, candidate = Toy(), request.candidate
    return {"loops.txt": toy.emit(toy.plan(candidate.mapping, candidate.schedule, MACHINE))}
