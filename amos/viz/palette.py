"""Colours for light and dark pages, and for colour-blind readers."""

from __future__ import annotations

#: After Okabe and Ito; dark text is readable on each of them.
COLOURS = ("#56b4e9", "#f0a830", "#3cc29a", "#d98bb9", "#e8dc4a", "#ef7f3c", "#9aa7ff", "#b3b3b3")
#: The same hues for lines and points, which have no background of their own: 3 to 1 against white
#: and against a dark page, as WCAG requires of graphics.
LINES = ("#1f86c9", "#c07a10", "#0f9470", "#c0609a", "#8f8200", "#d9601a", "#6f7ce8", "#808080")
#: Text on a coloured background.
INK = "#111"
#: Colour of errors, on the page, and around a cell: 3 to 1 against each background.
BAD, MARK = "#e5484d", "#8f0f14"
#: A cell whose ones belong to no group, and a cell of zeros.
OUTSIDE, ZERO = "#b3b3b3", "#eceef1"


def colour(number: int) -> str:
    """Return the colour of a group; they repeat."""
    return COLOURS[number % len(COLOURS)]


def line_colour(number: int) -> str:
    """Return the colour of a line or a point; they repeat."""
    return LINES[number % len(LINES)]
