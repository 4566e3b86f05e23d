"""Spaces of mappings and of schedules, as the model sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from amos import machines
from amos.errors import MachineError, UnknownNameError
from amos.viz.palette import line_colour
from amos.viz.plotting import axes, graph_objects, styled

if TYPE_CHECKING:
    from amos.machine import Machine
    from amos.mapping import Mapping, MappingSpace
    from amos.plan import Schedule

__all__ = ["Landscape", "landscape", "landscape_of", "space"]

#: Mappings of a space that are drawn.
_MOST = 400


def space(
    found: MappingSpace,
    machine: str | Machine,
    *,
    by: str | None = None,
    samples: int = 16,
    seed: int = 0,
) -> Any:
    """Predicted latency over utilization, one point a mapping.

    Each mapping stands with the best of the schedules drawn for it; mappings of
    which none fits the machine are left out.

    Args:
        found: the mappings; of a large space an even selection.
        machine: where the model runs them, by name or as a description.
        by: intrinsic iteration whose group colours a point; the first one if omitted.
        samples: schedules to draw for a mapping.
        seed: seed of the drawing.

    Returns:
        A plotly figure with one trace for each group; ``customdata`` are the names.

    Raises:
        UnknownNameError: the intrinsic has no iteration ``by``.
        MachineError: the machine has no rate for the intrinsic, or nothing fits.
        ToolchainError: plotly is not installed.
    """
    from amos.explore.sampled import best_sampled

    go = graph_objects()
    steps = [it.name for it in found.intrinsic.iterations]
    by = steps[0] if by is None else by
    if by not in steps:
        raise UnknownNameError("intrinsic iteration", by, steps)
    machine = machines.get(machine, [found.intrinsic])
    rng = np.random.default_rng(seed)
    groups: dict[str, list[tuple[float, float, str]]] = {}
    for mapping in _even(found):
        best = best_sampled(mapping, machine, samples, rng)
        if best is not None:
            point = (mapping.physical().utilization, best[0].seconds, mapping.name)
            groups.setdefault(", ".join(mapping.groups[by]) or "nothing", []).append(point)
    if not groups:
        raise MachineError(f"no schedule drawn for {found.operator.name} fits {machine.name}")
    figure = go.Figure()
    for number, (group, points) in enumerate(sorted(groups.items())):
        x, y, names = zip(*points, strict=True)
        figure.add_scatter(
            x=x,
            y=y,
            customdata=names,
            mode="markers",
            name=f"{by} ← {group}",
            marker=dict(color=line_colour(number), size=9, symbol=number // 8),
            hovertemplate="%{customdata}<br>%{y:.3g} s, utilization %{x:.1%}<extra></extra>",
        )
    axes(figure, "utilization", "predicted seconds", log_y=True)
    figure.update_xaxes(tickformat=".0%")
    what = f"{found.operator.name} on {found.intrinsic.name}, {machine.name}"
    return styled(figure, f"{what}: {found.count:,} mappings under {found.rule!r}")


def _even(found: MappingSpace) -> Sequence[Mapping]:
    if found.count <= _MOST:
        return list(islice(found, _MOST))
    return [found[n * found.count // _MOST] for n in range(_MOST)]


@dataclass(frozen=True)
class Landscape:
    """Predicted seconds over two schedule variables.

    Attributes:
        x, y: names of the variables.
        columns, rows: their values.
        seconds: rows × columns; NaN where the schedule is infeasible or does not fit.
        base: the schedule that the other variables are taken from.
    """

    x: str
    y: str
    columns: tuple[object, ...]
    rows: tuple[object, ...]
    seconds: np.ndarray
    base: Schedule


def landscape_of(
    mapping: Mapping,
    machine: str | Machine,
    x: str,
    y: str,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
) -> Landscape:
    """Vary two variables of a schedule and predict every pair of values.

    Args:
        mapping: what is scheduled.
        machine: where, by name or as a description.
        x, y: schedule variables.
        schedule: gives all other variables their values; the best of 64 by chance
            if omitted.
        seed: seed of that chance.

    Raises:
        UnknownNameError: the mapping's schedules have no such variable.
        MachineError: no schedule fits.
    """
    from amos.explore.sampled import best_sampled
    from amos.perfmodel import evaluate
    from amos.plan import Schedule, Structure, batch_of
    from amos.schedule import ScheduleSpace

    machine = machines.get(machine, [mapping.intrinsic])
    schedules = ScheduleSpace(mapping, machine)
    for name in (x, y):
        if name not in schedules.variables:
            raise UnknownNameError("schedule variable", name, schedules.variables)
    if schedule is None:
        best = best_sampled(mapping, machine, 64, np.random.default_rng(seed))
        if best is None:
            raise MachineError(f"no schedule drawn for {mapping.name} fits {machine.name}")
        schedule = best[1].schedule
    columns, rows = schedules.variables[x], schedules.variables[y]
    seconds = np.full((len(rows), len(columns)), np.nan)
    places, made = [], []
    for r, low in enumerate(rows):
        for c, across in enumerate(columns):
            one = Schedule.of(schedule.as_dict() | {y: low, x: across})
            if schedules.feasible(one):
                places.append((r, c))
                made.append(one)
    if made:
        structure = Structure(mapping)
        found = evaluate(structure, machine, batch_of(structure, made)).seconds
        seconds[tuple(np.array(places).T)] = np.where(np.isfinite(found), found, np.nan)
    return Landscape(x, y, columns, rows, seconds, schedule)


def landscape(
    mapping: Mapping,
    machine: str | Machine,
    x: str,
    y: str,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
) -> Any:
    """Two schedule variables against predicted seconds (Heron, Figure 11).

    Infeasible pairs stay empty. Arguments and errors are those of
    :func:`landscape_of`.

    Returns:
        A plotly figure with one heat map, in microseconds.
    """
    machine = machines.get(machine, [mapping.intrinsic])
    found = landscape_of(mapping, machine, x, y, schedule=schedule, seed=seed)
    figure = graph_objects().Figure()
    figure.add_heatmap(
        z=[[None if np.isnan(v) else v * 1e6 for v in row] for row in found.seconds],
        x=[str(v) for v in found.columns],
        y=[str(v) for v in found.rows],
        colorscale="Viridis",
        reversescale=True,
        colorbar_title_text="us",
        xgap=1,
        ygap=1,
        hovertemplate=f"{x} = %{{x}}, {y} = %{{y}}: %{{z:.4g}} us<extra></extra>",
    )
    axes(figure, x, y)
    figure.update_xaxes(type="category")
    figure.update_yaxes(type="category")
    return styled(figure, f"Schedules of {mapping.name} on {machine.name}")
