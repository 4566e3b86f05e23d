"""Blocks as HTML that needs nothing else: no library, no network, light or dark."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from html import escape

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
from amos.viz.palette import BAD, INK, MARK, colour, line_colour
from amos.viz.plain import cell

__all__ = ["markup"]

#: Cells of a fragment that are drawn along one side.
_CELLS = 32
_WIDTH, _HEIGHT = 420, 150

_STYLE = f"""<style>
.amos {{ font-size: 13px; line-height: 1.45; color: inherit; }}
.amos pre, .amos code {{ font-size: 12px; white-space: pre-wrap; margin: 2px 0;
  background: none; color: inherit; }}
.amos h4 {{ margin: 4px 0; font-size: 14px; }}
.amos .side {{ display: flex; flex-wrap: wrap; gap: 18px; align-items: flex-start; margin: 6px 0; }}
.amos table {{ border-collapse: collapse; margin: 4px 0; width: auto; }}
.amos caption {{ text-align: left; opacity: .75; caption-side: top; padding: 0; }}
/* An outline, since VS Code takes the borders of all tables away. */
.amos th, .amos td {{ border: none; outline: 1px solid #8886; outline-offset: -.5px;
  padding: 2px 7px; text-align: left; background: none; color: inherit; }}
.amos th {{ font-weight: 600; }}
.amos td.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
.amos table.m td {{ text-align: center; min-width: 1.3em; }}
.amos table.m td.o {{ color: {INK}; font-weight: 600; }}
.amos td.x {{ outline: 3px solid {MARK}; outline-offset: -3px; }}
.amos tr.idle th {{ box-shadow: inset 4px 0 {BAD}; }}
/* 4.5 to 1 on either ground; no one colour has that on both. */
.amos .good {{ color: #1f7a4a; }} .amos .bad {{ color: #c62f36; }}
body[data-jp-theme-light="false"] .amos .good, body.vscode-dark .amos .good {{ color: #5fd39b; }}
body[data-jp-theme-light="false"] .amos .bad, body.vscode-dark .amos .bad {{ color: #ff7b80; }}
body.vscode-high-contrast:not(.vscode-high-contrast-light) .amos :is(.good, .bad) {{
  color: inherit; }}
.amos table.s th {{ cursor: pointer; }} .amos .scroll {{ max-height: 420px; overflow: auto; }}
.amos .bar {{ height: 11px; min-width: 1px; }} .amos .note {{ opacity: .75; }}
</style>"""

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


def markup(blocks: Iterable[Block]) -> str:
    """All blocks in one ``<div>``."""
    return f'{_STYLE}<div class="amos">{"".join(map(_block, blocks))}</div>'


def _block(block: Block) -> str:
    match block:
        case Heading(title, note, good):
            kind = "" if good is None else ("good" if good else "bad")
            return (
                f'<h4 class="{kind}">{escape(title)} <span class="note">{escape(note)}</span></h4>'
            )
        case Note(lines, bad):
            kind = "bad" if bad else "note"
            return "".join(f'<div class="{kind}">{escape(line)}</div>' for line in lines)
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Formula(latex, text):
            # Not every front end sets LaTeX that stands in HTML: VS Code does not.
            return (
                f"<div>$$ {escape(latex)} $$</div>"
                f"<details><summary>as text</summary><pre>{escape(text)}</pre></details>"
            )
        case Matrices(shown):
            return f'<div class="side">{"".join(map(_matrix, shown))}</div>'
        case Table():
            return _table(block)
        case Bars():
            return _bars(block)
        case Curve():
            return _curve(block)
        case Grid():
            return _grid(block)


def _matrix(matrix: Matrix) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in matrix.columns)
    rows = []
    for r, name in enumerate(matrix.rows):
        cells = []
        for c, value in enumerate(matrix.values[r]):
            number = matrix.colours[r][c]
            paint = f' style="background:{colour(number)}"' if number is not None else ""
            kinds = ("o " if number is not None else "") + ("x" if (r, c) in matrix.wrong else "")
            cells.append(f'<td class="{kinds.strip()}"{paint}>{int(value)}</td>')
        mark = ' class="idle"' if r in matrix.idle else ""
        rows.append(f"<tr{mark}><th>{escape(name)}</th>{''.join(cells)}</tr>")
    return (
        f'<table class="m"><caption>{escape(matrix.title)}</caption>'
        f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    # A name of its own that stays the same from run to run.
    name = hashlib.sha256((head + rows).encode()).hexdigest()[:12]
    made = (
        f'<div class="scroll"><table data-amos="{name}" class="{"s" if table.sortable else ""}">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    note = f'<div class="note">{escape(table.note)}</div>' if table.note else ""
    return made + note + (_SORT % name if table.sortable else "")


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="n" data-v="{value:.12f}">{escape(cell(value))}</td>'
    return f"<td>{escape(cell(value))}</td>"


def _bars(bars: Bars) -> str:
    most = max((bar.value for bar in bars.bars), default=0) or 1.0
    rows = "".join(
        f'<tr><th>{escape(bar.name)}</th><td style="width:240px"><div class="bar" '
        f'style="width:{100 * bar.value / most:.2f}%;background:{colour(bar.colour)}"></div></td>'
        f"<td>{escape(bar.text)}</td></tr>"
        for bar in bars.bars
    )
    return f"<table><caption>{escape(bars.title)}</caption>{rows}</table>"


def _curve(curve: Curve) -> str:
    """Seconds on a logarithmic scale, over trials."""
    finite = [v for line in curve.lines.values() for v in line if math.isfinite(v) and v > 0]
    if not finite:
        return f'<div class="note">{escape(curve.title)}: nothing ran</div>'
    low, high = math.log(min(finite)), math.log(max(finite))
    count = max(map(len, curve.lines.values()))

    def point(at: int, value: float) -> str:
        x = 56 + (_WIDTH - 66) * at / max(1, count - 1)
        share = (math.log(value) - low) / (high - low) if high > low else 0.5
        return f"{x:.1f} {_HEIGHT - 24 - share * (_HEIGHT - 40):.1f}"

    parts = []
    for number, line in enumerate(curve.lines.values()):
        path, before = "", ""
        for at, value in enumerate(line):
            if math.isfinite(value):
                here = point(at, value)
                # A best-so-far stays until it falls: a staircase.
                path += f"M{here}" if not before else f"H{here.split()[0]}L{here}"
                before = here
        parts.append(
            f'<path d="{path}" fill="none" stroke="{line_colour(number)}" stroke-width="2"/>'
        )
    for text, y in ((f"{max(finite):.3g} s", 16), (f"{min(finite):.3g} s", _HEIGHT - 20)):
        parts.append(f'<text x="0" y="{y}">{text}</text>')
    parts.append(f'<text x="56" y="{_HEIGHT - 4}">trial 1 to {count}</text>')
    return (
        f'<div><div class="note">{escape(curve.title)}</div><svg role="img" '
        f'aria-label="{escape(curve.title)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-size="11" fill="currentColor">{"".join(parts)}</svg></div>'
    )


def _grid(grid: Grid) -> str:
    rows, columns = min(grid.shape[0], _CELLS), min(grid.shape[1], _CELLS)
    size = max(5, min(14, 200 // max(rows, columns)))
    width, height = columns * size, rows * size
    cells = _lanes(grid, rows, columns, size)
    lines = "".join(f"M{c * size} 0V{height}" for c in range(columns + 1))
    lines += "".join(f"M0 {r * size}H{width}" for r in range(rows + 1))
    cells += f'<path d="{lines}" stroke="#8888" fill="none"/>'
    cut = " (its first corner)" if grid.shape > (rows, columns) else ""
    axes = " × ".join(f"{a} {n}" for a, n in zip(grid.axes, grid.shape, strict=True) if a)
    return (
        f'<div style="display:inline-block;margin-right:18px;vertical-align:top">'
        f"<div><b>{escape(grid.title)}</b> {escape(axes)}{cut}</div>"
        f'<svg role="img" aria-label="fragment {escape(grid.title)}" '
        f'width="{width}" height="{height}">{cells}</svg>'
        f'<div class="note">{escape(grid.note)}</div></div>'
    )


def _lanes(grid: Grid, rows: int, columns: int, size: int) -> str:
    """Elements in the colour of their lane; one ground for all if software does not know."""
    if not grid.lanes:
        return f'<rect width="{columns * size}" height="{rows * size}" fill="{colour(7)}"/>'
    return "".join(
        f'<rect x="{c * size}" y="{r * size}" width="{size}" height="{size}" '
        f'fill="{colour(lane)}"><title>lane {lane}</title></rect>'
        for r, row in enumerate(grid.lanes[:rows])
        for c, lane in enumerate(row[:columns])
    )
