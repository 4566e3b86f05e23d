"""How good the model is, and what it says limits a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from amos import machines
from amos.errors import ExploreError
from amos.viz.palette import line_colour
from amos.viz.plotting import axes, graph_objects, styled

if TYPE_CHECKING:
    from amos.explore import Exploration
    from amos.machine import Machine
    from amos.plan import Candidate

__all__ = ["Roof", "accuracy", "roofline", "roofs"]


def accuracy(found: Exploration | Mapping[str, tuple[Any, Any]]) -> Any:
    """Predicted against measured seconds, and the share of pairs in the right order.

    Args:
        found: an exploration that measured, or predicted and measured seconds under
            names of their own, for example ``amos.reproduce.fig5.predictions``.

    Returns:
        A plotly figure with one trace a name (AMOS, Figure 5).

    Raises:
        ExploreError: nothing was measured.
        ToolchainError: plotly is not installed.
    """
    from amos.perfmodel.accuracy import pairwise

    go = graph_objects()
    named = found if isinstance(found, Mapping) else {found.method: _measured(found)}
    figure = go.Figure()
    shares = []
    for number, (name, (predicted, measured)) in enumerate(named.items()):
        x, y = np.asarray(predicted, float), np.asarray(measured, float)
        label = name
        if len(x) > 1:
            shares.append(pairwise(x, y))
            label += f"  {shares[-1]:.1%}"
        figure.add_scatter(
            x=x.tolist(),
            y=y.tolist(),
            name=label,
            mode="markers",
            marker=dict(color=line_colour(number), size=5, symbol=number // 8),
        )
    axes(figure, "predicted seconds", "measured seconds", log_x=True, log_y=True)
    mean = f", {np.mean(shares):.1%} of pairs in the right order" if shares else ""
    return styled(figure, f"Predicted and measured{mean}", height=480)


def _measured(found: Exploration) -> tuple[list[float], list[float]]:
    ran = [trial for trial in found.trials if trial.measurement and trial.measurement.ok]
    if not ran:
        raise ExploreError(f"none of {len(found.trials)} candidates was measured")
    return [trial.predicted for trial in ran], [trial.seconds for trial in ran]


@dataclass(frozen=True)
class Roof:
    """One level of a roofline.

    Attributes:
        level: name of the memory.
        bandwidth: bytes per second that all its units deliver inward.
        bytes: bytes that go through it, in and out, over the whole computation.
        intensity: operations for each of these bytes; infinite if there are none.
    """

    level: str
    bandwidth: float
    bytes: float
    intensity: float


def roofs(candidate: Candidate, machine: str | Machine) -> tuple[tuple[Roof, ...], float, float]:
    """The levels of a candidate on a machine, its peak and what it is predicted to reach.

    Returns:
        The levels from the inside outward; the machine's peak, and the candidate's
        predicted rate, in operations per second.

    Raises:
        MachineError: the machine has no rate for the intrinsic, or a memory overflows.
    """
    from amos.perfmodel import predict
    from amos.perfmodel.traffic import LoopNestBatch
    from amos.plan import Structure

    mapping = candidate.mapping
    machine = machines.get(machine, [mapping.intrinsic])
    structure = Structure(mapping)
    said = predict(mapping, machine, candidate.schedule)
    batch = candidate.schedule.batch(structure)
    steps = LoopNestBatch(structure, batch, batch.split if machine.cached else None)
    cores = min(machine.cores, int(steps.parallel[0]))
    operations = mapping.operator.operations
    found = []
    for number, (level, row) in enumerate(zip(machine.levels, said.rows[1:], strict=True)):
        # The model counts the bytes of one group of cores that share what is inside.
        inside = machine.cores if number == 0 else machine.levels[number - 1].units
        moved = (row.bytes_in + row.bytes_out) * min(cores, inside)
        intensity = operations / moved if moved else float("inf")
        found.append(Roof(level.name, level.read_bandwidth * level.units, moved, intensity))
    interval = machine.peak(mapping.intrinsic.name).interval
    peak = mapping.intrinsic.operations / interval * machine.cores
    return tuple(found), peak, operations / said.seconds


def roofline(candidate: Candidate, machine: str | Machine) -> Any:
    """Roofs of every memory level, and where the model sees a candidate under each.

    Args:
        candidate: mapping and schedule.
        machine: by name or as a description.

    Returns:
        A plotly figure: for each level a roof and, if anything moves through it, a
        point at its operational intensity and the predicted rate.

    Raises:
        MachineError: as in :func:`roofs`.
        ToolchainError: plotly is not installed.
    """
    machine = machines.get(machine, [candidate.mapping.intrinsic])
    levels, peak, rate = roofs(candidate, machine)
    figure = graph_objects().Figure()
    known = [level.intensity for level in levels if np.isfinite(level.intensity)]
    ridges = [peak / level.bandwidth for level in levels]
    low, high = min([*known, *ridges]) / 4, max([*known, *ridges]) * 4
    for number, level in enumerate(levels):
        ridge = peak / level.bandwidth
        figure.add_scatter(
            x=[low, ridge, high],
            y=[low * level.bandwidth, peak, peak],
            name=f"{level.level}: {level.bandwidth / 1e9:,.0f} GB/s",
            mode="lines",
            line_color=line_colour(number),
            legendgroup=level.level,
        )
        if np.isfinite(level.intensity):
            figure.add_scatter(
                x=[level.intensity],
                y=[rate],
                name=f"{level.level}: {level.intensity:.3g} operations a byte",
                mode="markers",
                marker=dict(color=line_colour(number), size=11, line=dict(width=1)),
                legendgroup=level.level,
            )
    axes(figure, "operations per byte", "operations per second", log_x=True, log_y=True)
    name = f"{candidate.mapping.name} on {machine.name}"
    return styled(figure, f"{name}: {rate / 1e12:.3g} of {peak / 1e12:.3g} Top/s predicted")
