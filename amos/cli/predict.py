"""``amos predict``: what the performance model says about mappings, without running them."""

from __future__ import annotations

from amos.cli.options import (
    AsJson,
    Dtypes,
    Extents,
    IntrinsicName,
    Layout,
    Limit,
    MachineName,
    OperatorText,
    Rule,
    RuleName,
    Shapes,
    read_operator,
)
from amos.cli.output import print_json, print_table

__all__ = ["predict_command"]


def predict_command(
    operator: OperatorText,
    intrinsic: IntrinsicName,
    machine: MachineName = "host",
    rule: Rule = RuleName.paper,
    extent: Extents = None,
    dtype: Dtypes = None,
    shape: Shapes = None,
    layout: Layout = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Predict the time of mappings."""
    import amos

    op = read_operator(operator, extent, dtype, shape, layout)
    unit = amos.intrinsics.get(intrinsic)
    target = amos.machines.get(machine)
    space = amos.enumerate_mappings(op, unit, rule=rule.value)
    predicted = [(mapping, amos.predict(mapping, target)) for mapping in space]
    predicted.sort(key=lambda pair: pair[1].seconds)
    rows = [
        {
            "mapping": mapping.name,
            "expression": str(mapping),
            "predicted_seconds": prediction.seconds,
            "bound": prediction.bound,
        }
        for mapping, prediction in predicted[:limit]
    ]
    if as_json:
        print_json(
            {"operator": op.name, "intrinsic": unit.name, "machine": machine, "predictions": rows}
        )
        return
    print_table(
        ["mapping", "expression", "seconds", "bound by"], [list(row.values()) for row in rows]
    )
