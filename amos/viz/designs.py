"""Figure of machines beside one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from amos.errors import NetworkError
from amos.viz.palette import line_colour
from amos.viz.plotting import add_style, graph_objects

if TYPE_CHECKING:
    from amos.network.designs import DesignRow


def designs(rows: Sequence[DesignRow]) -> Any:
    """Draw energy over time of networks on machines with Pareto fronts as a plotly figure."""
    timed = (row for row in rows if row.seconds is not None)
    drawn = [row for row in timed if row.report.energy_joules is not None]
    if not drawn:
        raise NetworkError(
            "nothing to draw: no machine has a time and an energy of a whole network"
        )
    figure = graph_objects().Figure()
    for number, model in enumerate(dict.fromkeys(row.model for row in drawn)):
        own = sorted((row for row in drawn if row.model == model), key=lambda row: row.seconds or 0)
        for front in (True, False):
            points = [row for row in own if row.pareto == front]
            figure.add_scatter(
                x=[(row.seconds or 0.0) * 1e3 for row in points],
                y=[(row.report.energy_joules or 0.0) * 1e3 for row in points],
                text=[row.report.machine for row in points],
                mode="lines+markers+text" if front else "markers+text",
                textposition="top center",
                name=model,
                legendgroup=model,
                showlegend=front,
                line_shape="hv",
                marker=dict(color=line_colour(number), symbol="circle" if front else "x"),
                line_color=line_colour(number),
            )
    return add_style(figure, "Energy against time; lines are Pareto fronts", x="ms", y="mJ")
