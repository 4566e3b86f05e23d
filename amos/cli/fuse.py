"""``amos fuse-check``: whether two operators can be one kernel, and why not."""

from __future__ import annotations

from typing import Annotated

import typer

from amos.cli import options
from amos.cli.output import print_json, print_line

__all__ = ["fuse_check_command"]


def fuse_check_command(
    producer: options.OperatorText,
    consumer: Annotated[
        str,
        typer.Argument(
            metavar="CONSUMER",
            help="Text that reads the producer's output by name: 'z[j,i] = y[i,j] * s[j]'. "
            "'… then relu(acc)' gives it, or the producer, an epilogue.",
        ),
    ],
    extent: options.Extents = None,
    dtype: options.TensorDtypes = None,
    as_json: options.AsJson = False,
) -> None:
    """Say whether two operators can be one kernel, and as what, or why not.

    The status is 0 if they can, else 1. Extents of the consumer are those of the producer for
    iterations of the same names.
    """
    from amos import fusable, operators

    sizes, kinds = options.read_extents(extent), options.read_dtypes(dtype)
    first = producer if "[" in producer else operators.resolve(producer, dtypes=kinds)
    verdict = fusable(first, consumer, sizes, kinds)
    if as_json:
        print_json(
            {
                "fusable": bool(verdict),
                "place": verdict.rule if verdict else "",
                "how": verdict.how,
                "reasons": verdict.reasons,
                "fused": str(verdict.fused) if verdict else "",
            }
        )
    else:
        print_line(str(verdict.fused) if verdict else "not fusable")
        for reason in [f"{verdict.rule}: {verdict.how}"] if verdict else verdict.reasons:
            print_line(f"  - {reason}")
    if not verdict:
        raise typer.Exit(1)
