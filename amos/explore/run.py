"""One exploration: enumerate, search on the model, measure the promising."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from amos.errors import ExploreError, UnknownNameError, shown
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
from amos.intrinsics import get as get_intrinsic
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
    intrinsic: str | Intrinsic,
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
    """Search mapping and schedule for an operator on an intrinsic.

    On the host, candidates are built, verified against NumPy and timed in a
    process of their own, and so they are for a described GPU that is at hand; on
    any other machine the model alone decides. With
    ``records`` the same call goes on where an earlier one stopped: what that one
    has measured on a machine of the same kind is taken from the file.

    Args:
        operator: what to compute.
        intrinsic: the instruction, by name or as a description.
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
        announce: called once, when all arguments are accepted, before the first trial.
        notify: called with a line for each thing that one might not expect.

    Raises:
        MappingError: the operator cannot use the intrinsic.
        ExploreError: a number is not of the right kind, nothing can be searched, or no
            candidate ran.
        ScheduleError: what is fixed is infeasible; the message names the smallest
            set of constraints in conflict.
        UnknownNameError: no such intrinsic, machine, method or variable.
        RecordError: the record file cannot be written.
        MeasureError: there is nothing to measure with, or less memory than checking takes.
    """
    _check(trials, seed, method, rule)
    unit = get_intrinsic(intrinsic)
    spaces = {r: enumerate_mappings(operator, unit, r, search.commute) for r in RULES}
    mappings = _choose(spaces, rule, search.only)
    watch = Watch(trials, search.time_limit, progress, records)
    say = watch.aside(notify)
    with watch.line, contextlib.ExitStack() as stack:
        store = stack.enter_context(Records(records)) if records is not None else None
        op, workers = mappings[0].operator, _open_workers(machine, unit, measure, say)
        identity = _described(machine) if workers is None else workers.identity
        if workers is not None:
            stack.enter_context(workers)
            Demand.of(op).check(op, workers.memory)
        options = {"rule": rule} | search.recorded() | measure.recorded()
        run = Run.of(op, unit, identity, method=method, seed=seed, options=options)
        session = _begin(RunLog(store, run), workers, machine, mappings, search, measure)
        problem = session.problem
        for line in (*session.log.notices(), *slow(problem, trials, workers)):
            say(line)
        watch.aside(announce)(problem)
        last = _search(session, trials, search, watch)
        if store is not None:
            store.check_place()
    result = Exploration(
        operator=op,
        intrinsic=unit,
        machine=last,
        counts={r: space.count for r, space in spaces.items()},
        searched=len(problem.mappings),
        space_size=problem.size,
        method=method,
        seed=seed,
        trials=tuple(problem.trials),
        replayed=session.replayed,
    )
    return replace(result, prediction=problem.predict(result.best.candidate))


def _check(trials: int, seed: int, method: str, rule: str) -> None:
    check_count("trials", trials)
    find_method(method)
    if not isinstance(seed, int) or not 0 <= seed < WORD:
        raise ExploreError(f"seed: expected a number from 0 on, below 2**63, got {shown(seed)}")
    if rule not in RULES:
        raise UnknownNameError("rule", rule, RULES)


def _begin(
    log: RunLog,
    workers: Executor | None,
    machine: str | Machine,
    mappings: list[Mapping],
    search: SearchOptions,
    measure: MeasureOptions,
) -> Session:
    """A run on the machine as the model sees it; one that is continued keeps what it began with."""
    unit, target = mappings[0].intrinsic, log.machine("description")
    if target is None and workers is not None and not isinstance(machine, Machine):
        target = workers.machine([unit], implementation=measure.implementation)
    target = target or catalogue.get(machine, [unit])
    target.peak(unit.name)
    log.begin(target, unit)
    problem = Problem(mappings, target, fixes=search.fix, tiling=search.tiling)
    rng, method = np.random.default_rng(log.run.seed), find_method(log.run.method)
    guided = Guided(problem, rng, method, search.epsilon)
    return Session(problem, guided, workers, log, measure.implementation, measure.flush)


def _search(session: Session, trials: int, search: SearchOptions, watch: Watch) -> Machine:
    """Search, measure the leaders again, and describe the machine as it was meanwhile.

    Who interrupts it gets a note of what was reached.
    """
    try:
        watch.searching()
        for trial in session.trials(trials, search.time_limit, search.stagnation):
            watch.tried(trial, session.problem)
        if session.executor is None:
            return session.problem.machine
        session.confirm(watch.confirming)
        watch.confirmed(session.problem)
        return _last_machine(session)
    except KeyboardInterrupt as stop:
        for line in watch.interrupted(session.problem):
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
