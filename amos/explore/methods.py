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

#: Name → module of this room, and class.
METHODS: dict[str, str] = {
    "ga": "genetic.GeneticSearch",
    "cga": "cga.Cga",
    "cga1": "cga.Cga1",
    "sa": "annealing.Annealing",
    "random": "random_search.RandomSearch",
    "ga_plain": "constrained_genetic.Plain",
    "ga_sr": "constrained_genetic.StochasticRanking",
    "ga_sat": "constrained_genetic.SatDecoder",
    "ga_mo": "constrained_genetic.MultiObjective",
    "exhaustive": "exhaustive.Exhaustive",
}


def method(name: str) -> type[Search]:
    """The class of a method.

    Raises:
        UnknownNameError: there is no such method.
    """
    if not isinstance(name, str) or name not in METHODS:
        raise UnknownNameError("search method", name, METHODS)
    module, _, kind = METHODS[name].partition(".")
    chosen: type[Search] = getattr(import_module(f"amos.explore.{module}"), kind)
    return chosen


def search_of(
    name: str, options: SearchOptions
) -> Callable[[Problem, np.random.Generator], Search]:
    """A factory of searches by a method, with the method's own options.

    Raises:
        UnknownNameError: there is no such method.
        ExploreError: the method has no operators to exchange.
    """
    kind = method(name)
    if not options.toolbox:
        return kind
    breeding: Any = kind
    if not kind.has_operators:
        raise ExploreError(f"toolbox: expected the method 'ga', which has operators, got {name!r}")
    return partial(breeding, operators=options.toolbox)
