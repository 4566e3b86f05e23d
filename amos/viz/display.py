"""Any object that can be shown, as text and as HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amos.viz import pages, results
from amos.viz.blocks import Block, Code, Heading
from amos.viz.markup import markup
from amos.viz.plain import plain

__all__ = ["describe", "html", "text"]

#: By name of the class, so that showing an operator does not load a search.
_PAGES: dict[str, Callable[[Any], list[Block]]] = {
    "Candidate": results.candidate,
    "Exploration": results.exploration,
    "Intrinsic": pages.intrinsic,
    "Kernel": results.kernel,
    "Machine": results.machine,
    "Mapping": pages.mapping,
    "MappingSpace": pages.space,
    "Operator": pages.operator,
    "Prediction": results.prediction,
    "ScheduleSpace": results.schedules,
    "Trial": results.trial,
    "Verdict": pages.verdict,
    "VirtualMapping": pages.placing,
}


def describe(thing: object) -> list[Block]:
    """What is to be said of an object."""
    for kind in type(thing).__mro__:
        if kind.__name__ in _PAGES and kind.__module__.startswith("amos."):
            return _PAGES[kind.__name__](thing)
    return [Heading(type(thing).__name__), Code(str(thing))]


def text(thing: object) -> str:
    """Complete plain text, for a terminal."""
    return plain(describe(thing))


def html(thing: object) -> str:
    """HTML that needs nothing else, for Jupyter and web pages."""
    return markup(describe(thing))
