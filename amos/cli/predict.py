"""``amos predict``: the performance model's predictions for mappings, without running them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

import amos
from amos.cli import options
from amos.cli.chains import is_chain
from amos.cli.energy import print_energy
from amos.cli.output import print_json, print_line, print_table
from amos.errors import ExploreError, MachineError

if TYPE_CHECKING:
    from amos.ir import Operator
    from amos.machine import Machine
    from amos.mapping import Mapping
    from amos.perfmodel import Prediction
    from amos.plan import Candidate


@options.takes_operator
def predict_command(
    op: Operator,
    intrinsic: options.IntrinsicName = None,
    machine: options.MachineName = "host",
    rule: options.Rule = "access",
    commute: options.Commute = False,
    samples: Annotated[
        int, typer.Option(min=0, metavar="N", help="Schedules to draw for each mapping.")
    ] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random generator.")] = 0,
    files: options.IntrinsicFiles = None,
    limit: options.Limit = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict the time of mappings.

    Each mapping stands with the best of the schedules drawn for it, fastest first.
    Nothing is compiled or run.
    """
    from amos.explore.setting import select_mappings
    from amos.plan.target import target_of

    if is_chain(op):
        raise ExploreError(f"{op}: predict takes one statement; explore predicts chains")
    unit = options.read_intrinsic(intrinsic, files)
    target = amos.machines.get(machine, [unit])
    target_of(target).check_operator(op, unit, target)
    mappings = select_mappings(op, unit, rule, amos.SearchOptions(commute=commute))
    ranked = _rank(mappings, target, samples, seed)
    listed, prediction, rate = ranked[:limit], ranked[0][0], target.peak(unit.name).source
    if as_json:
        print_json(
            {"operator": op.name, "intrinsic": unit.name, "machine": machine, "rate": rate}
            | {"seconds": prediction.seconds, "bound": prediction.bound}
            | {"levels": _levels(prediction), "energy_joules": prediction.energy_joules}
            | {"energy": [asdict(row) for row in prediction.energy]}
            | {"predictions": [_row(*best) for best in listed]}
        )
        return
    print_table(
        ["mapping", "microseconds", "bound by", "schedule"],
        [[c.mapping.name, p.seconds * 1e6, p.bound, str(c.schedule)] for p, c in listed],
    )
    _print_levels(ranked[0][1].mapping.name, prediction)
    print_energy(prediction, target)
    print_line(f"rate of {unit.name}: {rate}")


def _rank(
    mappings: Sequence[Mapping], target: Machine, samples: int, seed: int
) -> list[tuple[Prediction, Candidate]]:
    """Rank mappings by the best schedule drawn for each, the fastest first."""
    import numpy as np

    from amos.explore.sampled import best_sampled

    rng = np.random.default_rng(seed)
    fitting = (best_sampled(mapping, target, samples, rng) for mapping in mappings)
    ranked = sorted((x for x in fitting if x is not None), key=lambda x: x[0].seconds)
    if not ranked:
        name = mappings[0].operator.name
        raise MachineError(
            f"no schedule that was drawn for {name} fits {target.name}; try more --samples"
        )
    return ranked


def _print_levels(name: str, prediction: Prediction) -> None:
    print_table(
        ["level", "trips", "compute us", "read us", "write us", ""],
        [
            [row["level"], row["trips"], *(row[x] * 1e6 for x in ("compute", "read", "write"))]
            + ["binding" * row["binding"]]
            for row in _levels(prediction)
        ],
        title=f"levels of {name}, the fastest",
    )


def _levels(prediction: Prediction) -> list[dict[str, Any]]:
    """List seconds and bytes of each level, and mark the binding one."""
    binding = prediction.binding[0]
    return [vars(row) | {"binding": row.level == binding} for row in prediction.rows]


def _row(prediction: Prediction, candidate: Candidate) -> dict[str, Any]:
    return {
        "mapping": candidate.mapping.name,
        "expression": str(candidate.mapping),
        "predicted_seconds": prediction.seconds,
        "bound": prediction.bound,
        "schedule": candidate.schedule.as_dict(),
        "schedule_text": str(candidate.schedule),
    }
