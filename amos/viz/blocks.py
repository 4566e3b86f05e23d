"""What a display is made of; drawn by :mod:`amos.viz.markup`, written by ``plain``.

Text and pictures are made of the same blocks, so that a terminal is told as much
as a browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "Bar",
    "Bars",
    "Block",
    "Code",
    "Curve",
    "Formula",
    "Grid",
    "Heading",
    "Matrices",
    "Matrix",
    "Note",
    "Table",
]


@dataclass(frozen=True)
class Heading:
    """A title and a word on it."""

    title: str
    note: str = ""
    good: bool | None = None


@dataclass(frozen=True)
class Note:
    """Sentences, one a line."""

    lines: tuple[str, ...]
    bad: bool = False


@dataclass(frozen=True)
class Code:
    """Text in which every space counts."""

    text: str


@dataclass(frozen=True)
class Formula:
    """LaTeX, and the same for a terminal."""

    latex: str
    text: str


@dataclass(frozen=True)
class Matrix:
    """A binary matrix.

    Attributes:
        title: what it is.
        rows, columns: their names.
        values: rows × columns.
        colours: colour of each cell, as a number; ``None`` is not coloured.
        wrong: cells at fault.
        idle: rows at fault.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[bool, ...], ...]
    colours: tuple[tuple[int | None, ...], ...]
    wrong: frozenset[tuple[int, int]] = frozenset()
    idle: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Matrices:
    """Matrices side by side."""

    shown: tuple[Matrix, ...]


@dataclass(frozen=True)
class Table:
    """Rows of cells; a browser sorts them by a click on a column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    note: str = ""
    sortable: bool = False


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its length, what is written at its end."""

    name: str
    value: float
    text: str
    colour: int = 0


@dataclass(frozen=True)
class Bars:
    """Bars on one scale."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Curve:
    """Curves over the number of trials; seconds, infinite where there is none yet."""

    title: str
    lines: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Grid:
    """A fragment: its shape, and which lane of registers holds each element.

    Attributes:
        title: the operand.
        shape: rows and columns.
        axes: the intrinsic iterations along them; empty where there is none.
        lanes: rows × columns; empty if software does not know.
        note: bytes and the way it is moved.
    """

    title: str
    shape: tuple[int, int]
    axes: tuple[str, str]
    lanes: tuple[tuple[int, ...], ...] = ()
    note: str = ""


Block = Heading | Note | Code | Formula | Matrices | Table | Bars | Curve | Grid
