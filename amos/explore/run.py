"""One exploration: enumerate, search on the model, measure the promising."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from amos.errors import ExploreError, UnknownNameError, shown
from amos.explore.effort import slow
from amos.explore.exploration import Exploration
from amos.explore.guided import EPSILON, Guided
from amos.explore.methods import METHODS
from amos.explore.methods import method as find_method
from amos.explore.objective import Problem, Spread
from amos.explore.progress import Progress, Watch
from amos.explore.run_log import RunLog
from amos.explore.session import Session
from amos.intrinsics import Intrinsic
from amos.intrinsics import get as get_intrinsic
from amos.ir import Operator
from amos.ir.limits import WORD
from amos.machine import Machine, catalogue
from amos.machine.identity import Identity
from amos.mapping import Mapping, MappingSpace, enumerate_mappings
from amos.measure.demand import Demand
from amos.measure.executor import Executor, open_executor
from amos.measure.gpu_executor import gpu_executor
from amos.plan import Value
from amos.records.canonical import digest, machine_values
from amos.records.rows import common_columns
from amos.records.store import Records
from amos.schedule import Tiling

__all__ = ["METHODS", "RULES", "explore"]

RULES = ("paper", "access", "gather")
IMPLEMENTATIONS = ("native", "generic")
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
    commute: bool = False,
    only: Iterable[str] = (),
    records: str | Path | None = None,
    timeout: float = 30.0,
    memory: int | None = None,
    time_limit: float | None = None,
    implementation: str | None = None,
    fix: Iterable[tuple[str, Value]] = (),
    tiling: Tiling = "hardware",
    stagnation: int | None = None,
    epsilon: float = EPSILON,
    flush: int = 0,
    executor: str | Executor | None = None,
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
        machine: ``"host"`` or the name of a described machine.
        trials: how many candidates to measure.
        seed: seed of the one random generator that the search draws from.
        method: search method, one of :data:`METHODS`.
        rule: which mappings to search; see :func:`amos.enumerate_mappings`.
        commute: also try the sources in other orders.
        only: names of the mappings to search; by default every one of the rule.
        records: file to keep every trial in.
        timeout: seconds that one candidate may take; more if it is slow by the model.
        memory: bytes for it, its inputs and NumPy's reference; by default half of all.
        time_limit: seconds after which no other candidate is begun.
        implementation: ``"native"`` or ``"generic"``; by default native where
            the CPU has the instruction.
        fix: names and values of schedule variables that every candidate has.
        tiling: ``"hardware"``, or ``"divisors"`` for register tiles that divide
            their loops.
        stagnation: end after this many trials without progress.
        epsilon: share of the candidates that are drawn by chance.
        flush: bytes of cache to overwrite before each timing.
        executor: where to measure: ``"tcp://HOST:PORT"`` of a Dask scheduler, or
            an executor; by default this machine. Then ``"host"`` means its workers.
            For a described GPU ``"gpu"`` or ``"model"``; by default the GPU of this
            machine if it is of that architecture.
        progress: True for a line that says how far it is, on a terminal and in a notebook;
            False for none; a function is called after each trial instead, with it and the
            number of trials asked for.
        announce: called once, when all arguments are accepted, before the first trial.
        notify: called with a line for each thing that one might not expect.

    Raises:
        MappingError: the operator cannot use the intrinsic.
        ExploreError: trials, seed or timeout is not a number of the right kind,
            nothing can be searched, or no candidate ran.
        ScheduleError: what is fixed is infeasible; the message names the smallest
            set of constraints in conflict.
        UnknownNameError: no such intrinsic, machine, method or variable.
        RecordError: the record file cannot be written.
        MeasureError: there is nothing to measure with, or less memory than checking takes.
    """
    _check_arguments(trials, rule, implementation, stagnation, epsilon)
    _check_numbers(seed, timeout, memory, time_limit, flush)
    chosen, fixes = find_method(method), tuple(fix)
    unit = get_intrinsic(intrinsic) if isinstance(intrinsic, str) else intrinsic
    spaces = {r: enumerate_mappings(operator, unit, rule=r, commute=commute) for r in RULES}
    mappings = _choose(spaces[rule], names := tuple(only))
    if not mappings:
        found = ", ".join(f"{r} {space.count}" for r, space in spaces.items())
        raise ExploreError(f"no mapping under rule {rule!r} to search (mappings: {found})")
    options = {"rule": rule, "commute": commute, "timeout": timeout, "memory": memory}
    options |= {"implementation": implementation, "flush": flush}
    options |= _given(fix=fixes, only=names, tiling=tiling, epsilon=epsilon)
    watch = Watch(trials, time_limit, progress, records)
    with watch.line, contextlib.ExitStack() as stack:
        kept = stack.enter_context(Records(records)) if records is not None else None
        how = (executor, timeout, memory, implementation)
        workers = _measuring(machine, unit, how, watch.aside(notify))
        if workers is not None:
            workers = stack.enter_context(workers)
        identity = workers.identity if workers is not None else _identity(machine)
        op = mappings[0].operator
        Demand.of(op).check(op, getattr(workers, "memory", 0))
        log = RunLog(kept, common_columns(op, unit, identity, method, seed, options))
        target = _first_machine(log, machine, unit, workers, implementation)
        problem = Problem(mappings, target, _spread(workers), fixes=fixes, tiling=tiling)
        for line in (*log.notices(), *slow(problem, trials, workers)) if notify else ():
            watch.aside(notify)(line)
        watch.aside(announce)(problem)
        search = Guided(problem, np.random.default_rng(seed), chosen, epsilon)
        session = Session(problem, search, workers, log, implementation, flush)
        last = _search(session, (trials, time_limit, stagnation), watch, unit)
        log.check_place()
    counts = {r: space.count for r, space in spaces.items()}
    return _result(session, last, unit, counts, method, seed)


