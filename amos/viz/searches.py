"""Figures of searches: progress, distribution of candidates, and predictions against times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from amos._display import several
from amos.errors import ExploreError, quote
from amos.viz.palette import line_colour
from amos.viz.plotting import add_style, graph_objects

if TYPE_CHECKING:
    from amos.explore import Exploration
    from amos.network import Tuning


def progress(runs: Exploration | Mapping[str, Exploration | Sequence[float]]) -> Any:
    """Draw best seconds after each trial, one staircase a method.

    Args:
        runs: an exploration, or several under names of their own; also lists of
            the best seconds so far.
    """
    figure = graph_objects().Figure()
    for name, run in _name_runs(runs).items():
        values = run if isinstance(run, Sequence) else run.history
        figure.add_scatter(
            x=list(range(1, len(values) + 1)),
            y=[value if math.isfinite(value) else None for value in values],
            name=name,
            mode="lines",
            line=dict(shape="hv", width=2),
            hovertemplate=f"{name}: trial %{{x}}, %{{y:.4g}} s<extra></extra>",
        )
    return add_style(figure, "Best candidate so far", x="trials", y="best seconds so far", log="y")


def distribution(runs: Exploration | Mapping[str, Exploration | Sequence[float]]) -> Any:
    """Draw a histogram of the candidates' times (Hidet, Figure 18).

    Args:
        runs: an exploration, or several under names of their own; also lists of
            seconds. Failures are left out.

    Returns:
        A plotly figure with one histogram for each, over microseconds.

    Raises:
        ExploreError: no candidate ran.
    """
    times = {
        name: np.array(run if isinstance(run, Sequence) else [t.seconds for t in run.trials]) * 1e6
        for name, run in _name_runs(runs).items()
    }
    ran = {name: values[np.isfinite(values)] for name, values in times.items()}
    pooled = np.concatenate([[], *ran.values()])
    if not pooled.size:
        raise ExploreError(f"none of the candidates of {', '.join(ran) or 'nothing'} ran")
    # Bins of equal ratio, since candidates differ by orders of magnitude.
    edges = np.geomspace(pooled.min() * 0.999, pooled.max() * 1.001, 41)
    figure = graph_objects().Figure()
    for name, values in ran.items():
        figure.add_bar(
            x=np.sqrt(edges[:-1] * edges[1:]).tolist(),
            y=np.histogram(values, edges)[0].tolist(),
            width=np.diff(edges).tolist(),
            name=f"{name}: {len(values)} of {len(times[name])}",
            opacity=0.7,
        )
    figure.update_layout(barmode="overlay", bargap=0)
    return add_style(
        figure, "Latencies of the candidates", x="microseconds", y="candidates", log="x"
    )


def accuracy(runs: Exploration | Mapping[str, tuple[Any, Any]]) -> Any:
    """Draw predicted against measured seconds, with the share of pairs in the right order.

    Args:
        runs: an exploration that measured, or predicted and measured seconds under
            names of their own, for example ``amos.reproduce.fig5.predictions``.

    Returns:
        A plotly figure with one trace a name (AMOS, Figure 5).

    Raises:
        ExploreError: nothing was measured.
    """
    from amos.perfmodel.accuracy import pairwise

    figure = graph_objects().Figure()
    shares = []
    named = runs if isinstance(runs, Mapping) else {runs.method: _collect_times(runs)}
    for number, (name, pair) in enumerate(named.items()):
        x, y = (np.asarray(seconds, float) for seconds in pair)
        label = name
        if len(x) > 1:
            shares.append(pairwise(x, y))
            label += f"  {shares[-1]:.1%}"
        figure.add_scatter(
            x=x.tolist(),
            y=y.tolist(),
            name=label,
            mode="markers",
            marker=dict(size=5, symbol=number // 8),
        )
    mean = f", {np.mean(shares):.1%} of pairs in the right order" if shares else ""
    what = f"Predicted and measured{mean}"
    return add_style(
        figure, what, x="predicted seconds", y="measured seconds", log="xy", height=480
    )


def allocation(tuning: Tuning) -> Any:
    """Draw trials of a network's tasks over the slices, and its time so far (GTA, Figure 1)."""
    from amos.network import Tuning

    if not isinstance(tuning, Tuning):
        raise ExploreError(f"expected what amos.tune returns, got {quote(tuning)}")
    figure = graph_objects().Figure()
    for number, task in enumerate(tuning.order):
        own = [each for each in tuning.slices if each.task == number]
        figure.add_scatter(
            x=[each.slice for each in own],
            y=[f"{number + 1}: {task.count} x {task.kind}"] * len(own),
            mode="markers",
            showlegend=False,
            marker=dict(symbol="square", size=9, color=line_colour(number)),
            text=[f"{task.operator}<br>{each.best_seconds * 1e3:.4g} ms" for each in own],
            hovertemplate="slice %{x}<br>%{text}<extra></extra>",
        )
    figure.add_scatter(
        x=[each.slice for each in tuning.slices],
        y=[each.network_seconds for each in tuning.slices],
        name="all tasks",
        mode="lines",
        line=dict(shape="hv", width=2),
        yaxis="y2",
    )
    what = f"{tuning.network}: {several(len(tuning.slices), 'slice')} of "
    what += several(len(tuning.tasks), "task")
    right = dict(overlaying="y", side="right", title_text="seconds of all tasks", showgrid=False)
    return add_style(figure, what, x="slices").update_layout(
        showlegend=False, margin_r=80, yaxis=dict(title_text="", automargin=True), yaxis2=right
    )


def _name_runs(runs: Exploration | Mapping[str, Any]) -> Mapping[str, Any]:
    return runs if isinstance(runs, Mapping) else {runs.method: runs}


def _collect_times(run: Exploration) -> tuple[list[float], list[float]]:
    ran = [trial for trial in run.trials if trial.measurement and trial.measurement.ok]
    if not ran:
        raise ExploreError(f"none of {len(run.trials)} candidates was measured")
    return [trial.predicted for trial in ran], [trial.seconds for trial in ran]
