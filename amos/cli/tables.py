"""Tables as plain text: no wider than the reader's terminal, and no word broken.

Columns wrap at blanks alone, so that names and numbers stay whole. A table that is still
too wide, or too tall, has its last column below each row; where not even the longest
words fit side by side, each row becomes a list of its columns.
"""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence

_GAP = "  "
#: Lines of a row beyond which its last column goes below.
_TALL = 3
#: Columns of text where neither a terminal nor ``COLUMNS`` sets the width.
_USUAL = 120


def output_width() -> int:
    """Return the output's columns: ``COLUMNS``, those of a standard stream's terminal, or 120."""
    setting = os.environ.get("COLUMNS", "")
    if setting.isdigit() and int(setting) > 0:
        return int(setting)
    for stream in (sys.__stdout__, sys.__stderr__, sys.__stdin__):
        try:
            columns = os.get_terminal_size(stream.fileno()).columns  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):
            continue
        if columns > 0:
            return columns
    return _USUAL


def wrap_text(text: str, width: int) -> list[str]:
    """Wrap text at words to at least one line of ``width`` columns, more for a long word."""
    lines = textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], width: int
) -> list[str]:
    """Lay out a table in at most ``width`` columns; wider only where a single word is.

    Args:
        header: names of the columns.
        rows: their texts, as many in each row.
        right: whether a column is set to the right, as numbers are.
        width: columns of text.

    >>> rows = [("an_intrinsic", "13364")]
    >>> print("\\n".join(table_lines(("name", "us"), rows, (False, True), 40)))
    name             us
    ───────────────────
    an_intrinsic  13364
    >>> print("\\n".join(table_lines(("name", "us"), rows, (False, True), 17)))
    name  an_intrinsic
    us    13364
    """
    lines = [header, *rows]
    widths = _widths(lines, width)
    if widths is not None:
        cells = (cell for row in rows for cell in zip(row, widths, strict=True))
        if max((len(wrap_text(text, size)) for text, size in cells), default=1) <= _TALL:
            return _set(lines, right, widths)
    if len(header) > 2 and not right[-1]:
        before = _widths([line[:-1] for line in lines], width)
        if before is not None:
            return _set(lines, right, before, width)
    return _list_columns(header, rows, width) if widths is None else _set(lines, right, widths)


def _widths(lines: Iterable[Sequence[str]], width: int) -> list[int] | None:
    """Choose column widths; the widest shrinks first. ``None`` if words do not fit."""
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
        max(len(line) for text in column for line in wrap_text(text, size))
        for column, size in zip(columns, widths, strict=True)
    ]


def _set(
    lines: Sequence[Sequence[str]], right: Sequence[bool], widths: Sequence[int], below: int = 0
) -> list[str]:
    """Put columns side by side; with ``below`` columns of text, the last one under them."""
    header, *rows = [_row(line, right, widths, below) for line in lines]
    rule = max(len(line) for row in (header, *rows) for line in row)
    return [*header, "─" * rule, *(line for row in rows for line in row)]


def _row(
    texts: Sequence[str], right: Sequence[bool], widths: Sequence[int], below: int
) -> list[str]:
    cells = [wrap_text(text, size) for text, size in zip(texts, widths, strict=False)]
    lines = []
    for pieces in itertools.zip_longest(*cells, fillvalue=""):
        padded = (
            piece.rjust(size) if is_right else piece.ljust(size)
            for piece, size, is_right in zip(pieces, widths, right, strict=False)
        )
        lines.append(_GAP.join(padded).rstrip())
    if below and texts[-1]:
        lines += [_GAP + line for line in wrap_text(texts[-1], below - len(_GAP))]
    return lines


def _list_columns(header: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> list[str]:
    """List the columns of each row below each other, with an empty line between rows."""
    label = max(map(len, header))
    lines: list[str] = []
    for row in rows:
        lines += [""] if lines else []
        for name, text in zip(header, row, strict=True):
            first, *more = wrap_text(text, width - label - len(_GAP))
            lines.append(f"{name:{label}}{_GAP}{first}".rstrip())
            lines += [" " * label + _GAP + line for line in more]
    return lines
