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
    predicted,
    reasons,
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
from amos.measure.executor import Executor, open_executor
from amos.measure.gpu_executor import gpu_executor
from amos.measure.reference import Demand
from amos.records.canonical import digest, machine_values
from amos.records.record import Run
from amos.records.store import Records
from amos.validate import RULES

__all__ = ["METHODS", "explore"]

#: A larger space is searched through this many mappings, spread evenly over it.
_MOST_MAPPINGS = 512


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
    units = chosen_intrinsics(intrinsic, machine)
    if len(units) > 1:
        search = replace(search, commute=True)
    taking, refused = _taking_part(operator, units, rule, search)
    watch = Watch(trials, search.time_limit, progress, records)
    say = watch.aside(notify)
    with watch.line, contextlib.ExitStack() as stack:
        store = stack.enter_context(Records(records)) if records is not None else None
        workers = _open_workers(machine, taking[0].intrinsic, measure, say)
        if workers is not None:
            stack.enter_context(workers)
        shared = _Shared(operator, machine, workers, store, method, seed, rule, search, measure)
        if len(taking) > 1:
            taking, slower = Contest.near(shared.predicted(taking), trials)
            refused = [*slower, *refused]
            if not taking:
                raise _none(operator, refused)
        contest = Contest([Entry(each, shared.session(each.intrinsic)) for each in taking], refused)
        first = contest.entries[0].session
        for line in (*first.log.notices(), *slow(first.problem, trials, workers)):
            say(line)
        for entry in contest.entries:
            watch.aside(announce)(entry.session.problem)
        last = _search(contest, trials, search, watch)
        if store is not None:
            store.check_place()
    problem = contest.winner.session.problem
    result = Exploration(
        operator=problem.mappings[0].operator,
        intrinsic=contest.winner.contender.intrinsic,
        machine=last,
        counts=shared.counts(contest.winner.contender.intrinsic),
        searched=len(problem.mappings),
        space_size=problem.size,
        method=method,
        seed=seed,
        trials=tuple(contest.trials),
        replayed=sum(entry.session.replayed for entry in contest.entries),
        intrinsics=contest.contenders,
    )
    return replace(result, prediction=problem.predict(result.best.candidate))


def _check(trials: int, seed: int, method: str, rule: str) -> None:
    check_count("trials", trials)
    find_method(method)
    if not isinstance(seed, int) or not 0 <= seed < WORD:
        raise ExploreError(f"seed: expected a number from 0 on, below 2**63, got {shown(seed)}")
    if rule not in RULES:
        raise UnknownNameError("rule", rule, RULES)


def _taking_part(
    operator: Operator, units: list[Intrinsic], rule: str, search: SearchOptions
) -> tuple[list[Contender], list[Contender]]:
    """The instructions that may win, and the others; one alone always may.

    Raises:
        ExploreError: the only one has no mapping under the rule.
        MappingError: none can be used; the message says why.
    """
    if len(units) == 1:
        spaces = _spaces(operator, units[0], search)
        _choose(spaces, rule, search.only)
        return [Contender(units[0], spaces[rule].count)], []
    every = contenders(operator, units, rule, commute=search.commute)
    taking = [each for each in every if not each.reason]
    if not taking:
        raise _none(operator, every)
    return taking, [each for each in every if each.reason]


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
    store: Records | None
    method: str
    seed: int
    rule: str
    search: SearchOptions
    measure: MeasureOptions

    def predicted(self, taking: Sequence[Contender]) -> list[Contender]:
        """Contenders with what the model says of them."""
        target = self._target([each.intrinsic for each in taking])
        commute = self.search.commute
        return [
            predicted(self.operator, each, target, self.rule, commute=commute) for each in taking
        ]

    def counts(self, unit: Intrinsic) -> dict[str, int]:
        """Number of mappings under each rule."""
        spaces = _spaces(self.operator, unit, self.search)
        return {rule: space.count for rule, space in spaces.items()}

    def session(self, unit: Intrinsic) -> Session:
        """The session of an instruction."""
        spaces = _spaces(self.operator, unit, self.search)
        mappings = _choose(spaces, self.rule, self.search.only)
        op, workers = mappings[0].operator, self.workers
        if workers is not None:
            Demand.of(op).check(op, workers.memory)
        identity = workers.identity if workers is not None else _described(self.machine)
        options = {"rule": self.rule} | self.search.recorded() | self.measure.recorded()
        run = Run.of(op, unit, identity, method=self.method, seed=self.seed, options=options)
        log = RunLog(self.store, run)
        # A run that is continued keeps the machine that it began with.
        target = log.machine("description") or self._target([unit])
        target.peak(unit.name)
        log.begin(target, unit)
        problem = Problem(mappings, target, fixes=self.search.fix, tiling=self.search.tiling)
        rng = np.random.default_rng(self.seed)
        guided = Guided(problem, rng, find_method(self.method), self.search.epsilon)
        measure = self.measure
        return Session(problem, guided, workers, log, measure.implementation, measure.flush)

    def _target(self, units: list[Intrinsic]) -> Machine:
        """The machine as the model sees it."""
        if self.workers is not None and not isinstance(self.machine, Machine):
            return self.workers.machine(units, implementation=self.measure.implementation)
        return catalogue.get(self.machine, units)


def _search(contest: Contest, trials: int, search: SearchOptions, watch: Watch) -> Machine:
    """Search, measure the leaders again, and describe the machine as it was meanwhile.

    Who interrupts it gets a note of what was reached.
    """
    try:
        watch.searching()
        for trial in contest.run(trials, search.time_limit, search.stagnation):
            watch.tried(trial, contest)
        session = contest.winner.session
        if session.executor is None:
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


def _choose(spaces: dict[str, MappingSpace], rule: str, only: tuple[str, ...]) -> list[Mapping]:
    """The named mappings, or all of the rule, or an even selection of those of a large space."""
    space = spaces[rule]
    if not space.count:
        each = ", ".join(f"{name} {other.count}" for name, other in spaces.items())
        raise ExploreError(f"no mapping under rule {rule!r} to search (mappings: {each})")
    if only:
        return [space.find(name) for name in only]
    step = max(1.0, space.count / _MOST_MAPPINGS)
    return [space[int(n * step)] for n in range(min(space.count, _MOST_MAPPINGS))]


def _open_workers(
    machine: str | Machine,
    unit: Intrinsic,
    measure: MeasureOptions,
    notify: Callable[[str], None],
) -> Executor | None:
    """What measures: workers for the host, a GPU that is described, or nothing.

    Raises:
        ExploreError: the intrinsic came with a later architecture than the machine's.
        MeasureError: there is nothing to measure with, though it was asked for.
    """
    if getattr(machine, "name", machine) == "host":
        return open_executor(
            measure.executor, measure.timeout, measure.memory, unit, measure.implementation
        )
    target = catalogue.get(machine, [unit])
    if 0 < target.architecture < unit.architecture:
        raise ExploreError(
            f"{unit.name} needs sm_{unit.architecture}, and machine {target.name!r} is "
            f"sm_{target.architecture}"
        )
    return gpu_executor(measure.executor, target, measure.timeout, notify)


def _described(machine: str | Machine) -> Identity:
    """A described machine; of another kind when its figures change."""
    target = catalogue.get(machine)
    return Identity(target.name, f"figures {digest(machine_values(target))[:8]}", target.cores)
