"""Blocks that are drawn: matrices, bars, curves and fragments."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import zip_longest

import numpy as np

from amos.viz.blocks import Block, align_columns, indent
from amos.viz.palette import colour, line_colour

#: Columns of the longest bar in a terminal.
_BAR = 30
#: Cells of a fragment that are drawn along one side.
_CELLS = 32
#: Size of a curve.
_WIDTH, _HEIGHT = 420, 150
#: Characters of a plot of points in a terminal.
_COLUMNS, _ROWS = 60, 9


@dataclass(frozen=True, eq=False)
class Matrix:
    """A binary matrix.

    Attributes:
        values: bool, rows × columns.
        colours: for each column the colour of its ones, as a number; ``None`` for none.
        wrong: cells at fault.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    colours: tuple[int | None, ...]
    wrong: frozenset[tuple[int, int]] = frozenset()
    idle: frozenset[int] = frozenset()

    def _repr_html_(self) -> str:
        rows = []
        for r, (name, values) in enumerate(zip(self.rows, self.values, strict=True)):
            cells = "".join(self._html_cell(r, c, cell) for c, cell in enumerate(values))
            mark = ' class="idle"' if r in self.idle else ""
            rows.append(f"<tr{mark}><th>{escape(name)}</th>{cells}</tr>")
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        return (
            f'<table class="m"><caption>{escape(self.title)}</caption>'
            f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        )

    def _html_cell(self, r: int, c: int, is_set: bool) -> str:
        kinds, paint, number = [], "", self.colours[c]
        if is_set and number is not None:
            kinds, paint = ["o"], f' style="background:{colour(number)}"'
        if (r, c) in self.wrong:
            kinds.append("x")
        return f'<td class="{" ".join(kinds)}"{paint}>{int(is_set)}</td>'

    def lines(self) -> list[str]:
        """Print ones and dots, with marks at wrong cells."""
        rows = [["", *self.columns, ""]]
        for r, (name, values) in enumerate(zip(self.rows, self.values, strict=True)):
            ones = ("1" if cell else "." for cell in values)
            cells = (cell + "!" * ((r, c) in self.wrong) for c, cell in enumerate(ones))
            rows.append([name, *cells, " <- idle" if r in self.idle else ""])
        right = [False, *(True for _ in self.columns), False]
        return [self.title, *align_columns(rows, right, gap=" ")]


