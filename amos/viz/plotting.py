"""The plotting library, loaded when a figure is made, and what all figures share."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from amos.errors import RecordError, ToolchainError

__all__ = ["axes", "graph_objects", "styled", "write"]

#: Readable on a light and on a dark page.
_TEXT, _LINE = "#7d828a", "rgba(128,128,128,0.28)"


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
    """The figure with a title, on whatever ground the page has."""
    figure.update_layout(
        template="none",
        title=dict(text=title, font_size=15),
        height=height,
        margin=dict(l=70, r=20, t=60, b=55),
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font=dict(color=_TEXT, size=12),
        hoverlabel_font_family="monospace",
    )
    return figure


def axes(figure: Any, x: str, y: str, *, log_x: bool = False, log_y: bool = False) -> Any:
    """Titles and kinds of both axes."""
    style = dict(gridcolor=_LINE, zerolinecolor=_LINE, linecolor=_LINE)
    figure.update_xaxes(title_text=x, type="log" if log_x else None, **style)
    figure.update_yaxes(title_text=y, type="log" if log_y else None, **style)
    return figure


def write(figure: Any, path: Path) -> None:
    """Write a figure as a web page of its own.

    Raises:
        RecordError: the file cannot be written.
    """
    try:
        path.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{str(path)!r} cannot be written: {error}") from error
