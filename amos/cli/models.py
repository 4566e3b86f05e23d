"""Options of commands that read ONNX models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from amos.errors import NetworkError

InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="INPUT=SIZES", help="Shape of a dynamic input: input=1,3,224,224."
    ),
]


def read_input_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Read ``--shape``: extents by input."""
    return read_sizes("--shape", "INPUT=SIZES, as input=1,3,224,224", texts)


def read_sizes(
    option: str, expected: str, texts: Sequence[str] | None
) -> dict[str, tuple[int, ...]]:
    """Read an option of whole numbers by name.

    Raises:
        NetworkError: a text is none of that form, or a name is given twice.
    """
    sizes = {}
    for text in texts or ():
        name, _, numbers = text.partition("=")
        if name in sizes:
            raise NetworkError(f"{option} {text!r}: {name!r} is given twice")
        try:
            sizes[name] = tuple(int(size) for size in numbers.split(","))
        except ValueError:
            raise NetworkError(f"{option} {text!r}: expected {expected}") from None
    return sizes
