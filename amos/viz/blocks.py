"""Blocks of a display: each prints itself as HTML and as text for a terminal.

Both are side by side, so that a terminal shows as much as a browser. The HTML needs no
library and no network, and suits light and dark pages.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

#: Sorts a table by the column whose head is clicked, numbers as numbers.
_SORT = """<script>(() => {
  const tables = document.querySelectorAll("table[data-amos='%s']");
  const value = (row, n) => row.cells[n].dataset.v ?? row.cells[n].textContent;
  const sort = (table, head, n) => {
    const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => down * value(a, n).localeCompare(value(b, n), "en", {numeric: true}));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down > 0 ? "ascending" : "descending");
    table.tBodies[0].append(...rows);
  };
  for (const table of tables) [...table.tHead.rows[0].cells].forEach((head, n) => {
    head.tabIndex = 0;
    head.onclick = () => sort(table, head, n);
    head.onkeydown = (event) => { if (event.key === "Enter") sort(table, head, n); };
  });
})();</script>"""


class Block(ABC):
    """A piece of a display, in a browser and in a terminal."""

    @abstractmethod
    def _repr_html_(self) -> str: ...

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Heading(Block):
    """A title and a word on it."""

    title: str
    note: str = ""
    good: bool | None = None

    def _repr_html_(self) -> str:
        kind = {None: "", True: "good", False: "bad"}[self.good]
        note = f'<span class="note">{escape(self.note)}</span>'
        return f'<h4 class="{kind}">{escape(self.title)} {note}</h4>'

    def __str__(self) -> str:
        return f"{self.title}  {self.note}".rstrip()


@dataclass(frozen=True)
class Note(Block):
    """Sentences, one a line."""

    lines: tuple[str, ...]
    bad: bool = False

    def _repr_html_(self) -> str:
        kind = "bad" if self.bad else "note"
        return "".join(f'<div class="{kind}">{escape(line)}</div>' for line in self.lines)

    def __str__(self) -> str:
        return indent(f"- {line}" if self.bad else line for line in self.lines)


@dataclass(frozen=True)
class Code(Block):
    """Text in which every space counts, or LaTeX and the same for a terminal."""

    plain: str
    latex: str = ""

    def _repr_html_(self) -> str:
        # Not every front end sets LaTeX that stands in HTML: VS Code does not.
        plain = f"<pre>{escape(self.plain)}</pre>"
        if not self.latex:
            return plain
        shown = f"<div>$$ {escape(self.latex)} $$</div>"
        return f"{shown}<details><summary>as text</summary>{plain}</details>"

    def __str__(self) -> str:
        return indent(self.plain.split("\n"))


@dataclass(frozen=True)
class Table(Block):
    """Rows of cells; a browser sorts them by a click on a column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    note: str = ""
    sortable: bool = False

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{escape(column)}</th>' for column in self.columns)
        rows = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in self.rows)
        # A unique name, the same in every run.
        name = hashlib.sha256((head + rows).encode()).hexdigest()[:12]
        kind = "s" if self.sortable else ""
        note = f'<div class="note">{escape(self.note)}</div>' if self.note else ""
        return (
            f'<div class="scroll"><table data-amos="{name}" class="{kind}">'
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}"
        ) + (_SORT % name if self.sortable else "")

    def __str__(self) -> str:
        """Print the table with numbers right-aligned."""
        right = [
            bool(self.rows) and all(isinstance(row[n], int | float) for row in self.rows)
            for n in range(len(self.columns))
        ]
        texts = [[_cell(value) for value in row] for row in self.rows]
        dashes = ["-" * max(map(len, column)) for column in zip(self.columns, *texts, strict=True)]
        lines = align_columns([self.columns, dashes, *texts], right)
        return indent([*lines, self.note] if self.note else lines)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _html_cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="n" data-v="{value:.12f}">{escape(_cell(value))}</td>'
    return f"<td>{escape(_cell(value))}</td>"


def align_columns(
    rows: Sequence[Sequence[str]], right: Sequence[bool] = (), gap: str = "  "
) -> list[str]:
    """Align columns, to the left unless ``right`` says otherwise; a line a row."""
    columns = list(zip(*rows, strict=True))
    sides = zip(columns, right or [False] * len(columns), strict=True)
    forms = [f"{'>' if end else '<'}{max(map(len, column))}" for column, end in sides]
    return [gap.join(map(format, row, forms)).rstrip() for row in rows]


def indent(lines: Iterable[str]) -> str:
    """Join lines, indented by two columns."""
    return "\n".join(f"  {line}" for line in lines)
