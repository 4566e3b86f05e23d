"""The grid of a task mapping (Hidet, Figures 11 and 12)."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import prod

import numpy as np

from amos._display import several
from amos.ir.tasks import TaskMapping
from amos.viz.blocks import Block, Heading, Note, align_columns, indent
from amos.viz.palette import colour

#: Rows and columns of a grid that are drawn.
_ROWS, _COLUMNS = 32, 16


def assignment(mapping: TaskMapping) -> list[Block]:
    """Show a task mapping."""
    sizes = " x ".join(map(str, mapping.shape))
    counts = [several(mapping.workers, "worker"), several(mapping.turns, "turn")]
    grid = Assignment(mapping)
    blocks: list[Block] = [Heading(str(mapping)), Note((f"{sizes} tasks, {', '.join(counts)}",))]
    return [*blocks, grid, Note(("Each cell is a task: the worker, and in which of its turns.",))]


@dataclass(frozen=True, eq=False)
class Assignment(Block):
    """The first rows and columns of a grid of tasks; the last index runs along a row."""

    mapping: TaskMapping

    def cells(self) -> np.ndarray:
        """Return worker and turn of each drawn task: int array, rows × columns × 2."""
        mapping = self.mapping
        columns = mapping.shape[-1] if mapping.shape else 1
        weights = [prod(mapping.shape[d + 1 :]) for d in range(len(mapping.shape))]
        table = mapping.table()
        exists = (table < mapping.shape).all(axis=-1)
        places = table[exists] @ np.array(weights, dtype=np.int64)
        cells = np.empty((int(np.prod(mapping.shape)), 2), dtype=np.int64)
        cells[places] = np.argwhere(exists)
        return cells.reshape(-1, columns, 2)[:_ROWS, :_COLUMNS]

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>"
            + "".join(
                f'<td class="o" style="background:{colour(int(worker))}" '
                f'title="worker {worker}, turn {turn}">{worker}:{turn}</td>'
                for worker, turn in row
            )
            + "</tr>"
            for row in self.cells()
        )
        return f'<table class="m"><caption>{escape(self._cut())}</caption>{rows}</table>'

    def __str__(self) -> str:
        rows = [[f"{worker}:{turn}" for worker, turn in row] for row in self.cells()]
        return indent([*align_columns(rows, [True] * len(rows[0])), *filter(None, [self._cut()])])

    def _cut(self) -> str:
        rows, columns = self.cells().shape[:2]
        whole = int(np.prod(self.mapping.shape)) == rows * columns
        return "" if whole else "(its first corner)"
