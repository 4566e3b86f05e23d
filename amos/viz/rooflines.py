"""Rooflines: the predicted limit of a candidate at each memory level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amos import machines
from amos.viz.palette import line_colour
from amos.viz.plotting import add_style, graph_objects

if TYPE_CHECKING:
    from amos.machine import Machine
    from amos.perfmodel import Prediction
    from amos.plan import Candidate


def roofline(candidate: Candidate, machine: str | Machine) -> Any:
    """Draw the roofs of every memory level, and a candidate under each by the model.

    Returns:
        A plotly figure: for each level, from the inside outward, a roof and, if anything
        moves through it, a point at its operational intensity and the predicted rate.
    """
    from amos.perfmodel import predict

    mapping = candidate.mapping
    unit, operations = mapping.intrinsic, mapping.operator.operations
    machine = machines.get(machine, [unit])
    prediction = predict(mapping, machine, candidate.schedule)
    rate = operations / prediction.seconds
    peak = unit.operations / machine.peak(unit.name).interval * machine.cores
    bandwidths = {level.name: level.read_bandwidth * level.units for level in machine.levels}
    moved = _bytes_moved(candidate, machine, prediction)
    intensities = {level: operations / moved[level] for level in moved if moved[level]}
    points = [*intensities.values(), *(peak / bandwidth for bandwidth in bandwidths.values())]
    low, high = min(points) / 4, max(points) * 4
    figure = graph_objects().Figure()
    for number, (level, bandwidth) in enumerate(bandwidths.items()):
        figure.add_scatter(
            x=[low, peak / bandwidth, high],
            y=[low * bandwidth, peak, peak],
            name=f"{level}: {bandwidth / 1e9:,.0f} GB/s",
            mode="lines",
            line_color=line_colour(number),
            legendgroup=level,
        )
        if level in intensities:
            figure.add_scatter(
                x=[intensities[level]],
                y=[rate],
                name=f"{level}: {intensities[level]:.3g} operations a byte",
                mode="markers",
                marker=dict(color=line_colour(number), size=11, line=dict(width=1)),
                legendgroup=level,
            )
    what = (
        f"{mapping.name} on {machine.name}: {rate / 1e12:.3g} of {peak / 1e12:.3g} Top/s predicted"
    )
    return add_style(figure, what, x="operations per byte", y="operations per second", log="xy")


def _bytes_moved(
    candidate: Candidate, machine: Machine, prediction: Prediction
) -> dict[str, float]:
    """Return the bytes through each level, in and out, over the whole computation."""
    from amos.plan import Structure
    from amos.plan.cpu_blocks import CpuBlocks

    structure = Structure(candidate.mapping)
    batch = candidate.schedule.batch(structure)
    blocks = CpuBlocks.of(structure, machine, batch)
    cores = min(machine.cores, int(blocks.loops.steps[0]))
    # The model counts the bytes of one group of cores that share the inner levels.
    groups = [machine.cores, *(level.units for level in machine.levels)]
    rows = zip(groups, prediction.rows[1:], strict=False)
    return {row.level: (row.bytes_in + row.bytes_out) * min(cores, n) for n, row in rows}
