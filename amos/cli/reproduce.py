"""``amos reproduce``: the paper's tables of mappings, counted anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer

from amos.cli.options import AsJson, Rule, RuleName
from amos.cli.output import print_json, print_line, print_table

__all__ = ["app"]

app = typer.Typer(
    help="Count the mappings of the paper's tables anew.",
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
