"""``amos reproduce``: tables and figures of the AMOS and Heron papers, reproduced."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amos.cli.options import AsJson, Csv, Rule
from amos.cli.output import (
    counting,
    percent,
    print_json,
    print_line,
    print_table,
    write_data,
    write_rows,
)

if TYPE_CHECKING:
    from amos.reproduce.heron_fig12 import Fig12

app = typer.Typer(
    help="Redo the paper's tables and figures.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("table6")
def table6_command(csv: Csv = None, as_json: AsJson = False) -> None:
    """Number of mappings of each operator on Tensor Core, paper and ours."""
    from amos import reproduce
    from amos.validate import RULES

    rows = reproduce.table6()
    listed = [asdict(row) | {"agrees": row.agrees} for row in rows]
    if write_data(listed, csv, as_json):
        return
    print_table(
        ["operator", "paper", *RULES, "", "form", "statement"],
        [
            [row.code, row.paper, *row.counts.values()]
            + [("=" if row.agrees else "≠") + " (deviates)" * row.deviates]
            + [row.definition, row.statement]
            for row in rows
        ],
        title="AMOS, Table 6: mappings on wmma_m16n16k16_f16_f32",
    )
    for row in rows:
        if row.reason:
            print_line(f"{row.code}, {row.definition}:\n  {row.reason}")
    own = [row for row in rows if not row.deviates]
    print_line(
        f"{sum(row.agrees for row in own)} of {len(own)} forms of the paper's operators have its "
        f"count under rule 'paper'; {len(rows) - len(own)} forms deviate, as their rows say."
    )


@app.command("table5")
def table5_command(rule: Rule = "paper", csv: Csv = None, as_json: AsJson = False) -> None:
    """Show the mapping printed for each layer of ResNet-18, by its name in our space."""
    from amos import reproduce

    rows = reproduce.table5(rule)
    listed = [asdict(row) | {"found": row.is_in_space} for row in rows]
    if write_data(listed, csv, as_json):
        return
    print_table(
        ["layer", "i1", "i2", "r1", "mapping", "index", "of"],
        [[row.layer, *row.printed, row.name, row.index, row.count] for row in rows],
        title="AMOS, Table 5: mappings of ResNet-18, batch 16, NCHW, on wmma_m16n16k16_f16_f32",
    )
    for row in rows:
        if row.reason:
            print_line(f"{row.layer}: {row.reason}")
    names = [row.name for row in rows if row.is_in_space]
    print_line(
        f"{len(names)} of {len(rows)} are in our space under rule {rule!r}, with the paper's "
        f"factors; {len({*names})} are different."
    )


@app.command("accelerators")
def accelerators_command(csv: Csv = None, as_json: AsJson = False) -> None:
    """3-D convolution on AXPY, GEMV and CONV units, by definition of the unit."""
    from amos import reproduce
    from amos.validate import RULES

    rows = reproduce.accelerators()
    listed = [asdict(row) | {"agrees": row.agrees} for row in rows]
    if write_data(listed, csv, as_json):
        return
    print_table(
        ["unit", "paper", *RULES, "", "definition", "statement"],
        [
            [row.unit, row.paper]
            + [
                f"{count}" if count == row.types[rule] else f"{count} ({row.types[rule]})"
                for rule, count in row.counts.items()
            ]
            + [f"= {', '.join(row.agrees)}" if row.agrees else "≠", row.definition, row.intrinsic]
            for row in rows
        ],
        title="AMOS, section 7.5: mappings of 3-D convolution; in brackets, mappings up to "
        "exchanging like iterations of the unit",
    )
    for unit, count in {row.unit: row.paper for row in rows}.items():
        agreeing = [row.definition for row in rows if row.unit == unit and row.agrees]
        print_line(f"{unit} {count}: {'; '.join(agreeing) or 'no definition above'}")


@app.command("heron-table5")
def heron_table5_command(csv: Csv = None, as_json: AsJson = False) -> None:
    """Variables and constraints of schedule spaces on Tensor Core, paper and ours."""
    from amos import reproduce

    rows = reproduce.heron_table5()
    if write_data(rows, csv, as_json):
        return
    print_table(
        ["operator", "paper: variables", "constraints"]
        + ["ours: mappings", "variables", "constraints"],
        [
            [row.code, *row.paper, row.mappings]
            + ["-".join(map(str, sorted(set(pair)))) for pair in (row.variables, row.constraints)]
            for row in rows
        ],
        title="Heron, Table 5: the space of an operator on Tensor Core; ours for each mapping",
    )
    print_table(
        ["operator", *rows[0].by_type, "assignments"],
        [[row.code, *row.by_type.values(), f"{row.size:,}"] for row in rows],
        title="constraints of the largest of our problems by type, and assignments over all",
    )
    print_line(
        "Heron's problem holds the choice of the call's problem size and five stages of data\n"
        "movement; ours starts where a mapping has settled them, once for each mapping."
    )


@app.command("gta-fig8")
def gta_fig8_command(
    seeds: Annotated[int, typer.Option(metavar="N", help="Replays of each network.")] = 9,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """Count the measurements each scheduler of a network's tasks needs, on stored samples."""
    from amos import reproduce

    rows = reproduce.gta_fig8(seeds)
    if write_data(rows, csv, as_json):
        return
    print_table(
        ["network", "samples", "ranked by", "scheduler", "mappings", "within 5%", "within 1%", ""],
        [
            [row.network, row.samples, "model" if row.model else "chance"]
            + [row.scheduler, f"{row.retain:.0%}", *row.medians]
            + [f"{row.within1[0]} to {row.within1[-1]}"]
            for row in rows
        ],
        title=f"GTA, Figure 8: measurements until a network is so fast, median of {seeds} seeds",
    )


