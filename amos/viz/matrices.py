"""The matrices of Algorithm 1 as a figure (AMOS, Figure 4)."""

from __future__ import annotations

from typing import Any

import numpy as np

from amos.mapping import Mapping
from amos.validate import Verdict
from amos.viz.drawings import Matrix
from amos.viz.pages import xyz
from amos.viz.palette import INK, MARK, OUTSIDE, ZERO, colour
from amos.viz.plotting import add_style, graph_objects, side_by_side


def matching(judged: Mapping | Verdict) -> Any:
    """Draw X, Y and Z of a mapping side by side, or of a verdict with the cells at fault.

    Args:
        judged: a mapping, or a verdict of :func:`amos.check_matching`.

    Returns:
        A plotly figure of three heat maps. A cell is 0, or the number of its
        intrinsic iteration from 1 on; a one that belongs to none is -1.

    Raises:
        MappingError: the verdict has no pairing.
    """
    shown = xyz(judged).shown
    steps = len(shown[1].rows)
    figure = side_by_side(
        [_heatmap(matrix, steps) for matrix in shown],
        [matrix.title.partition(":")[0] for matrix in shown],
        [len(matrix.columns) for matrix in shown],
    )
    for r, c in sorted(shown[1].wrong):
        edges = dict(x0=c - 0.5, x1=c + 0.5, y0=r - 0.5, y1=r + 0.5)
        figure.add_shape(type="rect", **edges, line=dict(color=MARK, width=3), row=1, col=2)
    pairing = judged.pairing
    assert pairing is not None
    name = str(judged).split(":")[0] if isinstance(judged, Verdict) else judged.name
    what = f"{name}: {pairing.operator.name} on {pairing.intrinsic.name}"
    return add_style(figure, what, height=310)


def _heatmap(matrix: Matrix, groups: int) -> Any:
    """Draw a matrix: zeros without colour, each group in one."""
    ones = [-1 if n is None else n + 1 for n in matrix.colours]
    bands = [OUTSIDE, ZERO, *(colour(n) for n in range(groups))]
    scale = [(edge / len(bands), band) for n, band in enumerate(bands) for edge in (n, n + 1)]
    return graph_objects().Heatmap(
        z=np.where(matrix.values, ones, 0).tolist(),
        x=list(matrix.columns),
        y=[row.partition(" = ")[0] for row in matrix.rows],
        zmin=-1.5,
        zmax=groups + 0.5,
        colorscale=scale,
        showscale=False,
        xgap=2,
        ygap=2,
        text=matrix.values.astype(int).tolist(),
        texttemplate="%{text}",
        textfont_color=INK,
        hovertemplate="%{y}, %{x}: %{text}<extra></extra>",
    )
