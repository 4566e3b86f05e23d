"""The plotting library, loaded when a figure is made, and the common layout of figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from amos.errors import RecordError, ToolchainError
from amos.viz.palette import LINES

#: Figures are light cards on any page. Without a background of its own, the text of a
#: figure would need a colour that has 4.5 to 1 against white and against a dark page, and there
#: is none; and a figure cannot ask its page which of them it is, since front ends are given
#: numbers and draw them by themselves, and take no CSS variable for a colour.
_GROUND, _TEXT, _LINE = "#ffffff", "#3b4048", "#d9dce1"


def graph_objects() -> Any:
    """Import ``plotly.graph_objects``; raise ToolchainError if plotly is not installed."""
    try:
        return import_module("plotly.graph_objects")
    except ImportError as error:
        raise ToolchainError("drawing needs plotly: pip install 'amos-mapper[notebook]'") from error


def side_by_side(
    maps: Iterable[Any], titles: Sequence[str], widths: Sequence[float] | None = None
) -> Any:
    """Draw heat maps of matrices: the first row on top, no lines between the cells."""
    figure = import_module("plotly.subplots").make_subplots(
        cols=len(titles), subplot_titles=titles, column_widths=widths, horizontal_spacing=0.08
    )
    for column, drawn in enumerate(maps, 1):
        figure.add_trace(drawn, row=1, col=column)
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    figure.update_xaxes(showgrid=False, zeroline=False)
    return figure


def add_style(
    figure: Any, title: str, *, x: str = "", y: str = "", log: str = "", height: int = 420
) -> Any:
    """Add titles to a figure, and a light background.

    The style is a template, so that another one replaces it as a whole:
    ``figure.update_layout(template="plotly_dark")``.

    Args:
        log: names of the axes that are logarithmic.
        height: in pixels.
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
    if x or y:
        figure.update_xaxes(title_text=x, type="log" if "x" in log else None)
        figure.update_yaxes(title_text=y, type="log" if "y" in log else None)
    return figure


def write(figure: Any, path: Path, below: str = "") -> None:
    """Write a figure as a web page of its own, with HTML below it, or raise RecordError."""
    page = figure.to_html(include_plotlyjs=True).removesuffix("</html>").rstrip()
    write_page(page.removesuffix("</body>") + below + "</body>\n</html>", path)


def write_page(page: str, path: Path) -> None:
    """Write a web page; raise RecordError if the file cannot be written."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{str(path)!r} cannot be written: {error}") from error
