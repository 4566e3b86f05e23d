"""Search methods by name; imported when used, since some libraries take a while."""

from __future__ import annotations

from importlib import import_module

from amos.errors import UnknownNameError
from amos.explore.method import Search

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
