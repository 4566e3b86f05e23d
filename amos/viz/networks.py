"""Predicted time of a network, by task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amos.errors import NetworkError, quote
from amos.viz.palette import line_colour
from amos.viz.plotting import add_style, graph_objects

if TYPE_CHECKING:
    from amos.network import Report


@dataclass(frozen=True)
class _Bar:
    """A row of a report: ``seconds`` of all occurrences, and their ``bound``."""

    name: str
    seconds: float
    bound: str
    text: str


def report(report: Report) -> Any:
    """Draw predicted times of kernels and of the engine, the longest on top."""
    from amos.network import Report

    if not isinstance(report, Report):
        more = "; draw each of its reports" if hasattr(report, "reports") else ""
        raise NetworkError(f"expected what network.report() returns, got {quote(report)}{more}")
    bars = _bars(report)
    figure = graph_objects().Figure()
    for number, bound in enumerate(sorted({bar.bound for bar in bars})):
        own = [bar for bar in bars if bar.bound == bound]
        figure.add_bar(
            x=[bar.seconds for bar in own],
            y=[bar.name for bar in own],
            name=bound,
            orientation="h",
            marker_color=line_colour(number),
            customdata=[bar.text for bar in own],
            hovertemplate="%{customdata}<br>%{x:.3s}s<extra></extra>",
        )
    names = [bar.name for bar in bars]
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], automargin=True)
    what = f"{report.network} on {report.machine}: predicted {report.summary}"
    return add_style(figure, what, x="seconds of all occurrences", height=160 + 22 * len(bars))


def _bars(report: Report) -> list[_Bar]:
    """List bars, the longest first; a number makes the names of rows distinct."""
    bars = [
        _Bar(
            name=f"{row.count} x {row.kind} ({number})",
            seconds=row.count * (row.seconds or 0.0),
            bound=f"bound by {row.bound}" if row.bound else report.elsewhere,
            text=f"{row.operator}<br>{row.method or row.reason}",
        )
        for number, row in enumerate(report.tasks, 1)
    ]
    bars += [
        _Bar(
            name=f"{row.count} x {row.operation} ({report.elsewhere} {number})",
            seconds=row.seconds or 0.0,
            bound=report.elsewhere,
            text=row.reason,
        )
        for number, row in enumerate(report.engine, 1)
    ]
    return sorted(bars, key=lambda bar: -bar.seconds)
