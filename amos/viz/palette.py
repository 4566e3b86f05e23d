"""Colours that hold on a light and on a dark page, and for eyes that mix some of them up."""

from __future__ import annotations

__all__ = ["BAD", "COLOURS", "INK", "PALE", "colour"]

#: After Okabe and Ito; dark text is readable on each of them.
COLOURS = ("#56b4e9", "#f0a830", "#3cc29a", "#d98bb9", "#e8dc4a", "#ef7f3c", "#9aa7ff", "#b3b3b3")
#: Text on a coloured ground.
INK = "#111"
#: What is wrong.
BAD = "#e5484d"
#: What is there, but belongs to nothing.
PALE = "#9a9a9a"


def colour(number: int) -> str:
    """The colour of a group; after the last it begins anew."""
    return COLOURS[number % len(COLOURS)]
