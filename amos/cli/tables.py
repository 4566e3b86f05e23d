"""Tables as plain text: no wider than the reader's terminal, and no word broken.

A column gives way at its blanks alone, so that names and numbers stay whole. What is
still too wide, or too tall, has its last column below each row; and where not even the
longest words fit beside each other, each row becomes a list of its columns.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Table", "table_lines", "wide", "wrapped"]

_GAP = "  "
#: Lines of a row beyond which its last column goes below.
_TALL = 3
#: Columns of text where neither a terminal nor ``COLUMNS`` says how many there are.
_USUAL = 120


@dataclass(frozen=True)
class Table:
    """What is to be laid out.

    Attributes:
        header: names of the columns.
        rows: their texts, as many in each row.
        right: whether a column is set to the right, as numbers are.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]

    @property
    def lines(self) -> tuple[tuple[str, ...], ...]:
        """The header and the rows."""
        return (self.header, *self.rows)


def wide() -> int:
    """Columns of the output: ``COLUMNS``, a terminal among the standard streams, or 120."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    for stream in (sys.__stdout__, sys.__stderr__, sys.__stdin__):
        try:
            columns = os.get_terminal_size(stream.fileno()).columns  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):
            continue
        if columns > 0:
            return columns
    return _USUAL


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns, or of one word that is longer; at least one line."""
    lines = textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def table_lines(table: Table, width: int) -> list[str]:
    """The table in at most ``width`` columns; wider only where a single word is.

    >>> table = Table(("name", "us"), (("an_intrinsic", "13364"),), (False, True))
    >>> print("\\n".join(table_lines(table, 40)))
    name             us
    ───────────────────
    an_intrinsic  13364
    >>> print("\\n".join(table_lines(table, 17)))
    name  an_intrinsic
    us    13364
    """
    beside = _widths(table.lines, width)
    if beside is not None and _tallest(table, beside) <= _TALL:
        return _set(table, beside)
    if len(table.header) > 2 and not table.right[-1]:
        before = _widths([line[:-1] for line in table.lines], width)
        if before is not None:
            return _set(table, before, width)
    return _set(table, beside) if beside is not None else _listed(table, width)


def _widths(lines: Iterable[Sequence[str]], width: int) -> list[int] | None:
    """Columns of text for each column: the widest gives way first; None if words do not fit."""
    columns = list(zip(*lines, strict=True))
    least = [max(len(word) for text in c for word in text.split() or [""]) for c in columns]
    widths = [max(map(len, column)) for column in columns]
    room = width - len(_GAP) * (len(columns) - 1)
    while sum(widths) > room:
        able = [n for n, wish in enumerate(widths) if wish > least[n]]
        if not able:
            return None
        widths[max(able, key=widths.__getitem__)] -= 1
    # A narrower column may break its texts earlier than it has to.
    return [
        max(len(line) for text in column for line in wrapped(text, size))
        for column, size in zip(columns, widths, strict=True)
    ]


def _tallest(table: Table, widths: Sequence[int]) -> int:
    """Lines of the tallest row."""
    return max(
        (len(wrapped(t, w)) for row in table.rows for t, w in zip(row, widths, strict=True)),
        default=1,
    )


def _set(table: Table, widths: Sequence[int], below: int = 0) -> list[str]:
    """Columns beside each other; with ``below`` columns of text for the last one under them."""
    header, *rows = [_row(table, line, widths, below) for line in table.lines]
    rule = max(len(line) for lines in (header, *rows) for line in lines)
    return [*header, "─" * rule, *(line for row in rows for line in row)]


def _row(table: Table, texts: Sequence[str], widths: Sequence[int], below: int) -> list[str]:
    """The lines of one row."""
    cells = [wrapped(text, size) for text, size in zip(texts, widths, strict=False)]
    lines = []
    for number in range(max(map(len, cells))):
        shown = [cell[number] if number < len(cell) else "" for cell in cells]
        padded = (
            text.rjust(size) if right else text.ljust(size)
            for text, size, right in zip(shown, widths, table.right, strict=False)
        )
        lines.append(_GAP.join(padded).rstrip())
    if below and texts[-1]:
        lines += [_GAP + line for line in wrapped(texts[-1], below - len(_GAP))]
    return lines


def _listed(table: Table, width: int) -> list[str]:
    """Each row as a list of its columns, with an empty line between rows."""
    label = max(map(len, table.header))
    lines: list[str] = []
    for row in table.rows:
        lines += [""] if lines else []
        for name, text in zip(table.header, row, strict=True):
            first, *rest = wrapped(text, width - label - len(_GAP))
            lines.append(f"{name:{label}}{_GAP}{first}".rstrip())
            lines += [" " * label + _GAP + line for line in rest]
    return lines
