"""Figure of a network on a unit over time."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from amos.errors import NetworkError
from amos.viz.palette import line_colour
from amos.viz.plotting import add_style, graph_objects

if TYPE_CHECKING:
    from amos.streams.networks import UnitNetwork


def timeline(compiled: UnitNetwork) -> Any:
    """Draw shares of the unit's peak and of its port to DRAM, layer after layer.

    Returns:
        A plotly figure; the width of a bar is the time of its layer. The host's time is left out.
    """
    runs = compiled.runs
    if not runs:
        raise NetworkError("nothing to draw: the unit computes no layer")
    widths = [run.seconds * 1e3 for run in runs]
    starts = [end - width for end, width in zip(accumulate(widths), widths, strict=True)]
    hover = [
        f"{run.name}: {run.operator}<br>{run.cycles:,} cycles, {run.moved_bytes / 1024:,.0f} KiB"
        for run in runs
    ]
    figure = graph_objects().Figure()
    shares = {
        "of the peak": [run.utilization for run in runs],
        "of the port to DRAM": [run.transfer_share for run in runs],
    }
    for number, (name, values) in enumerate(shares.items()):
        figure.add_bar(
            x=starts,
            y=values,
            width=widths,
            offset=0,
            name=name,
            hovertext=hover,
            marker_color=line_colour(number),
            opacity=0.6,
        )
    figure.update_layout(barmode="overlay")
    figure.update_yaxes(range=[0, 1.05], tickformat=".0%")
    title = f"{compiled.network.name} on {compiled.machine.name}: {compiled.seconds * 1e3:.4g} ms"
    return add_style(figure, title, x="ms", y="share")