def _given(**options: object) -> dict[str, object]:
    """Options without defaults: what a run was not given stays out of its record."""
    # Pairs of a tuple are lists in JSON; the digest of a run is that of its JSON.
    plain = {k: json.loads(json.dumps(v)) for k, v in options.items()}
    return {k: v for k, v in plain.items() if v not in ([], "hardware", EPSILON)}


def _spread(workers: Executor | None) -> Spread | None:
    """What evaluates the model for many candidates, if the workers do."""
    spread: Spread | None = getattr(workers, "spread", None)
    return spread


def _first_machine(
    log: RunLog,
    machine: str | Machine,
    unit: Intrinsic,
    workers: Executor | None,
    implementation: str | None,
) -> Machine:
    """The machine as the model sees it: a run that is continued keeps what it began with."""
    target = log.first_machine() or _machine(machine, unit, workers, implementation)
    target.peak(unit.name)
    log.begin(target, unit)
    return target


def _result(
    session: Session,
    machine: Machine,
    unit: Intrinsic,
    counts: dict[str, int],
    method: str,
    seed: int,
) -> Exploration:
    problem = session.problem
    result = Exploration(
        operator=problem.mappings[0].operator,
        intrinsic=unit,
        machine=machine,
        counts=counts,
        searched=len(problem.mappings),
        space_size=problem.size,
        method=method,
        seed=seed,
        trials=tuple(problem.trials),
        replayed=session.replayed,
    )
    return replace(result, prediction=problem.predict(result.best.candidate))


def _search(
    session: Session,
    limits: tuple[int, float | None, int | None],
    watch: Watch,
    unit: Intrinsic,
) -> Machine:
    """Search, measure the leaders again, and describe the machine as it was meanwhile.

    Who interrupts it gets a note of what was reached.
    """
    try:
        watch.searching()
        for trial in session.trials(*limits):
            watch.tried(trial, session.problem)
        if session.executor is None:
            return session.problem.machine
        session.confirm(watch.confirming)
        watch.confirmed(session.problem)
        return _last_machine(session, unit)
    except KeyboardInterrupt as stop:
        for line in watch.interrupted(session.problem):
            stop.add_note(line)
        raise


