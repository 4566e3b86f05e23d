"""One exploration: enumerate, search on the model, measure the promising."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from amos.errors import ExploreError, MappingError, UnknownNameError, shown
from amos.explore.contenders import (
    Contender,
    chosen_intrinsics,
    contenders,
    executes,
    predicted,
    reasons,
    searched,
)
from amos.explore.contest import Contest, Entry
from amos.explore.exploration import Exploration
from amos.explore.guided import Guided
from amos.explore.methods import METHODS
from amos.explore.methods import method as find_method
from amos.explore.objective import Problem
from amos.explore.options import MeasureOptions, SearchOptions, check_count
from amos.explore.progress import Progress, Watch, slow
from amos.explore.run_log import RunLog
from amos.explore.session import Session
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.ir.limits import WORD
from amos.machine import Machine, catalogue
from amos.machine.identity import Identity
from amos.mapping import Mapping, MappingSpace, enumerate_mappings
from amos.measure.executor import Executor, LocalExecutor, open_executor
from amos.measure.gpu_executor import gpu_executor
from amos.measure.reference import Demand
from amos.measure.simulator import SimulatorExecutor
from amos.records.canonical import digest, machine_values
from amos.records.record import Run
from amos.records.store import Records
from amos.validate import RULES

__all__ = ["METHODS", "explore"]


def explore(
    operator: Operator,
    intrinsic: str | Intrinsic | Sequence[str | Intrinsic] | None = None,
    *,
    machine: str | Machine = "host",
    trials: int = 64,
    seed: int = 0,
    method: str = "ga",
    rule: str = "access",
    records: str | Path | None = None,
    search: SearchOptions = SearchOptions(),  # noqa: B008 (frozen)
    measure: MeasureOptions = MeasureOptions(),  # noqa: B008 (frozen)
    progress: Progress | bool = True,
    announce: Callable[[Problem], None] | None = None,
    notify: Callable[[str], None] | None = None,
) -> Exploration:
    """Search mapping and schedule for an operator, and the instruction if none is named.

    On the host, candidates are built, verified against NumPy and timed in a
    process of their own, and so they are for a described GPU that is at hand; on
    any other machine the model alone decides. With
    ``records`` the same call goes on where an earlier one stopped: what that one
    has measured on a machine of the same kind is taken from the file.

    Args:
        operator: what to compute.
        intrinsic: the instruction, by name or as a description; several of them or a family
            compete for the trials, without any all that the machine has (see
            :mod:`amos.explore.contest`).
        machine: ``"host"``, the name of a described machine, or a machine.
        trials: how many candidates to measure, from 1 on; fewer if the space has no more.
        seed: seed of the one random generator that the search draws from.
        method: search method, one of :data:`METHODS`.
        rule: which mappings to search; see :func:`amos.enumerate_mappings`.
        records: file to keep every trial in.
        search: how to search: which mappings and schedules, and when to end.
        measure: how to measure: where, and within which limits.
        progress: True for a line that says how far it is, on a terminal and in a notebook;
            False for none; a function is called after each trial instead, with it and the
            number of trials asked for.
        announce: called when all arguments are accepted, before the first trial, once for
            each instruction that takes part.
        notify: called with a line for each thing that one might not expect.

    Raises:
        MappingError: the operator cannot use the intrinsic, or any of several.
        ExploreError: a number is not of the right kind, nothing can be searched, or no
            candidate ran.
        ScheduleError: what is fixed is infeasible; the message names the smallest
            set of constraints in conflict.
        UnknownNameError: no such intrinsic, machine, method or variable.
        RecordError: the record file cannot be written.
        MeasureError: there is nothing to measure with, or less memory than checking takes.
    """
    _check(trials, seed, method, rule)
    alone = _alone(intrinsic, machine, measure)
    if alone is None:
        search = replace(search, commute=True)
    else:
        _choose(operator, alone, rule, search)
    watch = Watch(trials, search.time_limit, progress, records)
    say = watch.aside(notify)
    with watch.line, contextlib.ExitStack() as stack:
        workers = _open_workers(machine, alone, measure, say)
        if workers is not None:
            stack.enter_context(workers)
        shared = _Shared(operator, machine, workers, method, seed, rule, search, measure)
        units = [alone] if alone else shared.units(intrinsic)
        if records is not None:
            shared = replace(shared, store=stack.enter_context(Records(records)))
        contest = shared.contest(units, trials)
        first = contest.entries[0].session
        for line in (*first.log.notices(), *slow(first.problem, trials, workers)):
            say(line)
        for entry in contest.entries:
            watch.aside(announce)(entry.session.problem)
        last = _search(contest, trials, search, watch)
        if shared.store is not None:
            shared.store.check_place()
    return shared.result(contest, last)


def _check(trials: int, seed: int, method: str, rule: str) -> None:
    check_count("trials", trials)
    find_method(method)
    if not isinstance(seed, int) or not 0 <= seed < WORD:
        raise ExploreError(f"seed: expected a number from 0 on, below 2**63, got {shown(seed)}")
    if rule not in RULES:
        raise UnknownNameError("rule", rule, RULES)


def _alone(
    intrinsic: str | Intrinsic | Sequence[str | Intrinsic] | None,
    machine: str | Machine,
    measure: MeasureOptions,
) -> Intrinsic | None:
    """The instruction, if only one is asked for."""
    if intrinsic is None and _elsewhere(measure):
        return None
    units = chosen_intrinsics(intrinsic, machine)
    return units[0] if len(units) == 1 else None


def _elsewhere(measure: MeasureOptions) -> bool:
    """Whether another CPU than this one measures."""
    return measure.executor not in (None, "local", "gpu", "model")


def _none(operator: Operator, refused: list[Contender]) -> MappingError:
    """No instruction can be used, and why."""
    said = f"no instruction of {len(refused)} can be used for {operator.name}"
    return MappingError("\n  ".join([said, *reasons(refused)]))


@dataclass(frozen=True)
class _Shared:
    """What the sessions of one exploration share; each is on an instruction of its own."""

    operator: Operator
    machine: str | Machine
    workers: Executor | None
    method: str
    seed: int
    rule: str
    search: SearchOptions
    measure: MeasureOptions
    store: Records | None = None

    def units(self, wanted: str | Intrinsic | Sequence[str | Intrinsic] | None) -> list[Intrinsic]:
        """Several instructions that are asked for, as far as what measures executes them."""
        return chosen_intrinsics(wanted, self.machine, self._features())

    def _features(self) -> frozenset[str] | None:
        """What the CPU that measures has, if it is not this one."""
        if self.workers is None or isinstance(self.workers, LocalExecutor):
            return None
        return frozenset(self.workers.machine(()).features)

    def contest(self, units: Sequence[Intrinsic], trials: int) -> Contest:
        """The instructions that may win, with their sessions; one alone always may.

        Raises:
            MappingError: none can be used; the message says why.
        """
        if len(units) == 1:
            alone = Contender(units[0], self.counts(units[0])[self.rule])
            return Contest([Entry(alone, self.session(units[0], self._target(units)))])
        taking, refused = self._taking_part(units)
        taking, slower = Contest.near(taking, trials)
        refused = [*slower, *refused]
        if not taking:
            raise _none(self.operator, refused)
        target = self._target([each.intrinsic for each in taking])
        entries = [Entry(each, self.session(each.intrinsic, target)) for each in taking]
        return Contest(entries, refused)

    def _taking_part(self, units: Sequence[Intrinsic]) -> tuple[list[Contender], list[Contender]]:
        """Several instructions with what the model says of them, and those that are left out.

        Who falls out for what is fixed, say, leaves no other out for being slower.
        """
        unable: list[Contender] = []
        if self.workers is not None and self.measure.implementation == "native":
            features = self._features()
            lacking = [unit for unit in units if not executes(self.machine, unit, features)]
            unable = [Contender(unit, reason="no native implementation here") for unit in lacking]
            units = [unit for unit in units if unit not in lacking]
        while True:
            every = contenders(self.operator, units, self.rule, self.search)
            taking = [each for each in every if not each.reason]
            refused = [*unable, *(each for each in every if each.reason)]
            if not taking:
                return [], refused
            target = self._target([each.intrinsic for each in taking])
            taking = [
                predicted(self.operator, each, target, self.rule, self.search) for each in taking
            ]
            failed = [each for each in taking if each.reason]
            if not failed:
                return taking, refused
            unable += failed
            names = {each.intrinsic.name for each in failed}
            units = [unit for unit in units if unit.name not in names]

    def counts(self, unit: Intrinsic) -> dict[str, int]:
        """Number of mappings under each rule."""
        spaces = _spaces(self.operator, unit, self.search)
        return {rule: space.count for rule, space in spaces.items()}

    def session(self, unit: Intrinsic, target: Machine) -> Session:
        """The session of an instruction on a machine as the model sees it."""
        mappings = _choose(self.operator, unit, self.rule, self.search)
        op, workers = mappings[0].operator, self.workers
        if workers is not None:
            Demand.of(op).check(op, workers.memory)
        log = self._log(unit, op)
        # A run that is continued keeps the machine that it began with.
        target = log.machine("description") or target
        target.peak(unit.name)
        log.begin(target, unit)
        problem = Problem(mappings, target, fixes=self.search.fix, tiling=self.search.tiling)
        rng = np.random.default_rng(self.seed)
        guided = Guided(problem, rng, find_method(self.method), self.search.epsilon)
        measure = self.measure
        return Session(problem, guided, workers, log, measure.implementation, measure.flush)

    def _log(self, unit: Intrinsic, op: Operator) -> RunLog:
        """What the run of an instruction has recorded; the operator with all its dtypes."""
        workers, search = self.workers, self.search
        identity = workers.identity if workers is not None else _described(self.machine)
        options = {"rule": self.rule} | search.recorded() | self.measure.recorded()
        run = Run.of(op, unit, identity, method=self.method, seed=self.seed, options=options)
        return RunLog(self.store, run)

    def _target(self, units: Sequence[Intrinsic]) -> Machine:
        """The machine as the model sees it, or saw it when the run began."""
        for unit in units if self.store is not None else ():
            op = _choose(self.operator, unit, self.rule, self.search)[0].operator
            recorded = self._log(unit, op).machine("description")
            if recorded is not None and all(x.name in recorded.peaks for x in units):
                return recorded
        if self.workers is not None and not isinstance(self.machine, Machine):
            return self.workers.machine(units, implementation=self.measure.implementation)
        return catalogue.get(self.machine, units)

    def result(self, contest: Contest, last: Machine) -> Exploration:
        """What was found.

        Raises:
            ExploreError: no candidate ran.
        """
        problem, unit = contest.winner.session.problem, contest.winner.contender.intrinsic
        result = Exploration(
            operator=problem.mappings[0].operator,
            intrinsic=unit,
            machine=last,
            counts=self.counts(unit),
            searched=len(problem.mappings),
            space_size=problem.size,
            method=self.method,
            seed=self.seed,
            trials=tuple(contest.trials),
            replayed=sum(entry.session.replayed for entry in contest.entries),
            intrinsics=contest.contenders,
        )
        if result.expected(result.best) is None:
            return result
        return replace(result, prediction=problem.predict(result.best.candidate))


def _search(contest: Contest, trials: int, search: SearchOptions, watch: Watch) -> Machine:
    """Search, measure the leaders again, and describe the machine as it was meanwhile.

    Who interrupts it gets a note of what was reached.
    """
    try:
        watch.searching()
        for trial in contest.run(trials, search.time_limit, search.stagnation):
            watch.tried(trial, contest)
        session = contest.winner.session
        if session.executor is None or session.executor.exact:
            return session.problem.machine
        contest.confirm(watch.confirming)
        watch.confirmed(contest)
        return _last_machine(contest.winner.session)
    except KeyboardInterrupt as stop:
        for line in watch.interrupted(contest):
            stop.add_note(line)
        raise


def _last_machine(session: Session) -> Machine:
    """The machine as it was during the run."""
    assert session.executor is not None
    last = session.log.machine("finished")
    if last is None or session.measured:
        # The peak that the result is held against, measured in the same run.
        unit, chosen = session.problem.mappings[0].intrinsic, session.implementation
        last = session.executor.machine([unit], again=True, implementation=chosen)
        session.log.finish(last)
    return last


def _spaces(operator: Operator, unit: Intrinsic, search: SearchOptions) -> dict[str, MappingSpace]:
    return {rule: enumerate_mappings(operator, unit, rule, search.commute) for rule in RULES}


def _choose(operator: Operator, unit: Intrinsic, rule: str, search: SearchOptions) -> list[Mapping]:
    """The mappings to search.

    Raises:
        ExploreError: there is none under the rule.
    """
    spaces = _spaces(operator, unit, search)
    if not spaces[rule].count:
        each = ", ".join(f"{name} {other.count}" for name, other in spaces.items())
        raise ExploreError(f"no mapping under rule {rule!r} to search (mappings: {each})")
    return searched(spaces[rule], search.only)


def _open_workers(
    machine: str | Machine,
    unit: Intrinsic | None,
    measure: MeasureOptions,
    notify: Callable[[str], None],
) -> Executor | None:
    """What measures: workers for the host, a GPU that is described, or nothing.

    An instruction that is asked for alone must be one that they execute.

    Raises:
        ExploreError: the intrinsic came with a later architecture than the machine's.
        MeasureError: there is nothing to measure with, though it was asked for.
    """
    if getattr(machine, "name", machine) == "host":
        return open_executor(
            measure.executor, measure.timeout, measure.memory, unit, measure.implementation
        )
    target = catalogue.get(machine, [unit] if unit else [])
    if unit is not None and 0 < target.architecture < unit.architecture:
        raise ExploreError(
            f"{unit.name} needs sm_{unit.architecture}, and machine {target.name!r} is "
            f"sm_{target.architecture}"
        )
    if target.stream is not None and measure.executor is None:
        identity = _described(target)
        return SimulatorExecutor(target, identity, measure.timeout, measure.memory)
    return gpu_executor(measure.executor, target, measure.timeout, notify)


def _described(machine: str | Machine) -> Identity:
    """A described machine; of another kind when its figures change."""
    target = catalogue.get(machine)
    return Identity(target.name, f"figures {digest(machine_values(target))[:8]}", target.cores)
