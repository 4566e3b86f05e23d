"""Spaces of mappings and of schedules, as the model predicts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from amos import machines
from amos.errors import MachineError, UnknownNameError
from amos.viz.plotting import add_style, graph_objects

if TYPE_CHECKING:
    from amos.machine import Machine
    from amos.mapping import Mapping, MappingSpace
    from amos.plan import Schedule
    from amos.schedule import ScheduleSpace

#: Mappings of a space that are drawn.
_MOST = 400


def space(
    mappings: MappingSpace,
    machine: str | Machine,
    *,
    by: str | None = None,
    samples: int = 16,
    seed: int = 0,
) -> Any:
    """Draw predicted latency over utilization, one point a mapping.

    Each mapping is shown with the best of the schedules drawn for it; mappings without any that
    fits the machine are left out.

    Args:
        by: intrinsic iteration whose group colours a point; the first one if omitted.
        samples: schedules to draw for a mapping.

    Returns:
        A plotly figure with one trace for each group; ``customdata`` are the names.

    Raises:
        UnknownNameError: the intrinsic has no iteration ``by``.
        MachineError: the machine has no rate for the intrinsic, or nothing fits.
    """
    steps = [it.name for it in mappings.intrinsic.iterations]
    by = steps[0] if by is None else by
    if by not in steps:
        raise UnknownNameError("intrinsic iteration", by, steps)
    machine = machines.get(machine, [mappings.intrinsic])
    groups: dict[str, list[_Point]] = {}
    for point in _points(mappings, machine, samples, np.random.default_rng(seed)):
        groups.setdefault(", ".join(point.mapping.groups[by]) or "nothing", []).append(point)
    if not groups:
        raise MachineError(f"no schedule drawn for {mappings.operator.name} fits {machine.name}")
    figure = graph_objects().Figure()
    for number, (group, points) in enumerate(sorted(groups.items())):
        figure.add_scatter(
            x=[point.mapping.physical().utilization for point in points],
            y=[point.seconds for point in points],
            customdata=[point.mapping.name for point in points],
            mode="markers",
            name=f"{by} ← {group}",
            marker=dict(size=9, symbol=number // 8),
            hovertemplate="%{customdata}<br>%{y:.3g} s, utilization %{x:.1%}<extra></extra>",
        )
    figure.update_xaxes(tickformat=".0%")
    what = f"{mappings.operator.name} on {mappings.intrinsic.name}, {machine.name}"
    what += f": {mappings.count:,} mappings under {mappings.rule!r}"
    return add_style(figure, what, x="utilization", y="predicted seconds", log="y")


class _Point(NamedTuple):
    """A mapping, and the seconds of the best schedule drawn for it."""

    mapping: Mapping
    seconds: float


def _points(
    mappings: MappingSpace, machine: Machine, samples: int, rng: np.random.Generator
) -> Iterator[_Point]:
    from amos.explore.sampled import best_sampled

    drawn = min(mappings.count, _MOST)
    for number in range(drawn):
        mapping = mappings[number * mappings.count // drawn]
        if best := best_sampled(mapping, machine, samples, rng):
            yield _Point(mapping, best[0].seconds)


def landscape(
    mapping: Mapping,
    machine: str | Machine,
    x: str,
    y: str,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
) -> Any:
    """Draw two schedule variables against predicted seconds (Heron, Figure 11).

    Pairs that are infeasible or do not fit stay empty.

    Args:
        schedule: gives all other variables their values; the best of 64 random ones
            if omitted.

    Returns:
        A plotly figure with one heat map, in microseconds.

    Raises:
        UnknownNameError: the mapping's schedules have no such variable.
        MachineError: no schedule fits.
    """
    from amos.explore.sampled import best_sampled
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
    figure = graph_objects().Figure()
    figure.add_heatmap(
        z=_microseconds(schedules, machine, schedule, x, y).tolist(),
        x=[str(value) for value in schedules.variables[x]],
        y=[str(value) for value in schedules.variables[y]],
        colorscale="Viridis",
        reversescale=True,
        colorbar_title_text="us",
        xgap=1,
        ygap=1,
        hovertemplate=f"{x} = %{{x}}, {y} = %{{y}}: %{{z:.4g}} us<extra></extra>",
    )
    figure = add_style(figure, f"Schedules of {mapping.name} on {machine.name}", x=x, y=y)
    return figure.update_xaxes(type="category").update_yaxes(type="category")


def _microseconds(
    space: ScheduleSpace, machine: Machine, base: Schedule, x: str, y: str
) -> np.ndarray:
    """Predict microseconds, values of ``y`` × values of ``x``; infinite where nothing runs."""
    from amos.perfmodel import evaluate
    from amos.plan import Structure, batch_of

    columns, rows = space.variables[x], space.variables[y]
    drawn = {
        (r, c): type(base).of(base.as_dict() | {y: low, x: across})
        for r, low in enumerate(rows)
        for c, across in enumerate(columns)
    }
    feasible = {place: schedule for place, schedule in drawn.items() if space.is_feasible(schedule)}
    seconds = np.full((len(rows), len(columns)), np.inf)
    if feasible:
        structure = Structure(space.mapping)
        predicted = evaluate(structure, machine, batch_of(structure, [*feasible.values()]))
        seconds[tuple(np.array([*feasible]).T)] = predicted.seconds
    return seconds * 1e6