@dataclass(frozen=True)
class Matrices(Block):
    """Matrices side by side."""

    shown: tuple[Matrix, ...]

    def _repr_html_(self) -> str:
        return f'<div class="side">{"".join(matrix._repr_html_() for matrix in self.shown)}</div>'

    def __str__(self) -> str:
        rows = zip_longest(*(matrix.lines() for matrix in self.shown), fillvalue="")
        return indent(align_columns(list(rows), gap="    "))


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its length, and the text at its end."""

    name: str
    value: float
    text: str
    colour: int


@dataclass(frozen=True)
class Bars(Block):
    """Bars on one scale."""

    title: str
    bars: tuple[Bar, ...]

    @property
    def _most(self) -> float:
        return max(bar.value for bar in self.bars) or 1.0

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th>{escape(bar.name)}</th><td style="width:240px"><div class="bar" '
            f'style="width:{100 * bar.value / self._most:.2f}%;background:{colour(bar.colour)}">'
            f"</div></td><td>{escape(bar.text)}</td></tr>"
            for bar in self.bars
        )
        return f"<table><caption>{escape(self.title)}</caption>{rows}</table>"

    def __str__(self) -> str:
        bars = [(b.name, "#" * round(_BAR * b.value / self._most), b.text) for b in self.bars]
        return indent([self.title, *(f"  {line}" for line in align_columns(bars))])


@dataclass(frozen=True)
class Curve(Block):
    """The best seconds after each trial, infinite where there are none yet."""

    title: str
    seconds: tuple[float, ...]

    def _repr_html_(self) -> str:
        """Draw a staircase over a logarithmic scale: a best so far stays until it falls."""
        values = np.array(self.seconds)
        reached = np.flatnonzero(np.isfinite(values))
        if not reached.size:
            return f'<div class="note">{escape(self.title)}: nothing ran</div>'
        x = np.linspace(56, _WIDTH - 10, len(values))[reached]
        logs, low = np.log(values[reached]), _HEIGHT - 24
        y = low - (logs - logs[-1]) / (np.ptp(logs) or 1) * (low - 16)
        steps = (f"H{right:.1f}V{down:.1f}" for right, down in zip(x[1:], y[1:], strict=True))
        return (
            f'<div><div class="note">{escape(self.title)}</div><svg role="img" '
            f'aria-label="{escape(self.title)}" width="{_WIDTH}" height="{_HEIGHT}" '
            f'font-size="11" fill="currentColor"><path d="M{x[0]:.1f} {y[0]:.1f}{"".join(steps)}" '
            f'fill="none" stroke="{line_colour(0)}" stroke-width="2"/>'
            f'<text x="0" y="16">{values[reached[0]]:.3g} s</text>'
            f'<text x="0" y="{_HEIGHT - 20}">{values[-1]:.3g} s</text>'
            f'<text x="56" y="{_HEIGHT - 4}">trial 1 to {len(values)}</text></svg></div>'
        )

    def __str__(self) -> str:
        """Print the steps of the curve: trial and seconds."""
        before = (float("inf"), *self.seconds)
        steps = [
            f"{number}: {now:.4g} s"
            for number, (last, now) in enumerate(zip(before, self.seconds, strict=False), 1)
            if now < last
        ]
        return indent([self.title, f"  {', '.join(steps) or 'nothing ran'}"])


@dataclass(frozen=True)
class Points(Block):
    """Numbered points over two axes that begin at 0, and a limit of the vertical one.

    Attributes:
        x: name of the horizontal axis, with its unit.
        points: along both axes; number 1 is the first.
        limit: of the vertical axis.
        marked: index of the point that stands out.
    """

    title: str
    x: str
    points: tuple[tuple[float, float], ...]
    limit: float
    marked: int

    @property
    def _scaled(self) -> np.ndarray:
        """Both coordinates between 0 and 1, those of the limit last."""
        values = np.array([*self.points, (0.0, self.limit)])
        largest = values.max(0, initial=1e-30, where=np.isfinite(values))
        return np.asarray(values / (1.1 * largest))

    def _repr_html_(self) -> str:
        origin, low = 46, _HEIGHT - 24
        scaled = self._scaled * (_WIDTH - origin, low - 8)
        *dots, (_, height) = zip(origin + scaled[:, 0], low - scaled[:, 1], strict=True)
        circles = "".join(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if n == self.marked else 3}" '
            f'fill="{line_colour(int(n == self.marked))}"/>'
            f'<text x="{x - 3:.1f}" y="{y - 7:.1f}">{n + 1}</text>'
            for n, (x, y) in enumerate(dots)
            if np.isfinite(y)
        )
        return (
            f'<div><div class="note">{escape(self.title)}</div><svg role="img" '
            f'aria-label="{escape(self.title)}" width="{_WIDTH}" height="{_HEIGHT}" '
            f'font-size="11" fill="currentColor"><path d="M{origin} 4V{low}H{_WIDTH}" fill="none" '
            f'stroke="#8888"/><path d="M{origin} {height:.1f}H{_WIDTH}" stroke="#8888" '
            f'stroke-dasharray="5"/>{circles}<text x="0" y="{height + 4:.1f}">{self.limit:.3g}'
            f'</text><text x="{origin}" y="{_HEIGHT - 6}">0</text><text x="{_WIDTH}" '
            f'y="{_HEIGHT - 6}" text-anchor="end">{escape(self.x)}</text></svg></div>'
        )

    def __str__(self) -> str:
        columns, rows = _COLUMNS, _ROWS
        *places, limit = np.nan_to_num(self._scaled * (columns - 1, rows - 1), posinf=rows)
        grid = [[" "] * columns for _ in range(rows)]
        grid[round(limit[1])] = ["-", " "] * (columns // 2)
        for n, (x, y) in enumerate(places):
            if y < rows:
                grid[round(y)][round(x)] = str(n + 1)
        labels = {round(limit[1]): f"{self.limit:.3g}", 0: "0"}
        width = max(map(len, labels.values()))
        lines = [
            f"{labels.get(y, ''):>{width}} |{''.join(grid[y])}".rstrip()
            for y in reversed(range(rows))
        ]
        below = f"{' ' * width} +{'-' * columns} {self.x}"
        return indent([self.title, *lines, below])


@dataclass(frozen=True, eq=False)
class Grid(Block):
    """A fragment: its shape, and which lane of registers holds each element.

    Attributes:
        axes: the intrinsic iterations along them, with their extents.
        lanes: int, rows × columns; ``None`` if software does not know.
        note: bytes and the way it is moved.
    """

    title: str
    shape: tuple[int, int]
    axes: str
    lanes: np.ndarray | None
    note: str

    def _repr_html_(self) -> str:
        """Draw elements in the colours of their lanes; in one colour if lanes are unknown."""
        rows, columns = (min(size, _CELLS) for size in self.shape)
        size = max(5, min(14, 200 // max(rows, columns)))
        width, height = columns * size, rows * size
        if self.lanes is None:
            cells = f'<rect width="{width}" height="{height}" fill="{colour(7)}"/>'
        else:
            cells = "".join(
                f'<rect x="{c * size}" y="{r * size}" width="{size}" height="{size}" '
                f'fill="{colour(lane)}"><title>lane {lane}</title></rect>'
                for (r, c), lane in np.ndenumerate(self.lanes[:rows, :columns])
            )
        lines = "".join(f"M{x} 0V{height}" for x in range(0, width + 1, size))
        lines += "".join(f"M0 {y}H{width}" for y in range(0, height + 1, size))
        cut = " (its first corner)" if self.shape != (rows, columns) else ""
        return (
            '<div style="display:inline-block;margin-right:18px;vertical-align:top">'
            f"<div><b>{escape(self.title)}</b> {escape(self.axes)}{cut}</div>"
            f'<svg role="img" aria-label="fragment {escape(self.title)}" width="{width}" '
            f'height="{height}">{cells}<path d="{lines}" stroke="#8888" fill="none"/></svg>'
            f'<div class="note">{escape(self.note)}</div></div>'
        )

    def __str__(self) -> str:
        return indent([f"fragment {self.title} [{self.axes}]  {self.note}"])
