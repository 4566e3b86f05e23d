"""``--fix``: values that schedule variables must take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

__all__ = ["Fix", "read_fixes"]

Fix = Annotated[
    list[str] | None,
    typer.Option(
        "--fix",
        metavar="NAME=VALUE",
        help="Give a schedule variable a value (tile.p=7, parallel=2); repeat for more. "
        "Dots may be written as underscores.",
    ),
]


def read_fixes(items: Iterable[str] | None) -> tuple[tuple[str, int | str], ...]:
    """Pairs of names and values, in the order given.

    Raises:
        typer.BadParameter: an option is not NAME=VALUE.
    """
    fixes: list[tuple[str, int | str]] = []
    for item in items or ():
        name, sign, value = (part.strip() for part in item.partition("="))
        if not (name and sign and value):
            raise typer.BadParameter(f"{item!r} is not NAME=VALUE", param_hint="--fix")
        try:
            fixes.append((name, int(value)))
        except ValueError:
            fixes.append((name, value))
    return tuple(fixes)
