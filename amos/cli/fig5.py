"""``amos reproduce fig5``: the performance model compared with measured samples."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import amos
from amos.cli.options import AsJson, Csv
from amos.cli.output import counting, print_json, print_line, print_table, write_rows

if TYPE_CHECKING:
    from amos.machine import Costs
    from amos.reproduce.fig5 import Judged


def fig5_command(
    measure: Annotated[bool, typer.Option("--measure", help="Measure new samples first.")] = False,
    samples: Annotated[int, typer.Option(min=10, help="Samples of a layer, with --measure.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples, with --measure.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each, with --measure.")] = 2,
    dataset: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Samples; with --measure, to keep them.")
    ] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Fit the constants on ResNet-18.")] = False,
    gpu: Annotated[
        Literal["published"] | None,
        typer.Option(help="Instead: convolutions that the authors of AMOS measured on an A100."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw predicted over measured.")
    ] = None,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """Show how well the performance model ranks measured kernels, per layer and overall."""
    if gpu is not None:
        if measure or fit or dataset or plot:
            raise typer.BadParameter("--gpu published has times of its own; leave out the others")
        _compare_published(csv, as_json)
        return
    from amos.reproduce import fig5 as figure
    from amos.reproduce.samples import load, save

    if measure:
        with counting("layers measured", quiet=as_json) as tell:
            data = figure.collect_samples(samples, seed, rounds, tell)
        if dataset is not None:
            save(data, dataset)
    else:
        data = figure.load_stored() if dataset is None else load(dataset)
    costs = figure.fit(data, figure.FITTED_ON) if fit else None
    if plot is not None:
        amos.viz.write(amos.viz.accuracy(figure.predictions(data, costs)), plot)
    result = figure.fig5(data, costs)
    if dataset is None and not measure:
        result["second_cpu"] = figure.second_cpu()
    sets = figure.present(data).items()
    judged = {name: figure.judge(data, layers, costs=costs) for name, layers in sets}
    write_rows(({"set": name} | asdict(x) for name, j in judged.items() for x in j.layers), csv)
    if as_json:
        print_json(result)
        return
    _print_figure(result, judged, costs)


def _print_figure(result: dict[str, Any], judged: dict[str, Judged], costs: Costs | None) -> None:
    print_line(f"{result['intrinsic']}, {result['machine']}")
    if costs is not None:
        print_line(f"constants fitted on ResNet-18: {costs}")
    for name, judgement in judged.items():
        _print_layers(_words(name), judgement)
    _print_summary(result)


def _compare_published(csv: Path | None, as_json: bool) -> None:
    from amos.reproduce.published import compare_published

    result = compare_published()
    layers = result["layers"]
    write_rows(layers, csv)
    if as_json:
        print_json(result)
        return
    print_table(
        ["layer", "mappings", "different", "pairwise", "repeatability", "equals differ"]
        + ["all differ", "chance", "best us", "over our best", "over our median"],
        [
            [x["layer"], x["mappings"], x["computations"]]
            + ["" if x[key] is None else x[key] for key in ("pairwise", "repeatability")]
            + [f"{x['equals_differ']:.2f}x", f"{x['mappings_differ']:.2f}x", f"{x['chance']:.2f}"]
            + [x["best_us"], f"{x['best_ratio']:.2f}x", f"{x['median_ratio']:.2f}x"]
            for x in layers
        ],
        title=f"published best times of mappings on {result['machine']}, and our model's",
    )
    print_line(
        f"The model puts {result['pairwise']:.0%} of the pairs of different computations in the "
        f"published order; times of the same computation under another name put "
        f"{result['repeatability']:.0%}. All layers in one ranking: "
        f"{result['pooled_pairwise']:.0%}."
    )


def _print_summary(result: dict[str, Any]) -> None:
    _print_models(result)
    _print_limits(result)
    _print_terms(result["terms"])
    paper = result["paper_reports"]
    print_line(
        f"AMOS reports {paper['pairwise']:.2%} pairwise and {paper['recall40']:.1%} recall of the "
        "top 40 %, for 2-D convolutions on a Tensor Core."
    )


def _words(name: str) -> str:
    return name.replace("_", " ")


def _print_layers(title: str, judged: Judged) -> None:
    print_table(
        ["layer", "samples", "pairwise", "beyond noise", "recall 40 %", "best of ten"]
        + ["trials to 5 %"],
        [
            [x.layer, x.samples, x.pairwise, x.beyond_noise, x.recall[40], x.best_of_ten, x.trials]
            for x in (*judged.layers, judged.overall)
        ],
        title=title,
    )


def _print_models(result: dict[str, Any]) -> None:
    """Print the refined model beside the paper's equation, on each set."""
    judged = [
        (model, _words(name), group[name])
        for model, group in (("refined", result), ("paper's equation", result["paper_equation"]))
        for name in result["paper_equation"]
    ]
    if second := result.get("second_cpu"):
        judged.append(("refined", "fitted on, second CPU", second["fitted_on"]))
        judged += [
            (model, "held back, second CPU", figures)
            for model, figures in (
                ("refined", second),
                ("first CPU's constants", second["first_constants"]),
                ("paper's equation", second["paper_equation"]),
            )
        ]
    shares = judged[0][2]["recall"]
    print_table(
        ["model", "set", "samples", "pairwise"]
        + [f"recall {share} %" for share in shares]
        + ["ten best hold one within 5 %"],
        [
            [model, name, figures["samples"], figures["pairwise"], *figures["recall"].values()]
            + [f"{figures['top10_within_5pct']} of {len(figures['layers'])}"]
            for model, name, figures in judged
        ],
    )


def _print_limits(result: dict[str, Any]) -> None:
    """Print the limit that repeated measurements set, and one ranking of all layers."""
    for name in (name for name in ("fitted_on", "held_back", "second_cpu") if name in result):
        if again := result[name]["repeatability"]:
            print_line(
                f"{_words(name)}, half of the measurements against the other half: "
                f"pairwise {again['pairwise']:.4f}, recall of the top 40 % "
                f"{again['recall']['40']:.4f}; two differ by {again['noise']:.1%}"
            )
        pooled = result[name]["pooled"]
        print_line(
            f"{_words(name)}, all layers in one ranking: pairwise "
            f"{pooled['pairwise']:.4f}, recall of the top 40 % {pooled['recall40']:.4f}"
        )


def _print_terms(terms: dict[str, dict[str, dict[str, float]]]) -> None:
    sets = next(iter(terms.values()))
    print_table(
        ["without this term"]
        + [f"{_words(name)}: {what}" for name in sets for what in ("pairwise", "recall 40 %")],
        [
            [
                term,
                *(
                    round(0.0 - gain, 4)
                    for by_measure in by_set.values()
                    for gain in by_measure.values()
                ),
            ]
            for term, by_set in terms.items()
        ],
    )
