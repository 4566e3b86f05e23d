"""What searches did: how fast they got there, and among which candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from amos.errors import ExploreError
from amos.viz.palette import line_colour
from amos.viz.plotting import axes, graph_objects, styled

if TYPE_CHECKING:
    from amos.explore import Exploration

__all__ = ["distribution", "progress"]


def progress(found: Exploration | Mapping[str, Exploration | Sequence[float]]) -> Any:
    """Best seconds after each trial, one staircase a method.

    Args:
        found: an exploration, or several under names of their own; also lists of
            the best seconds so far.

    Returns:
        A plotly figure with one trace for each.

    Raises:
        ToolchainError: plotly is not installed.
    """
    named = found if isinstance(found, Mapping) else {found.method: found}
    figure = graph_objects().Figure()
    for number, (name, one) in enumerate(named.items()):
        values = one if isinstance(one, Sequence) else one.history
        figure.add_scatter(
            x=list(range(1, len(values) + 1)),
            y=[value if math.isfinite(value) else None for value in values],
            name=name,
            mode="lines",
            line=dict(shape="hv", color=line_colour(number), width=2),
            hovertemplate=f"{name}: trial %{{x}}, %{{y:.4g}} s<extra></extra>",
        )
    axes(figure, "trials", "best seconds so far", log_y=True)
    return styled(figure, "Best candidate so far")


def distribution(found: Exploration | Mapping[str, Exploration | Sequence[float]]) -> Any:
    """How many candidates are how fast (Hidet, Figure 18).

    Args:
        found: an exploration, or several under names of their own; also lists of
            seconds. Failures are left out.

    Returns:
        A plotly figure with one histogram for each, over microseconds.

    Raises:
        ExploreError: no candidate ran.
        ToolchainError: plotly is not installed.
    """
    named = found if isinstance(found, Mapping) else {found.method: found}
    times = {
        name: [1e6 * value for value in _seconds(one) if math.isfinite(value)]
        for name, one in named.items()
    }
    every = [value for values in times.values() for value in values]
    if not every:
        raise ExploreError(f"none of the candidates of {', '.join(named) or 'nothing'} ran")
    # Bins of equal ratio, since candidates differ by orders of magnitude.
    low, high = math.log10(min(every)), math.log10(max(every))
    width = max((high - low) / 40, 1e-3)
    bins = int((high - low) / width) + 1
    figure = graph_objects().Figure()
    for number, (name, values) in enumerate(times.items()):
        counts = [0] * bins
        for value in values:
            counts[min(bins - 1, int((math.log10(value) - low) / width))] += 1
        figure.add_bar(
            x=[10 ** (low + (n + 0.5) * width) for n in range(bins)],
            y=counts,
            width=[10 ** (low + n * width) * (10**width - 1) for n in range(bins)],
            name=f"{name}: {len(values)} of {len(list(_seconds(named[name])))}",
            marker_color=line_colour(number),
            opacity=0.7,
        )
    figure.update_layout(barmode="overlay", bargap=0)
    axes(figure, "microseconds", "candidates", log_x=True)
    return styled(figure, "Latencies of the candidates")


def _seconds(one: Exploration | Sequence[float]) -> Sequence[float]:
    return one if isinstance(one, Sequence) else [trial.seconds for trial in one.trials]
