"""``amos explore``: search mapping and schedule, then compile, check and time the best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from amos.cli.options import (
    AsJson,
    Commute,
    Dtypes,
    Extents,
    IntrinsicName,
    Layout,
    MachineName,
    OperatorText,
    Rule,
    RuleName,
    Shapes,
    read_operator,
)
from amos.cli.output import print_json, print_line

__all__ = ["explore_command"]


def explore_command(
    operator: OperatorText,
    intrinsic: IntrinsicName,
    machine: MachineName = "host",
    trials: Annotated[int, typer.Option(min=1, help="How many candidates to measure.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the random generator.")] = 0,
    method: Annotated[str, typer.Option(metavar="NAME", help="Search method.")] = "ga",
    records: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep what is measured in this file.")
    ] = None,
    rule: Rule = RuleName.access,
    commute: Commute = False,
    extent: Extents = None,
    dtype: Dtypes = None,
    shape: Shapes = None,
    layout: Layout = None,
    as_json: AsJson = False,
) -> None:
    """Search, compile, check and time a kernel."""
    import amos

    op = read_operator(operator, extent, dtype, shape, layout)
    result = amos.explore(
        op,
        intrinsic,
        machine=machine,
        trials=trials,
        seed=seed,
        method=method,
        rule=rule.value,
        commute=commute,
        records=records,
    )
    if as_json:
        print_json(result.to_dict())
        return
    print_line(str(result))
