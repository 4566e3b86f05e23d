"""Rare options of an exploration: how to search, and how to measure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

from amos.errors import ExploreError, UnknownNameError, quote
from amos.explore.guided import EPSILON
from amos.explore.objective import OBJECTIVES
from amos.explore.retention import check_retain
from amos.ir.limits import WORD
from amos.measure.executor import Executor
from amos.measure.runner import DEFAULT_TIMEOUT
from amos.plan import Value
from amos.schedule import Tiling

#: Operators of the method ``ga`` that a user may exchange.
OPERATORS = ("mate", "mutate", "select")
_IMPLEMENTATIONS = ("native", "generic")
#: Candidates to measure by default, and of listed schedules, which the model has ranked.
_TRIALS, _FEW_TRIALS = 64, 16


@dataclass(frozen=True)
class SearchOptions:
    """Options of the search.

    Attributes:
        commute: also try the sources in other orders.
        only: names of the mappings to search; by default every one of the rule.
        fix: names and values of schedule variables that every candidate has.
        tiling: ``"hardware"``, ``"divisors"`` for register tiles that divide their loops, or
            ``"few"`` for at most 200 listed schedules, whatever the method is.
        stagnation: end after this many trials without progress.
        epsilon: share of random candidates.
        retain: share of the mappings that is searched on; random candidates may have others.
            See :mod:`amos.explore.retention`.
        time_limit: seconds after which no other candidate is begun.
        objective: what is minimized: ``"time"``; ``"time,memory"``, for the fastest kernel at
            each size of its workspace (``front`` of the result); or ``"energy"`` or
            ``"edp"``, energy times time, on a unit that streams drive and whose machine says all
            energies.
        toolbox: functions that replace ``mate``, ``mutate`` or ``select`` of the method ``ga``, by
            name or as a DEAP toolbox. They take and return individuals as DEAP's operators do; an
            individual is a list with the position of each variable's value in its domain
            (:class:`amos.explore.individual.Individual`). The solver makes feasible what they
            return. A parameter ``rng`` gets the search's random generator, ``problem`` what is
            searched; an operator without ``rng`` may draw from :mod:`random`, which is seeded
            for the call.

    Raises:
        ExploreError: a number is not of the right kind, or an operator is no function.
        UnknownNameError: no operator has this name.

    A mutation of one variable, with parents that DEAP itself selects:

    >>> import amos
    >>> from functools import partial
    >>> from deap import tools
    >>> def change_one(individual, rng):
    ...     domains = list(individual.space.variables.values())
    ...     chosen = int(rng.integers(len(domains)))
    ...     individual[chosen] = int(rng.integers(len(domains[chosen])))
    ...     return (individual,)
    >>> operators = {"mutate": change_one, "select": partial(tools.selTournament, tournsize=4)}
    >>> result = amos.explore(
    ...     amos.operators.resolve("resnet18:C5"),
    ...     "vnni_dpbusd_m16k4_u8_s8_s32",
    ...     machine="xeon_4110",
    ...     trials=8,
    ...     search=amos.SearchOptions(toolbox=operators),
    ... )
    >>> list(result.logbook)
    ['intrinsic', 'generation', 'trials', 'evaluations', 'mappings', 'min', 'median', 'max']
    """

    commute: bool = False
    only: tuple[str, ...] = ()
    fix: tuple[tuple[str, Value], ...] = ()
    tiling: Tiling = "hardware"
    stagnation: int | None = None
    epsilon: float = EPSILON
    retain: float = 1.0
    time_limit: float | None = None
    objective: str = "time"
    toolbox: Mapping[str, Callable[..., Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "toolbox", _operators(self.toolbox))
        object.__setattr__(self, "only", tuple(self.only))
        object.__setattr__(self, "fix", tuple(self.fix))
        if self.stagnation is not None:
            check_count("stagnation", self.stagnation)
        if not isinstance(self.epsilon, int | float) or not 0 <= self.epsilon <= 1:
            raise ExploreError(f"epsilon: expected a share from 0 to 1, got {self.epsilon}")
        check_retain(self.retain)
        if self.tiling not in get_args(Tiling):
            raise UnknownNameError("tiling", self.tiling, get_args(Tiling))
        if self.objective not in OBJECTIVES:
            raise UnknownNameError("objective", self.objective, OBJECTIVES)
        _check_seconds("time_limit", self.time_limit)

    @property
    def default_trials(self) -> int:
        """Number of candidates that a search measures by default."""
        return _FEW_TRIALS if self.tiling == "few" else _TRIALS

    def to_record(self) -> dict[str, object]:
        """Return the options that decide which candidates a run proposes, without defaults."""
        choices = {"fix": self.fix, "only": self.only}
        # Pairs of a tuple are lists in JSON; the digest of a run is that of its JSON.
        options = {name: json.loads(json.dumps(x)) for name, x in choices.items() if x}
        if self.tiling != "hardware":
            options["tiling"] = self.tiling
        if self.epsilon != EPSILON:
            options["epsilon"] = self.epsilon
        if self.retain != 1:
            options["retain"] = self.retain
        if self.objective != "time":
            options["objective"] = self.objective
        if self.toolbox:
            options["toolbox"] = {name: _spell(self.toolbox[name]) for name in sorted(self.toolbox)}
        return {"commute": self.commute} | options


@dataclass(frozen=True)
class MeasureOptions:
    """Options of measurement.

    Attributes:
        executor: where to measure: ``"tcp://HOST:PORT"`` of a Dask scheduler,
            ``"rpc://HOST:PORT/KEY"`` of a board, or an executor; by default this machine.
            Then ``"host"`` means its workers. For a described GPU ``"gpu"`` or
            ``"model"``; by default the GPU of this machine if it is of that architecture.
        implementation: ``"native"`` or ``"generic"``; by default native where
            the CPU has the instruction.
        timeout: seconds that one candidate may take; more if it is slow by the model.
        memory: bytes for it, its inputs and NumPy's reference; by default half of all.
        flush: bytes of cache to overwrite before each timing.

    Raises:
        ExploreError: a number is not of the right kind.
        UnknownNameError: there is no such implementation.
    """

    executor: str | Executor | None = None
    implementation: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    memory: int | None = None
    flush: int = 0

    def __post_init__(self) -> None:
        if self.implementation not in (None, *_IMPLEMENTATIONS):
            raise UnknownNameError("implementation", self.implementation, _IMPLEMENTATIONS)
        _check_seconds("timeout", self.timeout)
        for name, size in (("memory", self.memory), ("flush", self.flush)):
            if size is not None and (not isinstance(size, int) or size < 0):
                raise ExploreError(f"{name}: expected a number of bytes, got {size}")

    def to_record(self) -> dict[str, object]:
        """Return the options of measurement for records: all but where it was measured."""
        names = ("implementation", "timeout", "memory", "flush")
        return {name: getattr(self, name) for name in names}


def check_count(name: str, count: object) -> None:
    """Raise ExploreError unless a number of trials is a whole number from 1 on."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ExploreError(f"{name}: expected a whole number from 1 on, got {quote(count)}")