@app.command("vta")
def vta_command(
    layer: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this layer; repeat for more.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Candidates of each search.")] = 24,
    drawn: Annotated[int, typer.Option(min=0, help="Candidates to judge the model by.")] = 0,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """ResNet-18 on the simulated VTA: the best of a search beside a plain schedule."""
    from amos.reproduce.vta import LAYERS, vta

    rows = list(vta(layer or LAYERS, trials=trials, drawn=drawn))
    if write_data(rows, csv, as_json):
        return
    print_table(
        ["layer", "best, cycles", "of the peak", "of what bounds it"]
        + ["plain schedule, times as long", "failed", "pairs ranked"],
        [
            [row.layer, f"{row.cycles:,}", f"{row.peak:.1%}", f"{row.bound:.1%}"]
            + [f"{row.plain / row.cycles:.1f}", row.failed, percent(row.ranked)]
            for row in rows
        ],
        title=f"ResNet-18, batch 1, on vta_pynq: the best of {trials} trials",
    )


@app.command("gta-fig10")
def gta_fig10_command(
    budget: Annotated[float, typer.Option(help="Share of the samples to measure.")] = 0.2,
    seeds: Annotated[int, typer.Option(metavar="N", help="Replays of each layer.")] = 10,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a search loses that keeps to a share of the mappings, on stored samples."""
    from amos import reproduce

    rows = reproduce.gta_fig10(budget, seeds=seeds)
    if write_data(rows, csv, as_json):
        return
    print_table(
        ["mappings retained", "best found / best", "worst layer", "", "samples measured"],
        [
            [f"{row.retain:.0%}", f"{row.mean:.1%}", f"{row.worst:.1%}", row.worst_layer]
            + [f"{row.measurements:.1%}"]
            for row in rows
        ],
        title=f"GTA, Figure 10: replay of stored samples, mean of {seeds} seeds",
    )


@app.command("heron-fig12")
def heron_fig12_command(
    machine: Annotated[
        str, typer.Option(metavar="NAME", help="Scored by the model; 'host' compiles and measures.")
    ] = "a100",
    evaluations: Annotated[int, typer.Option(metavar="N", help="Scores for each run.")] = 300,
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs of each method.")] = 10,
    method: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this method; repeat for more.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the curves of each operator as SVG.")
    ] = None,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """Search methods at equal evaluations on GEMM and C2D."""
    from amos import reproduce
    from amos.reproduce.heron_fig12 import curves, draw

    methods = method or list(reproduce.HERON_METHODS)
    with counting("runs done", quiet=as_json) as tell:
        figure = reproduce.heron_fig12(machine, evaluations, seeds, methods, tell)
    if picture is not None:
        draw(figure, picture)
    write_rows(curves(figure), csv)
    if as_json:
        print_json(figure)
        return
    for operator, best in figure.best_known.items():
        print_table(
            ["method", "seeds at 95 %", "evaluations to 95 %", "final / best", "valid share"],
            [_summarize(figure, operator, name) for name in methods],
            title=f"{operator} on {figure.machine}: best known {best * 1e6:.4g} us, "
            f"{seeds} seeds, {evaluations} evaluations each (medians)",
        )


def _summarize(figure: Fig12, operator: str, method: str) -> list[object]:
    runs, best = figure.of(operator, method), figure.best_known[operator]
    middle = figure.median(operator, method)
    return [
        method,
        f"{figure.reached_count(operator, method)} of {len(runs)}",
        f"{middle:g}" if math.isfinite(middle) else f"> {figure.evaluations}",
        statistics.median(best / run.best[-1] for run in runs),
        statistics.fmean(run.valid_share for run in runs),
    ]
