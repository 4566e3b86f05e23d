"""The plotting library, loaded when a figure is made, and what all figures share."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from amos.errors import RecordError, ToolchainError
from amos.viz.palette import LINES

__all__ = ["axes", "graph_objects", "rows_down", "styled", "write"]

#: Figures are light cards on a page of any kind. Without a ground of its own, the text of a
#: figure would need a colour that has 4.5 to 1 against white and against a dark page, and there
#: is none; and a figure cannot ask its page which of them it is, since front ends are given
#: numbers and draw them by themselves, and take no CSS variable for a colour.
_GROUND, _TEXT, _LINE = "#ffffff", "#3b4048", "#d9dce1"


def graph_objects() -> Any:
    """``plotly.graph_objects``.

    Raises:
        ToolchainError: plotly is not installed.
    """
    try:
        return import_module("plotly.graph_objects")
    except ImportError as error:
        raise ToolchainError("drawing needs plotly: pip install 'amos-mapper[notebook]'") from error


def styled(figure: Any, title: str, height: int = 420) -> Any:
    """The figure with a title, on a light ground.

    How it looks is a template, so that another takes its place as a whole:
    ``figure.update_layout(template="plotly_dark")``.
    """
    axis = dict(gridcolor=_LINE, zerolinecolor=_LINE, linecolor=_LINE)
    style = dict(
        title_font_size=15,
        margin=dict(l=70, r=20, t=60, b=55),
        paper_bgcolor=_GROUND,
        plot_bgcolor=_GROUND,
        font=dict(color=_TEXT, size=12),
        colorway=LINES,
        hoverlabel_font_family="monospace",
        xaxis=axis,
        yaxis=axis,
    )
    figure.layout.template = graph_objects().layout.Template(layout=style)
    figure.update_layout(title_text=title, height=height)
    return figure


def axes(figure: Any, x: str, y: str, *, log_x: bool = False, log_y: bool = False) -> Any:
    """Titles and kinds of both axes."""
    figure.update_xaxes(title_text=x, type="log" if log_x else None)
    figure.update_yaxes(title_text=y, type="log" if log_y else None)
    return figure


def rows_down(figure: Any) -> None:
    """Axes of matrices: the first row on top, and no lines between the cells."""
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    figure.update_xaxes(showgrid=False, zeroline=False)


def write(figure: Any, path: Path) -> None:
    """Write a figure as a web page of its own.

    Raises:
        RecordError: the file cannot be written.
    """
    try:
        path.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{str(path)!r} cannot be written: {error}") from error
