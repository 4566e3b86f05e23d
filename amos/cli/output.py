"""What commands print: JSON, plain lines, tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "print_json", "print_line", "print_table", "print_warning"]

_WIDTH_OF_A_PIPE = 200


def print_json(value: object) -> None:
    """Print one JSON document on standard output; NumPy scalars become numbers."""
    typer.echo(json.dumps(value, indent=2, default=_plain))


def print_line(text: str = "") -> None:
    """Print text as it is, neither wrapped nor interpreted."""
    typer.echo(text)


def print_warning(text: str) -> None:
    """Print a message of a line or two on standard error."""
    typer.echo(f"amos: {text}", err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table; columns that hold only numbers are set to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    listed = [list(row) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for n, name in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[n], int | float) for row in listed)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*(Text(_cell(value)) for value in row))
    made = console()
    with made.capture() as printed:
        made.print(table)
    for line in printed.get().splitlines():
        typer.echo(line.rstrip())


def console(stderr: bool = False) -> Console:
    """A console as wide as the terminal; wide enough for any row when it is a pipe."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = max(made.width, _WIDTH_OF_A_PIPE)
    return made


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return str(value)


def _plain(value: object) -> object:
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
