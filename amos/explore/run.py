"""One exploration: enumerate, search on the model, measure the most promising candidates."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from amos.errors import UnknownNameError
from amos.explore.contenders import select_intrinsics
from amos.explore.contest import Contest
from amos.explore.exploration import Exploration
from amos.explore.methods import search_of
from amos.explore.objective import Problem
from amos.explore.options import MeasureOptions, SearchOptions, check_run
from amos.explore.progress import Progress, Watch, warn_if_slow
from amos.explore.session import Session
from amos.explore.setting import Setting, select_mappings
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine, catalogue
from amos.measure.executor import Executor, LocalExecutor, open_executor
from amos.plan.target import ExecutorRequest, target_of
from amos.records.store import Records
from amos.validate import RULES


def explore(
    operator: Operator,
    intrinsic: str | Intrinsic | Sequence[str | Intrinsic] | None = None,
    *,
    machine: str | Machine = "host",
    trials: int | None = None,
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
    ``records`` the same call resumes where an earlier one stopped: its measurements on
    a machine of the same kind are taken from the file.

    Args:
        intrinsic: the instruction, by name or as a description; several of them or a family
            compete for the trials, without any all that the machine has (see
            :mod:`amos.explore.contest`).
        machine: ``"host"``, the name of a described machine, or a machine.
        trials: how many candidates to measure, from 1 on; fewer if the space has no more. By
            default 64, and 16 of the listed schedules of ``tiling="few"``.
        seed: seed of the one random generator that the search draws from.
        method: search method, one of :data:`METHODS`.
        rule: which mappings to search; see :func:`amos.enumerate_mappings`.
        records: file to keep every trial in.
        search: how to search: which mappings and schedules, and when to end.
        measure: how to measure: where, and within which limits.
        progress: True for a line that says how far it is, on a terminal and in a notebook;
            False for none; a function is called after each trial instead, with it and the
            requested number of trials.
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
    trials = search.default_trials if trials is None else trials
    check_run(trials, seed, measure)
    _check(method, rule, search)
    alone = _find_single(intrinsic, machine, measure)
    if alone is None:
        search = replace(search, commute=True)
    else:
        select_mappings(operator, alone, rule, search)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    watch = Watch(trials, search.time_limit, progress, records)
    say = watch.wrap_printer(notify)
    with watch.line, contextlib.ExitStack() as stack:
        workers = _open_workers(machine, alone, measure, say)
        if workers is not None:
            stack.enter_context(workers)
        shared = Setting(operator, machine, workers, method, seed, rule, search, measure)
        units = [alone] if alone else shared.units(intrinsic)
        if records is not None:
            shared = replace(shared, store=stack.enter_context(Records(records)))
        contest = shared.contest(units, trials)
        first = contest.entries[0].session
        for line in (*first.log.notices(), *warn_if_slow(first.problem, trials, workers)):
            say(line)
        for entry in contest.entries:
            watch.wrap_printer(announce)(entry.session.problem)
        last = _search(contest, trials, search, watch)
        if shared.store is not None:
            shared.store.check_place()
    here = load if isinstance(workers, LocalExecutor) else 0.0
    return replace(shared.result(contest, last), load=here)


def _check(method: str, rule: str, search: SearchOptions) -> None:
    search_of(method, search)
    if rule not in RULES:
        raise UnknownNameError("rule", rule, RULES)


def _find_single(
    intrinsic: str | Intrinsic | Sequence[str | Intrinsic] | None,
    machine: str | Machine,
    measure: MeasureOptions,
) -> Intrinsic | None:
    """Return the instruction, if only one is requested."""
    if intrinsic is None and _is_remote(measure):
        return None
    units = select_intrinsics(intrinsic, machine)
    return units[0] if len(units) == 1 else None


def _is_remote(measure: MeasureOptions) -> bool:
    """Return whether another CPU than this one measures."""
    return measure.executor not in (None, "local", "gpu", "model")


def _search(contest: Contest, trials: int, search: SearchOptions, watch: Watch) -> Machine:
    """Search, measure the leaders again, and describe the machine as it was meanwhile.

    On an interrupt the error carries a note of the result so far.
    """
    try:
        watch.start()
        for trial in contest.run(trials, search.time_limit, search.stagnation):
            watch.show_trial(trial, contest)
        session = contest.winner.session
        if session.executor is None or session.executor.exact:
            return session.problem.machine
        contest.confirm(watch.show_confirming)
        watch.show_confirmed(contest)
        return _last_machine(contest.winner.session)
    except KeyboardInterrupt as stop:
        for line in watch.describe_interrupt(contest):
            stop.add_note(line)
        raise


def _last_machine(session: Session) -> Machine:
    """Describe the machine as it was during the run."""
    assert session.executor is not None
    last = session.log.machine("finished")
    if last is None or session.measured:
        # The peak that the result is held against, measured in the same run.
        unit, chosen = session.problem.mappings[0].intrinsic, session.implementation
        last = session.executor.machine([unit], again=True, implementation=chosen)
        session.log.finish(last)
    return last


def _open_workers(
    machine: str | Machine,
    unit: Intrinsic | None,
    measure: MeasureOptions,
    notify: Callable[[str], None],
) -> Executor | None:
    """Open the executor: workers for the host, a described GPU's, or none.

    A lone requested instruction must be one that they execute.
    """
    if getattr(machine, "name", machine) == "host":
        return open_executor(
            measure.executor, measure.timeout, measure.memory, unit, measure.implementation
        )
    target = catalogue.get(machine, [unit] if unit else [])
    request = ExecutorRequest(
        target, measure.executor, unit, measure.timeout, measure.memory, notify
    )
    return target_of(target).open_executor(request)
