"""Blocks as plain text, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable

from amos.viz.blocks import (
    Bars,
    Block,
    Code,
    Curve,
    Formula,
    Grid,
    Heading,
    Matrices,
    Matrix,
    Note,
    Table,
)

__all__ = ["cell", "plain"]

_WIDTH = 30


def plain(blocks: Iterable[Block]) -> str:
    """All blocks, one under the other."""
    return "\n".join(_block(block) for block in blocks)


def cell(value: object) -> str:
    """A value as a table shows it."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _block(block: Block) -> str:
    match block:
        case Heading(title, note):
            return f"{title}  {note}" if note else title
        case Note(lines, bad):
            return "\n".join(f"  {'- ' if bad else ''}{line}" for line in lines)
        case Code(text) | Formula(_, text):
            return "\n".join(f"  {line}" for line in text.split("\n"))
        case Matrices(shown):
            return _beside([_matrix(matrix) for matrix in shown])
        case Table(columns, rows, note):
            return _table(columns, rows) + (f"\n  {note}" if note else "")
        case Bars():
            return _bars(block)
        case Curve():
            return _curve(block)
        case Grid(title, shape, axes, _, note):
            by = " x ".join(
                f"{axis}: {size}" for axis, size in zip(axes, shape, strict=True) if axis
            )
            return f"  fragment {title} [{by}]  {note}"


def _matrix(matrix: Matrix) -> list[str]:
    first = max(map(len, matrix.rows), default=0)
    widths = [max(len(name), 2) for name in matrix.columns]
    head = " ".join(f"{n:>{w}}" for n, w in zip(matrix.columns, widths, strict=True))
    lines = [matrix.title, f"{'':{first}} {head}"]
    for r, (name, row) in enumerate(zip(matrix.rows, matrix.values, strict=True)):
        marks = ["!" if (r, c) in matrix.wrong else "" for c in range(len(row))]
        cells = (f"{'1' if v else '.'}{m}" for v, m in zip(row, marks, strict=True))
        text = " ".join(f"{v:>{w}}" for v, w in zip(cells, widths, strict=True))
        lines.append(f"{name:{first}} {text}" + ("  <- idle" if r in matrix.idle else ""))
    return lines


def _beside(columns: list[list[str]]) -> str:
    height = max(map(len, columns))
    widths = [max(map(len, lines)) for lines in columns]
    return "\n".join(
        "  "
        + "    ".join(
            f"{lines[row] if row < len(lines) else '':{width}}"
            for lines, width in zip(columns, widths, strict=True)
        ).rstrip()
        for row in range(height)
    )


def _table(columns: tuple[str, ...], rows: tuple[tuple[object, ...], ...]) -> str:
    texts = [[cell(value) for value in row] for row in rows]
    right = [
        bool(rows) and all(isinstance(row[n], int | float) for row in rows)
        for n in range(len(columns))
    ]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]

    def line(cells: Iterable[str]) -> str:
        parts = (
            f"{text:>{width}}" if end else f"{text:{width}}"
            for text, width, end in zip(cells, widths, right, strict=True)
        )
        return "  " + "  ".join(parts).rstrip()

    return "\n".join([line(columns), line("-" * width for width in widths), *map(line, texts)])


def _bars(bars: Bars) -> str:
    most = max((bar.value for bar in bars.bars), default=0) or 1.0
    first = max((len(bar.name) for bar in bars.bars), default=0)
    lines = [f"  {bars.title}"]
    for bar in bars.bars:
        length = "#" * round(_WIDTH * bar.value / most)
        lines.append(f"    {bar.name:{first}}  {length:{_WIDTH}}  {bar.text}")
    return "\n".join(lines)


def _curve(curve: Curve) -> str:
    """Where each curve goes down: trial and seconds."""
    lines = [f"  {curve.title}"]
    for name, values in curve.lines.items():
        steps = [
            f"{at + 1}: {value:.4g} s"
            for at, value in enumerate(values)
            if math.isfinite(value) and (at == 0 or value < values[at - 1])
        ]
        lines.append(f"    {name}  {', '.join(steps) or 'nothing ran'}")
    return "\n".join(lines)
