"""Search methods by name; imported when used, since some libraries take a while."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from amos.errors import ExploreError, UnknownNameError
from amos.explore.method import Search
from amos.explore.objective import Problem
from amos.explore.options import SearchOptions

#: Name → class, by its module.
METHODS: dict[str, str] = {
    "ga": "amos.explore.genetic.GeneticSearch",
    "cga": "amos.explore.cga.Cga",
    "cga1": "amos.reproduce.rivals.Cga1",
    "sa": "amos.explore.annealing.Annealing",
    "random": "amos.explore.random_search.RandomSearch",
    "ga_plain": "amos.reproduce.rivals.Plain",
    "ga_sr": "amos.reproduce.rivals.StochasticRanking",
    "ga_sat": "amos.reproduce.rivals.SatDecoder",
    "ga_mo": "amos.reproduce.rivals.MultiObjective",
    "exhaustive": "amos.explore.exhaustive.Exhaustive",
    "optimal": "amos.explore.optimal.Optimal",
}


def method(name: str) -> type[Search]:
    """Return the class of a search method; raise UnknownNameError if there is no such method."""
    if not isinstance(name, str) or name not in METHODS:
        raise UnknownNameError("search method", name, METHODS)
    module, _, kind = METHODS[name].rpartition(".")
    chosen: type[Search] = getattr(import_module(module), kind)
    return chosen


def search_of(
    name: str, options: SearchOptions
) -> Callable[[Problem, np.random.Generator], Search]:
    """Return a factory of searches by a method, with the method's own options."""
    kind = method(name)
    if options.tiling == "few":
        from amos.explore.few import Few

        kind, name = Few, "tiling few"
    searching: Any = kind
    if options.toolbox:
        if not kind.has_operators:
            raise ExploreError(
                f"toolbox: expected the method 'ga', which has operators, got {name!r}"
            )
        return partial(searching, operators=options.toolbox)
    if kind.proves and options.time_limit is not None:
        return partial(searching, limit_seconds=options.time_limit)
    return kind
