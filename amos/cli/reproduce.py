"""``amos reproduce``: the paper's tables and figures, made anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amos.cli.options import AsJson, Rule, RuleName
from amos.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from amos.reproduce.fig5 import Judged
    from amos.reproduce.samples import Dataset

__all__ = ["app"]

app = typer.Typer(
    help="Redo the paper's tables and figures.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("table6")
def table6_command(as_json: AsJson = False) -> None:
    """Number of mappings of each operator on Tensor Core, paper and ours."""
    from amos import reproduce
    from amos.validate import RULES

    rows = reproduce.table6()
    if as_json:
        print_json([asdict(row) | {"agrees": row.agrees} for row in rows])
        return
    print_table(
        ["operator", "paper", *RULES, "", "form", "statement"],
        [
            [row.code, row.paper, *row.counts.values(), _mark(row.agrees, row.deviates)]
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
def table5_command(rule: Rule = RuleName.paper, as_json: AsJson = False) -> None:
    """The mapping printed for each layer of ResNet-18, by its name in our space."""
    from amos import reproduce

    rows = reproduce.table5(rule.value)
    if as_json:
        print_json([asdict(row) | {"found": row.found} for row in rows])
        return
    print_table(
        ["layer", "i1", "i2", "r1", "mapping", "index", "of"],
        [[row.layer, *row.printed, row.name, row.index, row.count] for row in rows],
        title="AMOS, Table 5: mappings of ResNet-18, batch 16, NCHW, on wmma_m16n16k16_f16_f32",
    )
    for row in rows:
        if row.reason:
            print_line(f"{row.layer}: {row.reason}")
    print_line(
        f"{sum(row.found for row in rows)} of {len(rows)} are in our space under rule "
        f"{rule.value!r}, with the paper's factors; {len({row.name for row in rows if row.found})} "
        "are different."
    )


@app.command("accelerators")
def accelerators_command(as_json: AsJson = False) -> None:
    """3-D convolution on AXPY, GEMV and CONV units, by definition of the unit."""
    from amos import reproduce
    from amos.validate import RULES

    rows = reproduce.accelerators()
    if as_json:
        print_json([asdict(row) | {"agrees": row.agrees} for row in rows])
        return
    print_table(
        ["unit", "paper", *RULES, "", "definition", "statement"],
        [
            [row.unit, row.paper]
            + [_pair(rule, row.counts, row.types) for rule in RULES]
            + [_equal(row.agrees), row.definition, row.intrinsic]
            for row in rows
        ],
        title="AMOS, section 7.5: mappings of 3-D convolution; in brackets, mappings up to "
        "exchanging like iterations of the unit",
    )
    for unit, count in {row.unit: row.paper for row in rows}.items():
        found = [row.definition for row in rows if row.unit == unit and row.agrees]
        print_line(f"{unit} {count}: {'; '.join(found) or 'no definition above'}")


def _mark(agrees: bool, deviates: bool) -> str:
    return ("=" if agrees else "≠") + (" (deviates)" if deviates else "")


def _pair(rule: str, counts: Mapping[str, int], types: Mapping[str, int]) -> Any:
    if counts[rule] == types[rule]:
        return str(counts[rule])
    return f"{counts[rule]} ({types[rule]})"


def _equal(agrees: tuple[str, ...]) -> str:
    return f"= {', '.join(agrees)}" if agrees else "≠"


@app.command("fig5")
def fig5_command(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure new samples on this machine first.")
    ] = False,
    samples: Annotated[int, typer.Option(min=10, help="Samples of a layer, with --measure.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples, with --measure.")] = 0,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often everything is measured, with --measure.")
    ] = 2,
    dataset: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read the samples here; with --measure, keep them."),
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Fit the constants anew, on ResNet-18 alone.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw predicted against measured.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How well the performance model ranks what was measured, per layer and overall."""
    from amos.reproduce import fig5 as figure
    from amos.reproduce.samples import load, save

    if measure:
        found = _measured(samples, seed, rounds, quiet=as_json)
        if dataset is not None:
            save(found, dataset)
    else:
        found = figure.stored() if dataset is None else load(dataset)
    costs = figure.fit(found, figure.FITTED_ON) if fit else None
    if plot is not None:
        from amos import viz

        viz.write(viz.accuracy(figure.predictions(found, costs)), plot)
    result = figure.fig5(found, costs)
    if dataset is None and not measure:
        result["second_cpu"] = figure.second_cpu()
    if as_json:
        print_json(result)
        return
    print_line(f"{result['intrinsic']}, {result['machine']}")
    if fit:
        print_line(f"constants fitted on ResNet-18: {costs}")
    for name, layers in figure.present(found).items():
        _accuracy(name, figure.judge(found, layers, costs=costs))
    _sets(result)


