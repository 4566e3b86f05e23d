"""The matrices of Algorithm 1 as a figure (AMOS, Figure 4)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from amos.errors import MappingError
from amos.viz.blocks import Matrix
from amos.viz.pages import xyz
from amos.viz.palette import INK, MARK, OUTSIDE, ZERO, colour
from amos.viz.plotting import graph_objects, rows_down, styled

if TYPE_CHECKING:
    from amos.mapping import Mapping
    from amos.validate import Verdict

__all__ = ["matching"]


def matching(found: Mapping | Verdict) -> Any:
    """X, Y and Z of a mapping side by side, or of a verdict with the cells at fault.

    Args:
        found: a mapping, or what :func:`amos.check_matching` said.

    Returns:
        A plotly figure of three heat maps. A cell is 0, or the number of its
        intrinsic iteration from 1 on; a one that belongs to none is -1.

    Raises:
        MappingError: the verdict does not say what was judged.
        ToolchainError: plotly is not installed.
    """
    pairing, judged = found.pairing, found.matching
    if pairing is None or judged is None:
        raise MappingError("this verdict was made by hand: it does not say what was judged")
    wrong = getattr(found, "cells", ())
    shown = xyz(pairing, judged, wrong, getattr(found, "rows", ())).shown
    graph_objects()
    widths = [len(matrix.columns) for matrix in shown]
    figure = import_module("plotly.subplots").make_subplots(
        cols=3,
        subplot_titles=[matrix.title.partition(":")[0] for matrix in shown],
        column_widths=[width / sum(widths) for width in widths],
        horizontal_spacing=0.09,
    )
    steps = [it.name for it in pairing.intrinsic.iterations]
    for column, matrix in enumerate(shown, 1):
        figure.add_trace(_heatmap(matrix, len(steps)), row=1, col=column)
        for r, c in sorted(matrix.wrong):
            figure.add_shape(
                type="rect",
                x0=c - 0.5,
                x1=c + 0.5,
                y0=r - 0.5,
                y1=r + 0.5,
                line=dict(color=MARK, width=3),
                row=1,
                col=column,
            )
    rows_down(figure)
    name = getattr(found, "name", str(found).split(":")[0])
    what = f"{name}: {pairing.operator.name} on {pairing.intrinsic.name}"
    return styled(figure, what, height=310)


def _heatmap(matrix: Matrix, groups: int) -> Any:
    """Zeros without colour; each group one."""
    values = [
        [0 if not one else -1 if n is None else n + 1 for one, n in zip(row, paint, strict=True)]
        for row, paint in zip(matrix.values, matrix.colours, strict=True)
    ]
    bands = [OUTSIDE, ZERO, *(colour(n) for n in range(groups))]
    scale = [(edge / len(bands), band) for n, band in enumerate(bands) for edge in (n, n + 1)]
    return graph_objects().Heatmap(
        z=values,
        x=list(matrix.columns),
        y=[row.partition(" = ")[0] for row in matrix.rows],
        zmin=-1.5,
        zmax=groups + 0.5,
        colorscale=scale,
        showscale=False,
        xgap=2,
        ygap=2,
        text=[[str(int(one)) for one in row] for row in matrix.values],
        texttemplate="%{text}",
        textfont_color=INK,
        hovertemplate="%{y}, %{x}: %{text}<extra></extra>",
    )
