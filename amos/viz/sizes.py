"""Figures of sweeps over sizes of an instruction and its machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from amos.errors import ExploreError
from amos.viz.palette import line_colour
from amos.viz.plotting import add_style, graph_objects

if TYPE_CHECKING:
    from amos.explore.sweep import Point

#: Title of each row of bars, the attribute of a point that it shows, and its factor.
_ROWS = (
    ("unit used, %", "utilization", 100),
    ("mappings", "mappings", 1),
    ("predicted ms", "predicted", 1e3),
    ("simulated ms", "simulated", 1e3),
    ("energy, uJ", "energy", 1e6),
)
#: Height of a row, and the share of it that is left free.
_HEIGHT, _GAP = 150, 0.2


def sizes(points: Sequence[Point]) -> Any:
    """Draw bars for each size, one colour an operator, one row a quantity.

    Raises:
        ExploreError: no operator runs under any of the settings.
    """
    rows = [row for row in _ROWS if any(getattr(point, row[1]) for point in points)]
    if not rows:
        raise ExploreError(f"no size to draw: {points[0].reason if points else 'there is none'}")
    figure = graph_objects().Figure()
    add_style(figure, "What each size is worth", height=120 + _HEIGHT * len(rows))
    for number, (title, attribute, factor) in enumerate(rows):
        axis = str(number + 1) if number else ""
        top = 1 - number / len(rows)
        figure.layout[f"yaxis{axis}"] = dict(
            title=title, domain=[top - (1 - _GAP) / len(rows), top], rangemode="tozero"
        )
        for colour, name in enumerate(dict.fromkeys(point.operator for point in points)):
            own = [point for point in points if point.operator == name]
            values = [getattr(point, attribute) for point in own]
            figure.add_bar(
                x=[_label(point) for point in own],
                y=[None if value is None else value * factor for value in values],
                name=name,
                legendgroup=name,
                showlegend=number == 0,
                marker_color=line_colour(colour),
                yaxis=f"y{axis}",
            )
    last = f"y{len(rows)}" if len(rows) > 1 else "y"
    return figure.update_layout(barmode="group", xaxis_anchor=last)


def _label(point: Point) -> str:
    """Format the settings of a point, one a line, by the ends of their paths."""
    pairs = (f"{'.'.join(path.split('.')[-2:])} {value}" for path, value in point.settings.items())
    return "<br>".join(pairs) or "as described"
