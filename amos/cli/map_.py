"""``amos map``: every mapping of an operator onto an intrinsic, or why one is none."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amos.cli.options import (
    AsJson,
    Commute,
    Dtypes,
    Extents,
    IntrinsicFiles,
    IntrinsicName,
    Layout,
    Limit,
    OperatorText,
    Rule,
    RuleName,
    Shapes,
    load_intrinsics,
    read_intrinsic,
    read_operator,
)
from amos.cli.output import print_json, print_line, print_table
from amos.cli.targets import map_target
from amos.errors import MappingError

if TYPE_CHECKING:
    import numpy as np

    from amos.intrinsics import Intrinsic
    from amos.ir import Operator
    from amos.mapping import Mapping

__all__ = ["map_command"]

_ROWS_OF_A_TABLE = 40

Explain = Annotated[
    str | None,
    typer.Option(
        "--explain",
        metavar="MATRIX",
        help="Judge one matching matrix instead of listing: a row for each intrinsic "
        "iteration, rows separated by ';' or '/', as in '1011000;0100000;0000111'.",
    ),
]


Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Try every intrinsic of a target instead of one: cuda:sm_80, x86:host, all.",
    ),
]


def map_command(
    operator: OperatorText,
    intrinsic: IntrinsicName = None,
    rule: Rule = RuleName.paper,
    commute: Commute = False,
    explain: Explain = None,
    target: Target = None,
    files: IntrinsicFiles = None,
    extent: Extents = None,
    dtype: Dtypes = None,
    shape: Shapes = None,
    layout: Layout = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """List mappings, or explain one matching."""
    op = read_operator(operator, extent, dtype, shape, layout)
    if target is not None:
        if intrinsic is not None or explain is not None:
            raise typer.BadParameter("names all its intrinsics itself", param_hint="--target")
        load_intrinsics(files)
        map_target(op, target, commute, as_json)
        return
    unit = read_intrinsic(intrinsic, files)
    if explain is not None:
        _explain(op, unit, explain, rule.value, as_json)
    elif as_json:
        _list_as_json(op, unit, rule.value, commute, limit)
    else:
        _list(op, unit, rule.value, commute, _ROWS_OF_A_TABLE if limit is None else limit)


def _list_as_json(
    op: Operator, unit: Intrinsic, rule: str, commute: bool, limit: int | None
) -> None:
    from amos import enumerate_mappings

    space = enumerate_mappings(op, unit, rule=rule, commute=commute)
    print_json(
        {
            "operator": op.name,
            "statement": str(op),
            "intrinsic": unit.name,
            "rule": rule,
            "commute": commute,
            "count": space.count,
            "mappings": [_row(mapping) for mapping in itertools.islice(space, limit)],
        }
    )


def _row(mapping: Mapping) -> dict[str, Any]:
    physical = mapping.physical()
    return {
        "name": mapping.name,
        "groups": {key: list(names) for key, names in mapping.groups.items()},
        "calls": physical.calls,
        "utilization": physical.utilization,
        "expression": str(mapping),
    }


def _list(op: Operator, unit: Intrinsic, rule: str, commute: bool, limit: int) -> None:
    from amos import enumerate_mappings

    space = enumerate_mappings(op, unit, rule=rule, commute=commute)
    print_line(str(op))
    print_line(str(unit))
    print_line(f"\n{space.count} mapping{'' if space.count == 1 else 's'} under rule {rule!r}")
    rows = [_row(mapping) for mapping in itertools.islice(space, limit)]
    if rows:
        names = [it.name for it in unit.iterations]
        print_table(
            ["mapping", *names, "calls", "utilization"],
            [
                [
                    row["name"],
                    *(row["groups"].get(name, []) for name in names),
                    row["calls"],
                    f"{row['utilization']:.1%}",
                ]
                for row in rows
            ],
        )
    if (rest := space.count - len(rows)) > 0 and rows:
        print_line(f"{rest} more; --limit {space.count} lists all of them.")


def _explain(op: Operator, unit: Intrinsic, text: str, rule: str, as_json: bool) -> None:
    from amos import check_matching

    matrix = _read_matrix(text, op, unit)
    verdict = check_matching(op, unit, matrix, rule=rule)
    if as_json:
        print_json(
            {
                "operator": op.name,
                "statement": str(op),
                "intrinsic": unit.name,
                "rule": rule,
                "matrix": matrix.astype(int),
                "valid": bool(verdict),
                "reasons": [str(reason) for reason in verdict.reasons],
            }
        )
        return
    print_line(str(op))
    print_line(f"{'valid' if verdict else 'not valid'} under rule {rule!r}")
    columns = ["", *(it.name for it in op.iterations)]
    cells = matrix.astype(int).tolist()
    print_table(columns, ([it.name, *row] for it, row in zip(unit.iterations, cells, strict=True)))
    for reason in verdict.reasons:
        print_line(f"  - {reason}")


def _read_matrix(text: str, op: Operator, unit: Intrinsic) -> np.ndarray:
    import numpy as np

    rows = [re.sub(r"[\s,]", "", row) for row in re.split(r"[;/]", text.strip().strip(";/"))]
    shape = (len(unit.iterations), len(op.iterations))
    if any(set(row) - set("01") for row in rows):
        raise MappingError(f"matching matrix {text!r}: expected 0 and 1, rows separated by ';'")
    if (len(rows), *{len(row) for row in rows}) != shape:
        raise MappingError(
            f"matching matrix {text!r}: expected {shape[0]} rows "
            f"({', '.join(it.name for it in unit.iterations)}) of {shape[1]} columns "
            f"({', '.join(it.name for it in op.iterations)}), "
            f"got {len(rows)} of {' and '.join(sorted({str(len(row)) for row in rows}))}"
        )
    return np.array([[cell == "1" for cell in row] for row in rows], dtype=bool)
