"""``amos reproduce fig8b``, ``fig9`` and ``hidet-fig19``: figures of GPUs, by the model alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from amos.cli.options import AsJson, Csv
from amos.cli.output import print_json, print_line, print_table, write_rows

_Machine = Annotated[
    str, typer.Option(metavar="NAME", help="A described GPU with Tensor Cores; the model decides.")
]


_Layers = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Only this layer; repeat for more.")
]


def fig8b_command(
    machine: Annotated[
        str, typer.Option(metavar="NAME", help="A described Mali GPU; the model decides.")
    ] = "mali_g76",
    layer: _Layers = None,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """MobileNet-V2 on the dot products of a Mali GPU, by the model."""
    from amos.reproduce.fig8b import fig8b

    rows = fig8b(machine, layer or ())
    write_rows(rows, csv)
    if as_json:
        print_json({"by": "model", "machine": machine, "rows": [asdict(row) for row in rows]})
        return
    print_table(
        ["layer", "mappings", "best", "us", "Gop/s", "of the peak"],
        [
            [row.layer, row.mappings, row.mapping, f"{row.seconds * 1e6:.1f}"]
            + [f"{row.gops:.1f}", f"{row.peak_fraction:.1%}"]
            for row in rows
        ],
        title=f"AMOS, Figure 8b: MobileNet-V2 in bytes on {machine}, batch 1, predicted",
    )
    print_line("The model decides alone: nothing is measured, and AutoTVM does not run.")


def fig9_command(
    machine: _Machine = "a100", layer: _Layers = None, csv: Csv = None, as_json: AsJson = False
) -> None:
    """Two fixed mappings beside the whole space on ResNet-18, by the model."""
    from amos.reproduce.fig9 import FIXED, PAPER, fig9, mean_drop
    from amos.reproduce.table5 import PRINTED

    rows = fig9(machine, layer or tuple(PRINTED))
    drops = {name: mean_drop(rows, name) for name in FIXED}
    write_rows([asdict(row) for row in rows], csv)
    if as_json:
        listed = [asdict(row) for row in rows]
        print_json({"by": "model", "machine": machine, "rows": listed, "drop": drops})
        return
    print_table(
        ["layer", "mapping", "us", *(f"{name}, us" for name in FIXED), *FIXED],
        [
            [row.layer, row.mapping, f"{row.seconds * 1e6:.2f}"]
            + [f"{seconds * 1e6:.2f}" for seconds in row.fixed.values()]
            + [f"-{row.drop(name):.1%}" for name in FIXED]
            for row in rows
        ],
        title=f"AMOS, Figure 9: fixed mappings on {machine}, batch 16, predicted",
    )
    for name, drop in drops.items():
        print_line(f"{name}: {drop:.1%} less performance by the model; paper {PAPER[name]:.1%}")


def hidet_fig19_command(
    machine: _Machine = "a100",
    size: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Only this size; repeat for more.")
    ] = None,
    csv: Csv = None,
    as_json: AsJson = False,
) -> None:
    """Matrix products of consecutive sizes: few schedules beside the large space, by the model."""
    from amos.reproduce.hidet_fig19 import SIZES, hidet_fig19

    rows = hidet_fig19(machine, size or SIZES)
    write_rows(rows, csv)
    if as_json:
        print_json({"by": "model", "machine": machine, "rows": [asdict(row) for row in rows]})
        return
    print_table(
        ["size", "schedules", "us", "Top/s", "large space, us", "search, s"],
        [
            [row.size, row.listed, f"{row.seconds * 1e6:.1f}"]
            + [f"{2 * row.size**3 / row.seconds / 1e12:.1f}", f"{row.large_space * 1e6:.1f}"]
            + [f"{row.search_seconds:.2f}"]
            for row in rows
        ],
        title=f"Hidet, Figure 19: products of square matrices in half precision on {machine}, "
        "predicted",
    )
    print_line("The model decides alone: nothing is measured, and AutoTVM and Ansor do not run.")
