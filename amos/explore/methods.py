"""Search methods by name; imported when used, since some libraries take a while."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from amos.explore.method import Search

__all__ = ["METHODS", "method"]


def _later(module: str, name: str) -> Callable[[], type[Search]]:
    def load() -> type[Search]:
        found: type[Search] = getattr(import_module(f"amos.explore.{module}"), name)
        return found

    return load


#: Name → what imports and returns the class.
METHODS: dict[str, Callable[[], type[Search]]] = {
    "ga": _later("genetic", "GeneticSearch"),
    "cga": _later("cga", "Cga"),
    "cga1": _later("cga", "Cga1"),
    "sa": _later("annealing", "Annealing"),
    "random": _later("random_search", "RandomSearch"),
    "ga_plain": _later("constrained_genetic", "Plain"),
    "ga_sr": _later("constrained_genetic", "StochasticRanking"),
    "ga_sat": _later("constrained_genetic", "SatDecoder"),
    "ga_mo": _later("constrained_genetic", "MultiObjective"),
    "exhaustive": _later("exhaustive", "Exhaustive"),
}


def method(name: str) -> type[Search]:
    """The class of a method.

    Raises:
        UnknownNameError: there is no such method.
    """
    from amos.errors import UnknownNameError

    if not isinstance(name, str) or name not in METHODS:
        raise UnknownNameError("search method", name, METHODS)
    return METHODS[name]()