def _measured(samples: int, seed: int, rounds: int, *, quiet: bool) -> Dataset:
    from amos import machines
    from amos.reproduce import fig5 as figure
    from amos.reproduce.samples import collect

    def tell(layer: str, turn: int) -> None:
        if not quiet:
            print_line(f"measured {layer}, round {turn + 1}")

    layers = [layer for group in figure.SETS.values() for layer in group]
    host = machines.probe()
    return collect(
        layers, figure.INTRINSIC, host, count=samples, seed=seed, rounds=rounds, progress=tell
    )


def _accuracy(name: str, judged: Judged) -> None:
    print_table(
        ["layer", "samples", "pairwise", "beyond noise", "recall 40 %", "best of ten"]
        + ["trials to 5 %"],
        [
            [x.layer, x.samples, x.pairwise, x.beyond_noise, x.recall[40], x.best_of_ten]
            + [x.trials]
            for x in (*judged.layers, judged.overall)
        ],
        title=name.replace("_", " "),
    )


def _limits(result: dict[str, Any]) -> None:
    """What measuring again would rank right, and one ranking of all layers."""
    for name in (name for name in ("fitted_on", "held_back", "second_cpu") if name in result):
        found = result[name]["repeatability"]
        if found is not None:
            print_line(
                f"{name.replace('_', ' ')}, half of the measurements against the other half: "
                f"pairwise {found['pairwise']:.4f}, recall of the top 40 % "
                f"{found['recall']['40']:.4f}; two differ by {found['noise']:.1%}"
            )
        pooled = result[name]["pooled"]
        print_line(
            f"{name.replace('_', ' ')}, all layers in one ranking: pairwise "
            f"{pooled['pairwise']:.4f}, recall of the top 40 % {pooled['recall40']:.4f}"
        )


def _sets(result: dict[str, Any]) -> None:
    """The refined model, the paper's equation, and what the paper reports."""
    one = result.get("fitted_on") or result["held_back"]
    shares = list(one["recall"])
    judged = [
        (title, name.replace("_", " "), group[name])
        for title, group in (
            ("refined", result),
            ("paper's equation", result["paper_equation"]),
        )
        for name in ("fitted_on", "held_back")
        if name in group
    ]
    if "second_cpu" in result:
        other = result["second_cpu"]
        judged += [("refined", "fitted on, second CPU", other["fitted_on"])]
        judged += [("refined", "held back, second CPU", other)]
        judged += [("first CPU's constants", "held back, second CPU", other["first_constants"])]
        judged += [("paper's equation", "held back, second CPU", other["paper_equation"])]
    rows: list[list[object]] = [
        [title, name, one["samples"], one["pairwise"]]
        + [one["recall"][share] for share in shares]
        + [f"{one['top10_within_5pct']} of {len(one['layers'])}"]
        for title, name, one in judged
    ]
    print_table(
        ["model", "set", "samples", "pairwise"]
        + [f"recall {share} %" for share in shares]
        + ["ten best hold one within 5 %"],
        rows,
    )
    _limits(result)
    print_table(
        ["without this term"]
        + [
            f"{name.replace('_', ' ')}: {figure}"
            for name in ("fitted_on", "held_back")
            if name in result
            for figure in ("pairwise", "recall 40 %")
        ],
        [
            [term]
            + [
                round(0.0 - one[name][figure], 4)
                for name in one
                for figure in ("pairwise", "recall40")
            ]
            for term, one in result["terms"].items()
        ],
    )
    paper = result["paper_reports"]
    print_line(
        f"AMOS reports {paper['pairwise']:.2%} pairwise and {paper['recall40']:.1%} recall of the "
        "top 40 %, for 2-D convolutions on a Tensor Core."
    )
