"""Display of objects in Jupyter: one lazy hook, that all rooms share.

Rooms describe, :mod:`amos.viz` draws. An object that can be shown inherits from
:class:`Shown`, which imports ``amos.viz`` by name only when a front end asks for a
picture, so that no room depends on pictures. Nothing else below ``amos.viz`` may name
it; a test checks that.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def several(count: int, noun: str) -> str:
    """Format a count of things.

    >>> several(1, "task"), several(1200, "task")
    ('1 task', '1,200 tasks')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Shown:
    """An object with a rich display, drawn by :mod:`amos.viz`."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Own the hook, as IPython prefers a class's own ``__repr__`` to what it inherits."""
        super().__init_subclass__(**options)
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        return str(import_module("amos.viz").html(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Complete plain text, for IPython in a terminal."""
        lines = ["…"] if cycle else str(import_module("amos.viz").text(self)).split("\n")
        for number, line in enumerate(lines):
            if number:
                printer.break_()
            printer.text(line)
