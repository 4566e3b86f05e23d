"""``amos operators``: the library of operators and layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from amos.cli.options import (
    AsJson,
    Dtypes,
    Extents,
    Layout,
    Shapes,
    read_operator,
)
from amos.cli.output import print_json, print_table

if TYPE_CHECKING:
    from amos.ir import Operator

__all__ = ["operators_command"]


def operators_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="An operator to show, or a network (resnet18)."),
    ] = None,
    extent: Extents = None,
    dtype: Dtypes = None,
    shape: Shapes = None,
    layout: Layout = None,
    as_json: AsJson = False,
) -> None:
    """List operators or layers, or show one."""
    from amos import operators

    if name is None:
        found = {known: operators.resolve(known) for known in operators.names()}
    elif name in {layer.partition(":")[0] for layer in operators.layers()}:
        found = {layer: operators.resolve(layer) for layer in operators.layers(name)}
    else:
        found = {name: read_operator(name, extent, dtype, shape, layout)}
    if as_json:
        print_json([_describe(label, op) for label, op in found.items()])
        return
    print_table(
        ["operator", "operations", "extents", "statement"],
        [
            [
                label,
                op.operations,
                " ".join(f"{it}={size}" for it, size in op.extents.items()),
                str(op.compute),
            ]
            for label, op in found.items()
        ],
    )


def _describe(label: str, op: Operator) -> dict[str, Any]:
    return {
        "name": label,
        "statement": str(op.compute),
        "extents": op.extents,
        "shapes": {load.tensor.name: list(load.tensor.shape) for load in op.operands},
        "dtypes": {load.tensor.name: load.tensor.dtype for load in op.operands},
        "operations": op.operations,
    }