def _last_machine(session: Session, unit: Intrinsic) -> Machine:
    """The machine as it was during the run."""
    assert session.executor is not None
    last = session.log.last_machine()
    if last is None or session.measured:
        # The peak that the result is held against, measured in the same run.
        chosen = session.implementation
        last = session.executor.machine([unit], again=True, implementation=chosen)
        session.log.finish(last)
    return last


def _check_arguments(
    trials: int, rule: str, implementation: str | None, stagnation: int | None, epsilon: float
) -> None:
    for name, count in (("trials", trials), ("stagnation", stagnation)):
        if name == "stagnation" and count is None:
            continue
        if not isinstance(count, int) or not 1 <= count < WORD:
            raise ExploreError(f"{name}: expected a positive number, got {shown(count)}")
    if not isinstance(epsilon, int | float) or not 0 <= epsilon <= 1:
        raise ExploreError(f"epsilon: expected a share from 0 to 1, got {epsilon}")
    if rule not in RULES:
        raise UnknownNameError("rule", rule, RULES)
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise UnknownNameError("implementation", implementation, IMPLEMENTATIONS)


def _check_numbers(
    seed: int, timeout: float, memory: int | None, time_limit: float | None, flush: int
) -> None:
    if not isinstance(seed, int) or not 0 <= seed < WORD:
        raise ExploreError(f"seed: expected a number from 0 on, below 2**63, got {shown(seed)}")
    for name, seconds in (("timeout", timeout), ("time_limit", time_limit)):
        if seconds is not None and (not isinstance(seconds, int | float) or not seconds > 0):
            raise ExploreError(f"{name}: expected a positive number of seconds, got {seconds}")
    for name, size in (("memory", memory), ("flush", flush)):
        if size is not None and (not isinstance(size, int) or size < 0):
            raise ExploreError(f"{name}: expected a number of bytes, got {size}")


def _choose(space: MappingSpace, only: tuple[str, ...]) -> list[Mapping]:
    """The named mappings, or all, or an even selection of a space too large to seed."""
    if only:
        return [space.find(name) for name in only]
    if space.count <= _MOST_MAPPINGS:
        return list(space)
    step = space.count / _MOST_MAPPINGS
    return [space[int(n * step)] for n in range(_MOST_MAPPINGS)]


def _is_host(machine: str | Machine) -> bool:
    return (machine if isinstance(machine, str) else machine.name) == "host"


def _machine(
    machine: str | Machine,
    unit: Intrinsic,
    workers: Executor | None = None,
    implementation: str | None = None,
) -> Machine:
    if isinstance(machine, Machine):
        return machine
    if workers is not None:
        return workers.machine([unit], implementation=implementation)
    return catalogue.get(machine, [unit])


def _measuring(
    machine: str | Machine,
    unit: Intrinsic,
    how: tuple[str | Executor | None, float, int | None, str | None],
    notify: Callable[[str], None] | None,
) -> Executor | None:
    """What measures: workers for the host, a GPU that is described, or nothing.

    Raises:
        ExploreError: the intrinsic came with a later architecture than the machine's.
        MeasureError: there is nothing to measure with, though it was asked for.
    """
    executor, timeout, memory, implementation = how
    if _is_host(machine):
        return open_executor(executor, timeout, memory, unit, implementation)
    found = _machine(machine, unit)
    if 0 < found.architecture < unit.architecture:
        raise ExploreError(
            f"{unit.name} needs sm_{unit.architecture}, and machine {found.name!r} is "
            f"sm_{found.architecture}"
        )
    workers, notice = gpu_executor(executor, found, timeout)
    if notice and notify is not None:
        notify(notice)
    return workers


def _identity(machine: str | Machine) -> Identity:
    """A described machine; of another kind when its figures change."""
    found = machine if isinstance(machine, Machine) else catalogue.get(machine)
    return Identity(found.name, f"figures {digest(machine_values(found))[:8]}", found.cores)
