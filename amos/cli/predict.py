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
from amos.cli.output import print_json, print_line, print_table
from amos.errors import MachineError

if TYPE_CHECKING:
    from amos.perfmodel import Prediction
    from amos.plan import Candidate

__all__ = ["predict_command"]


def predict_command(
    operator: OperatorText,
    intrinsic: IntrinsicName = None,
    machine: MachineName = "host",
    rule: Rule = RuleName.access,
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
    from amos.explore.sampled import best_sampled

    op = read_operator(operator, extent, dtype, shape, layout)
    unit = read_intrinsic(intrinsic, files)
    target = amos.machines.get(machine, [unit])
    rng = np.random.default_rng(seed)
    space = amos.enumerate_mappings(op, unit, rule=rule.value, commute=commute)
    fitting = (best_sampled(mapping, target, samples, rng) for mapping in space)
    found = sorted((x for x in fitting if x is not None), key=lambda x: x[0].seconds)
    if not found:
        raise MachineError(
            f"no schedule that was drawn for {op.name} fits {target.name}; try more --samples"
        )
    rows = [_row(*best) for best in found[:limit]]
    prediction = found[0][0]
    if as_json:
        print_json(
            {
                "operator": op.name,
                "intrinsic": unit.name,
                "machine": machine,
                "rate": target.peak(unit.name).source,
                "seconds": prediction.seconds,
                "bound": prediction.bound,
                "generic": prediction.generic,
                "levels": _levels(prediction),
                "predictions": rows,
            }
        )
        return
    _print(rows, prediction, found[0][1])
    print_line(f"rate of {unit.name}: {target.peak(unit.name).source}")
    if prediction.note:
        print_line(prediction.note)


def _print(rows: list[dict[str, Any]], prediction: Prediction, fastest: Candidate) -> None:
    print_table(
        ["mapping", "microseconds", "bound by", "schedule"],
        [
            [row["mapping"], row["predicted_seconds"] * 1e6, row["bound"], row["schedule_text"]]
            for row in rows
        ],
    )
    print_table(
        ["level", "trips", "compute us", "read us", "write us", ""],
        [
            [row["level"], row["trips"]]
            + [row[kind] * 1e6 for kind in ("compute", "read", "write")]
            + ["binding" if row["binding"] else ""]
            for row in _levels(prediction)
        ],
        title=f"levels of {fastest.mapping.name}, the fastest",
    )


def _row(prediction: Prediction, candidate: Candidate) -> dict[str, Any]:
    return {
        "mapping": candidate.mapping.name,
        "expression": str(candidate.mapping),
        "predicted_seconds": prediction.seconds,
        "bound": prediction.bound,
        "schedule": candidate.schedule.as_dict(),
        "schedule_text": str(candidate.schedule),
    }


def _levels(prediction: Prediction) -> list[dict[str, Any]]:
    """One entry a level: seconds and bytes, and which one binds."""
    binding = prediction.binding[0]
    return [vars(row) | {"binding": row.level == binding} for row in prediction.rows]
