"""``amos operators``: the library of operators and layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import amos
from amos.cli import options
from amos.cli.output import print_json, print_table

if TYPE_CHECKING:
    from amos.ir import Operator


def operators_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="An operator to show, or a network (resnet18)."),
    ] = None,
    extent: options.Extents = None,
    dtype: options.Dtypes = None,
    shape: options.Shapes = None,
    layout: options.Layout = None,
    as_json: options.AsJson = False,
) -> None:
    """List operators or layers, or show one."""
    labels = amos.operators.names() if name is None else amos.operators.layers()
    matching = [label for label in labels if name in (None, label.partition(":")[0])]
    listed = {label: amos.operators.resolve(label) for label in matching}
    if name is not None and not listed:
        listed = {name: options.read_operator(name, extent, dtype, shape, layout)}
    if as_json:
        print_json([_describe(label, op) for label, op in listed.items()])
        return
    print_table(
        ["operator", "operations", "extents", "statement"],
        [
            [label, op.operations]
            + [" ".join(f"{it}={size}" for it, size in op.extents.items()), str(op.compute)]
            for label, op in listed.items()
        ],
    )


def _describe(label: str, op: Operator) -> dict[str, Any]:
    return {
        "name": label,
        "statement": str(op.compute),
        "extents": op.extents,
        "shapes": {load.tensor.name: load.tensor.shape for load in op.operands},
        "dtypes": {load.tensor.name: load.tensor.dtype for load in op.operands},
        "operations": op.operations,
    }
