"""``amos reproduce heron-table10`` and ``heron-fig14``: how long a search takes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from amos.cli.options import AsJson
from amos.cli.output import counting, print_json, print_line, print_table

_Trials = Annotated[int, typer.Option(metavar="N", help="Measurements of each search.")]
_Operators = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Only this operator; repeat for more.")
]
_Seed = Annotated[int, typer.Option(metavar="N", help="Of the searches.")]


def heron_table10_command(
    trials: _Trials = 40, operator: _Operators = None, seed: _Seed = 0, as_json: AsJson = False
) -> None:
    """Time that three search methods take on five operators, measured on this CPU."""
    from amos.reproduce import heron_time as heron

    with counting("searches done", quiet=False) as tell:
        rows = heron.heron_table10(trials, operator or (), seed, tell)
    ours = [{name: each.seconds for name, each in row.times.items()} for row in rows]
    ratios = {"paper": heron.mean_ratios([row.paper for row in rows])}
    ratios["ours"] = heron.mean_ratios(ours)
    if as_json:
        listed = [
            {"operator": row.operator, "paper_minutes": row.paper}
            | {"ours": {n: asdict(x) | {"seconds": x.seconds} for n, x in row.times.items()}}
            for row in rows
        ]
        print_json({"by": "host", "trials": trials, "rows": listed, "heron_over": ratios})
        return
    names = [f"{name} ({method})" for name, method in heron.METHODS.items()]
    print_table(
        ["operator", *(f"paper: {name}, min" for name in heron.METHODS)]
        + [f"{name}, s" for name in names]
        + [f"best by {method}, us" for method in heron.METHODS.values()],
        [
            [row.operator, *row.paper.values()]
            + [f"{each.seconds:.1f}" for each in row.times.values()]
            + [f"{each.best * 1e6:.1f}" for each in row.times.values()]
            for row in rows
        ],
        title=f"Heron, Table 10: {heron.PAPER_TRIALS:,} trials on Tensor Core in the paper, "
        f"{trials} on this CPU here",
    )
    for rival, ratio in ratios["ours"].items():
        print_line(
            f"Heron over {rival}, geometric mean: {ratio:.2f} here, {ratios['paper'][rival]:.2f} "
            "in the paper"
        )


def heron_fig14_command(
    trials: _Trials = 40, operator: _Operators = None, seed: _Seed = 0, as_json: AsJson = False
) -> None:
    """Parts of the time that Heron's search method takes, measured on this CPU."""
    from amos.reproduce import heron_time as heron

    with counting("searches done", quiet=False) as tell:
        rows = heron.heron_fig14(trials, operator or (), seed, tell)
    means = {
        name: sum(row.time.shares[name] for row in rows) / len(rows) for name in heron.PAPER_SHARES
    }
    if as_json:
        listed = [asdict(row) | {"shares": row.time.shares} for row in rows]
        paper = heron.PAPER_SHARES
        print_json({"by": "host", "trials": trials, "rows": listed, "mean": means, "paper": paper})
        return
    print_table(
        ["operator", "case", "s", *heron.PAPER_SHARES, "failed"],
        [
            [row.operator, row.case, f"{row.time.seconds:.1f}"]
            + [f"{share:.1%}" for share in row.time.shares.values()]
            + [row.time.failed]
            for row in rows
        ],
        title=f"Heron, Figure 14: parts of the time of {trials} trials of cga on this CPU",
    )
    for name, share in heron.PAPER_SHARES.items():
        print_line(f"{name}: {means[name]:.1%} on average here, {share:.0%} in the paper")
