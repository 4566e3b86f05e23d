"""Contract of targets; a target joins by naming itself, and an operator that it runs.

>>> class TestMyTarget(TargetContract):
...     target, machine = "cuda", "a100"
...     operator = "out[i,j] += a[i,k] * b[k,j]", dict(i=64, j=64, k=64)
...     intrinsic = "wmma_m16n16k16_f16_f32"
"""

from __future__ import annotations

import json
from typing import ClassVar

import numpy as np
import pytest

from amos import enumerate_mappings, intrinsics
from amos.errors import MeasureError, ScheduleError
from amos.ir import Operator
from amos.machine import Machine, catalogue
from amos.mapping import Mapping
from amos.measure import Task
from amos.measure.executor import Executor
from amos.perfmodel import evaluate, predict
from amos.plan import Candidate, CpuSchedule, Schedule, Structure, batch_of
from amos.plan.target import TARGETS, ExecutorRequest, Target, load, target_of, targets
from amos.plan.variables import variables_of
from amos.records import Measurement, Record, Trial
from amos.records.canonical import identity_of, machine_values
from amos.records.record import Run
from amos.records.rows import record_of, row_of
from amos.schedule import ScheduleSpace

_DRAWN = 24


class TargetContract:
    """Subclass it in a test module and name target, machine, operator and intrinsic."""

    #: Key of :data:`amos.plan.target.TARGETS`.
    target: ClassVar[str]
    #: A described machine of it, by name or itself.
    machine: ClassVar[str | Machine]
    #: Text and extents of an operator with a mapping that the target runs; small.
    operator: ClassVar[tuple[str, dict[str, int]]]
    intrinsic: ClassVar[str]

    @property
    def _described(self) -> Machine:
        unit = intrinsics.get(self.intrinsic)
        return catalogue.with_timings(catalogue.get(self.machine), [unit])

    @property
    def _target(self) -> Target:
        return target_of(self._described)

    @property
    def _mapping(self) -> Mapping:
        text, extents = self.operator
        operator = Operator.parse(text, extents=extents)
        return enumerate_mappings(operator, intrinsics.get(self.intrinsic))[0]

    @property
    def _space(self) -> ScheduleSpace:
        return ScheduleSpace(self._mapping, self._described)

    def _draw(self) -> list[Schedule]:
        drawn = self._space.draw(_DRAWN, np.random.default_rng(0))
        assert drawn, "no schedule is feasible"
        return drawn

    def _foreign(self) -> list[Schedule]:
        """Create a schedule of each other target, with a variable that only it has."""
        schedules, own = [], self._target.schedule.keys()
        for target in targets():
            for name, kind in variables_of(target.schedule).items():
                if kind.key not in own and isinstance(kind.default, int):
                    values = {f"{kind.key}.none" if kind.per else kind.key: kind.default + 1}
                    schedules.append(target.schedule.of(values))
                    assert getattr(schedules[-1], name) is not None
                    break
        return schedules

    def test_one_target_claims_a_machine(self) -> None:
        """Only the registered target claims it."""
        assert self._target.name == self.target
        assert self.target in TARGETS
        claiming = [x.name for x in [*targets()][1:] if x.claims(self._described)]
        assert claiming in ([self.target], [])
        assert claiming or self.target == next(iter(TARGETS))
        assert self._target.runs(Structure(self._mapping), self._described)

    def test_schedules_are_drawn_written_and_read(self) -> None:
        """They are of its class, feasible, and the same when read back."""
        space = self._space
        for schedule in self._draw():
            assert type(schedule) is self._target.schedule
            assert space.violations(schedule) == ()
            values = json.loads(json.dumps(schedule.as_dict()))
            assert space.check(self._target.schedule.of(values)) == schedule
            assert self._target.schedule.of(schedule.as_recorded()) == schedule

    def test_keys_mean_the_same_as_elsewhere(self) -> None:
        """Keys shared with a CPU have the same loops or operands, and no other words."""
        cpu = {kind.key: kind for kind in variables_of(CpuSchedule).values()}
        for kind in variables_of(self._target.schedule).values():
            if same := cpu.get(kind.key):
                assert kind.per == same.per, kind.key
                assert {*kind.words} <= {*same.words}, kind.key

    def test_plans_are_decided_once(self) -> None:
        """Equal candidates have equal plans and code."""
        target, machine = self._target, self._described
        for schedule in self._draw()[:4]:
            first, second = (target.plan(self._mapping, schedule, machine) for _ in range(2))
            assert str(first) == str(second)
            assert target.emit(first) == target.emit(second) != ""

    def test_schedules_of_other_targets_are_refused(self) -> None:
        """With an error that names the reason."""
        for schedule in self._foreign():
            with pytest.raises(ScheduleError):
                self._space.check(schedule)
            with pytest.raises(ScheduleError):
                self._target.plan(self._mapping, schedule, self._described)

    def test_a_batch_is_its_rows(self) -> None:
        """Schedules of a batch are predicted as if alone, and feasible ones fit."""
        structure, machine, drawn = Structure(self._mapping), self._described, self._draw()
        for model in ("amos", "amos+"):
            whole = evaluate(structure, machine, batch_of(structure, drawn), model).seconds
            single = [evaluate(structure, machine, x.batch(structure), model) for x in drawn]
            assert whole.tolist() == [float(row.seconds[0]) for row in single]
            assert (whole > 0).all()
        assert np.isfinite(whole).all()
        for schedule in drawn:
            assert not [*self._target.overflows(structure, machine, schedule.batch(structure))]
            prediction = predict(self._mapping, machine, schedule)
            assert prediction.bound
            assert prediction.rows[0].compute > 0

    def test_executors_are_its_own(self) -> None:
        """The model alone opens none, and addresses of other targets are refused."""
        target, machine = self._target, self._described
        assert target.open_executor(ExecutorRequest(machine, "model")) is None
        with pytest.raises(MeasureError, match=machine.name):
            target.open_executor(ExecutorRequest(machine, "nowhere"))

    def test_a_candidate_is_measured(self) -> None:
        """Where the target has something to measure with."""
        target, machine = self._target, self._described
        executor = target.open_executor(ExecutorRequest(machine))
        if executor is None:
            pytest.skip(f"nothing here measures candidates of {machine.name}")
        with executor:
            measured = _measure(executor, Candidate(self._mapping, self._draw()[0]))
        assert measured.ok, measured.message

    def test_records_keep_candidates(self) -> None:
        """A record rebuilds its candidate, and keeps the user's own machine."""
        machine, mapping = self._described, self._mapping
        unit, schedule = mapping.intrinsic, self._draw()[0]
        run = Run.of(
            mapping.operator, unit, identity_of(machine), method="random", seed=0, options={}
        )
        trial = Trial(0, Candidate(mapping, schedule), 1.0)
        row = row_of(Record.of_trial(trial, run, "now")) | {"figures": machine_values(machine)}
        again = record_of(json.loads(json.dumps(row))).rebuild()
        assert again.schedule == schedule
        assert again.mapping.name == mapping.name

    def test_exports_are_functions(self) -> None:
        """Each format has one."""
        for place in self._target.exports.values():
            assert callable(load(place))


def _measure(executor: Executor, candidate: Candidate) -> Measurement:
    ((_, measurement),) = executor.measure(iter([(0, Task(candidate, 1))]))
    return measurement