def check_run(trials: object, seed: object, measure: object) -> None:
    """Raise ExploreError for trials, seeds or options of measurement that no run can start with."""
    check_count("trials", trials)
    if not isinstance(seed, int) or not 0 <= seed < WORD:
        raise ExploreError(f"seed: expected a number from 0 on, below 2**63, got {quote(seed)}")
    if not isinstance(measure, MeasureOptions):
        raise ExploreError(f"measure: expected amos.MeasureOptions, got {quote(measure)}")


def _check_seconds(name: str, seconds: object) -> None:
    if seconds is not None and (not isinstance(seconds, int | float) or not seconds > 0):
        raise ExploreError(f"{name}: expected a positive number of seconds, got {seconds}")


def _operators(toolbox: object) -> dict[str, Callable[..., Any]]:
    """Return operators by name, from a mapping of them or from a DEAP toolbox."""
    if isinstance(toolbox, Mapping):
        operators = dict(toolbox)
    elif hasattr(toolbox, "register"):
        # Every toolbox of DEAP has two functions from the start.
        operators = {k: x for k, x in vars(toolbox).items() if k not in ("clone", "map")}
    else:
        raise ExploreError(f"toolbox: expected operators by name, got {quote(toolbox)}")
    for name, function in operators.items():
        if name not in OPERATORS:
            raise UnknownNameError("operator of the method 'ga'", name, OPERATORS)
        if not callable(function):
            raise ExploreError(f"toolbox: {name}: expected a function, got {quote(function)}")
    return operators


def _spell(function: Callable[..., Any]) -> str:
    """Name a function for records, the same in every process."""
    if isinstance(function, partial):
        bound = [*map(quote, function.args), *(f"{k}={x!r}" for k, x in function.keywords.items())]
        return f"{_spell(function.func)}({', '.join(bound)})"
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}.{kind.__qualname__}"
