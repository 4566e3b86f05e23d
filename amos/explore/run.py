"""One exploration: enumerate, search on the model, measure the promising."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from amos.errors import ExploreError, UnknownNameError
from amos.explore.exploration import Exploration
from amos.explore.method import Method
from amos.explore.objective import Problem, Trial
from amos.explore.records import Records
from amos.intrinsics import Intrinsic
from amos.intrinsics import get as get_intrinsic
from amos.ir import Operator
from amos.mapping import Mapping, MappingSpace, enumerate_mappings
from amos.measure import Runner, host_machine
from amos.perfmodel import Machine, catalogue

__all__ = ["METHODS", "RULES", "explore"]

RULES = ("paper", "access", "gather")
IMPLEMENTATIONS = ("native", "generic")
#: Candidates proposed at a time; the model is corrected between batches.
_BATCH = 8
#: A larger space is searched through this many mappings, spread evenly over it.
_MOST_MAPPINGS = 512
#: Leaders that are measured again at the end, and how many times.
_CONFIRMED, _CONFIRM_REPEAT = 4, 40

Progress = Callable[[Trial, int], None]


def _genetic() -> type[Method]:
    from amos.explore.genetic import GeneticSearch

    return GeneticSearch


def _random() -> type[Method]:
    from amos.explore.random_search import RandomSearch

    return RandomSearch


#: Search methods by name; imported when used, since DEAP takes a while.
METHODS: dict[str, Callable[[], type[Method]]] = {"ga": _genetic, "random": _random}


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
    records: str | Path | None = None,
    timeout: float = 30.0,
    implementation: str | None = None,
    progress: Progress | None = None,
    announce: Callable[[Problem], None] | None = None,
) -> Exploration:
    """Search mapping and schedule for an operator on an intrinsic.

    On the host, candidates are built, verified against NumPy and timed in a
    process of their own; on any other machine the model alone decides.

    Args:
        operator: what to compute.
        intrinsic: the instruction, by name or as a description.
        machine: ``"host"`` or the name of a described machine.
        trials: how many candidates to measure.
        seed: seed of the one random generator that the search draws from.
        method: search method, one of :data:`METHODS`.
        rule: which mappings to search; see :func:`amos.enumerate_mappings`.
        commute: also try the sources in other orders.
        records: file to keep every trial in.
        timeout: seconds that building and timing one candidate may take.
        implementation: ``"native"`` or ``"generic"``; by default native where
            the CPU has the instruction.
        progress: called after each trial with it and the number of trials asked for.
        announce: called once, when every argument has been accepted and before
            the first trial.

    Raises:
        MappingError: the operator cannot use the intrinsic.
        ExploreError: trials, seed or timeout is not a number of the right kind,
            nothing can be searched, or no candidate ran.
        UnknownNameError: no such intrinsic, machine or method.
        RecordError: the record file cannot be written.
    """
    _check_arguments(trials, method, rule, implementation)
    _check_numbers(seed, timeout)
    unit = get_intrinsic(intrinsic) if isinstance(intrinsic, str) else intrinsic
    spaces = {r: enumerate_mappings(operator, unit, rule=r, commute=commute) for r in RULES}
    mappings = _choose(spaces[rule])
    if not mappings:
        counts = ", ".join(f"{r} {space.count}" for r, space in spaces.items())
        raise ExploreError(f"no mapping under rule {rule!r} to search (mappings: {counts})")
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(Records(records)) if records is not None else None
        runner = stack.enter_context(Runner(timeout)) if _is_host(machine) else None
        target = _machine(machine, unit, runner)
        target.peak(unit.name)
        problem = Problem(mappings, target)
        if announce is not None:
            announce(problem)
        search = METHODS[method]()(problem, np.random.default_rng(seed))
        for trial in _trials(problem, search, runner, trials, implementation):
            if kept is not None:
                kept.add(trial, target, method, seed)
            if progress is not None:
                progress(trial, trials)
        if runner is not None:
            _confirm(problem, runner, implementation)
            # The peak that the result is held against, measured in the same run.
            target = host_machine([unit], runner=runner, again=True)
    result = Exploration(
        operator=mappings[0].operator,
        intrinsic=unit,
        machine=target,
        counts={r: space.count for r, space in spaces.items()},
        searched=len(mappings),
        space_size=problem.size,
        method=method,
        seed=seed,
        trials=tuple(problem.trials),
    )
    return replace(result, prediction=problem.predict(result.best.candidate))


def _check_arguments(trials: int, method: str, rule: str, implementation: str | None) -> None:
    if not isinstance(trials, int) or trials < 1:
        raise ExploreError(f"trials: expected a positive number, got {trials}")
    if method not in METHODS:
        raise UnknownNameError("search method", method, METHODS)
    if rule not in RULES:
        raise UnknownNameError("rule", rule, RULES)
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise UnknownNameError("implementation", implementation, IMPLEMENTATIONS)


def _check_numbers(seed: int, timeout: float) -> None:
    if not isinstance(seed, int) or seed < 0:
        raise ExploreError(f"seed: expected a number from 0 on, got {seed}")
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise ExploreError(f"timeout: expected a positive number of seconds, got {timeout}")


def _trials(
    problem: Problem,
    search: Method,
    runner: Runner | None,
    count: int,
    implementation: str | None,
) -> Iterator[Trial]:
    """Ask, measure, tell; ends early if the method has nothing left to propose."""
    while len(problem.trials) < count:
        batch = search.ask(min(_BATCH, count - len(problem.trials)))
        if not batch:
            return
        for candidate in batch:
            measured = None
            if runner is not None:
                measured = runner.measure(candidate, implementation=implementation)
            predicted = float(problem.seconds([candidate])[0])
            trial = Trial(len(problem.trials), candidate, predicted, measured)
            problem.tell(trial)
            yield trial


def _confirm(problem: Problem, runner: Runner, implementation: str | None) -> None:
    """Measure the leaders again, longer: the fastest of many is partly the luckiest.

    Goes on while a trial that was not measured again leads.
    """
    confirmed: set[int] = set()
    for _ in range(2 * _CONFIRMED):
        leaders = problem.best(_CONFIRMED if len(confirmed) < _CONFIRMED else 1)
        waiting = [trial for trial in leaders if trial.number not in confirmed]
        if not waiting:
            return
        trial = waiting[0]
        confirmed.add(trial.number)
        again = runner.measure(
            trial.candidate, repeat=_CONFIRM_REPEAT, implementation=implementation
        )
        # A hang may be the machine's fault; a wrong result or a crash never is.
        if again.ok or again.failure != "timeout":
            problem.trials[trial.number] = replace(trial, measurement=again)


def _choose(space: MappingSpace) -> list[Mapping]:
    """Every mapping, or an even selection of a space too large to seed one by one."""
    if space.count <= _MOST_MAPPINGS:
        return list(space)
    step = space.count / _MOST_MAPPINGS
    return [space[int(n * step)] for n in range(_MOST_MAPPINGS)]


def _is_host(machine: str | Machine) -> bool:
    return (machine if isinstance(machine, str) else machine.name) == "host"


def _machine(machine: str | Machine, unit: Intrinsic, runner: Runner | None) -> Machine:
    if isinstance(machine, Machine):
        return machine
    if machine == "host":
        return host_machine([unit], runner=runner)
    return catalogue.get(machine)
