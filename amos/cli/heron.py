"""``amos reproduce heron-…``: tables and figures of the Heron paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amos.cli.options import AsJson
from amos.cli.output import print_json, print_line, print_table, print_warning

if TYPE_CHECKING:
    from amos.reproduce.heron_fig12 import Fig12

__all__ = ["fig12_command", "table5_command"]


def table5_command(as_json: AsJson = False) -> None:
    """Variables and constraints of schedule spaces on Tensor Core, paper and ours."""
    from amos import reproduce

    rows = reproduce.heron_table5()
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        [
            "operator",
            "paper: variables",
            "constraints",
            "ours: mappings",
            "variables",
            "constraints",
        ]
        + list(rows[0].by_type)
        + ["assignments"],
        [
            [row.code, *row.paper, row.mappings, _range(row.variables), _range(row.constraints)]
            + [*row.by_type.values(), f"{row.size:,}"]
            for row in rows
        ],
        title="Heron, Table 5: the space of an operator on Tensor Core; ours for each mapping",
    )
    print_line(
        "Heron's problem holds the choice of the call's problem size and five stages of data\n"
        "movement; ours starts where a mapping has settled them, once for each mapping."
    )


def fig12_command(
    machine: Annotated[
        str,
        typer.Option(metavar="NAME", help="Scored by the model; 'host' compiles and measures."),
    ] = "a100",
    evaluations: Annotated[int, typer.Option(metavar="N", help="Scores for each run.")] = 300,
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs of each method.")] = 10,
    method: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this method; repeat for more.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the curves of each operator as SVG.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search methods at equal evaluations on GEMM and C2D."""
    from amos import reproduce

    methods = method or list(reproduce.HERON_METHODS)
    found = reproduce.heron_fig12(
        machine, evaluations, seeds, methods, None if as_json else _quiet_progress()
    )
    if picture is not None:
        _draw(found, methods, picture)
    if as_json:
        print_json(asdict(found))
        return
    for operator, best in found.best_known.items():
        print_table(
            ["method", "seeds at 95 %", "evaluations to 95 %", "final / best", "valid share"],
            [_row(found, operator, name, best) for name in methods],
            title=f"{operator} on {found.machine}: best known {best * 1e6:.4g} us, "
            f"{seeds} seeds, {evaluations} evaluations each (medians)",
        )


def _row(found: Fig12, operator: str, name: str, best: float) -> list[object]:
    import math
    import statistics

    runs = found.of(operator, name)
    middle = found.median(operator, name)
    return [
        name,
        f"{found.reached(operator, name)} of {len(runs)}",
        f"{middle:g}" if math.isfinite(middle) else f"> {found.evaluations}",
        statistics.median(best / run.best[-1] for run in runs),
        statistics.fmean(run.valid_share for run in runs),
    ]


def _draw(found: Fig12, methods: list[str], picture: Path) -> None:
    from amos.errors import ExploreError
    from amos.reproduce.picture import curves

    for operator, best in found.best_known.items():
        lines = {name: [run.best for run in found.of(operator, name)] for name in methods}
        path = picture.with_stem(f"{picture.stem}-{operator}")
        try:
            path.write_text(curves(f"{operator} on {found.machine}", lines, best), encoding="utf-8")
        except OSError as error:
            raise ExploreError(f"picture {str(path)!r}: {error}") from error


def _quiet_progress() -> Callable[[str], None] | None:
    import sys

    return print_warning if sys.stderr.isatty() else None


def _range(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}-{pair[1]}"
