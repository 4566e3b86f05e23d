"""``amos predict``: what the performance model says about mappings, without running them."""

from __future__ import annotations

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
    MachineName,
    OperatorText,
    Rule,
    RuleName,
    Shapes,
    read_intrinsic,
    read_operator,
)
from amos.cli.output import print_json, print_table

if TYPE_CHECKING:
    import numpy as np

    from amos.mapping import Mapping
    from amos.perfmodel import Machine

__all__ = ["predict_command"]


def predict_command(
    operator: OperatorText,
    intrinsic: IntrinsicName = None,
    machine: MachineName = "host",
    rule: Rule = RuleName.paper,
    commute: Commute = False,
    samples: Annotated[
        int, typer.Option(min=0, metavar="N", help="Schedules to draw for each mapping.")
    ] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random generator.")] = 0,
    files: IntrinsicFiles = None,
    extent: Extents = None,
    dtype: Dtypes = None,
    shape: Shapes = None,
    layout: Layout = None,
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Predict the time of mappings.

    Each mapping stands with the best of the schedules drawn for it, fastest first.
    Nothing is compiled or run.
    """
    import numpy as np

    import amos

    op = read_operator(operator, extent, dtype, shape, layout)
    unit = read_intrinsic(intrinsic, files)
    target = amos.machines.get(machine, [unit])
    rng = np.random.default_rng(seed)
    space = amos.enumerate_mappings(op, unit, rule=rule.value, commute=commute)
    rows = sorted(
        (_best(mapping, target, samples, rng) for mapping in space),
        key=lambda row: float(row["predicted_seconds"]),
    )[:limit]
    if as_json:
        print_json(
            {"operator": op.name, "intrinsic": unit.name, "machine": machine, "predictions": rows}
        )
        return
    print_table(
        ["mapping", "microseconds", "bound by", "schedule"],
        [
            [row["mapping"], row["predicted_seconds"] * 1e6, row["bound"], row["schedule_text"]]
            for row in rows
        ],
    )


def _best(
    mapping: Mapping, machine: Machine, samples: int, rng: np.random.Generator
) -> dict[str, Any]:
    import amos
    from amos.schedule import ScheduleSpace

    space = ScheduleSpace(mapping)
    schedules = [space.smallest(), *(space.sample(rng) for _ in range(samples))]
    predicted = [(amos.predict(mapping, machine, schedule), schedule) for schedule in schedules]
    prediction, schedule = min(predicted, key=lambda pair: pair[0].seconds)
    return {
        "mapping": mapping.name,
        "expression": str(mapping),
        "predicted_seconds": prediction.seconds,
        "bound": prediction.bound,
        "schedule": schedule.as_dict(),
        "schedule_text": str(schedule),
    }
