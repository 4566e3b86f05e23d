"""Displays of predictions, explorations, candidates, schedule spaces and machines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple
from typing import TYPE_CHECKING

from amos._display import several
from amos.viz.blocks import Block, Code, Heading, Note, Table, align_columns
from amos.viz.drawings import Bar, Bars, Curve, Points

if TYPE_CHECKING:
    from amos.explore import Exploration
    from amos.network import Tuning
    from amos.network.precision.frontier import Frontier, Variant
    from amos.perfmodel import Prediction
    from amos.plan import Candidate
    from amos.records import Trial
    from amos.runtime.kernel import Kernel
    from amos.schedule import ScheduleSpace

#: Values of a variable that are listed.
_VALUES = 12
#: Colour of each kind of term of a prediction.
_COLOURS = {"compute": 0, "read": 1, "write": 2, "other": 3}
#: Most columns of slices, and marks by a task's share of the slices of a column.
_COLUMNS, _SHADES = 60, " ░▒▓█"


def seconds(value: float) -> str:
    """Format a time in a suitable unit.

    >>> seconds(1.5e-5)
    '15 us'
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value * 1e9:.4g} ns"


def prediction(prediction: Prediction) -> list[Block]:
    """Show bars by level, and their table."""
    bars = tuple(
        Bar(x.name, x.seconds, f"{seconds(x.seconds)}  {x.tensor}".rstrip(), _COLOURS[x.kind])
        for x in prediction.terms
        if x.seconds or x.kind != "other"
    )
    level, kind, _ = prediction.binding
    head = ("level", "trips", "compute s", "read s", "write s", "bytes in", "bytes out", "slowest")
    return [
        Heading(f"Predicted {seconds(prediction.seconds)}", f"bound by {prediction.bound}"),
        Bars(f"seconds by level; the longest is {level} {kind}", bars),
        Table(head, tuple(map(astuple, prediction.rows))),
    ]


def exploration(run: Exploration) -> list[Block]:
    """Show the winner, the progress, failures, and the best time of each mapping."""
    title = f"Exploration of {run.operator.name} on {run.intrinsic.name}"
    counts = ", ".join(f"{name} {count}" for name, count in run.counts.items())
    lines = (
        f"machine {run.machine.name}, method {run.method!r}, seed {run.seed}, "
        f"{len(run.trials)} trials" + (f", {run.replayed} replayed" if run.replayed else ""),
        f"mappings by rule: {counts}; {run.searched} searched, "
        f"{run.space_size:,} assignments of mapping and schedule",
    )
    blocks: list[Block] = [Heading(title), Note(lines)]
    if any(math.isfinite(trial.seconds) for trial in run.trials):
        best = run.best
        name = f"Best: {best.mapping.name}, {seconds(best.seconds)}"
        blocks += [Heading(name, run.speed, good=True), Code(str(best.candidate))]
        if run.note:
            blocks.append(Note((run.note,), bad=True))
    if len(run.intrinsics) > 1:
        blocks.append(_contest(run))
    what = "measured" if any(t.measurement for t in run.trials) else "predicted"
    blocks.append(Curve(f"best {what} seconds so far", tuple(run.history)))
    if run.failures:
        failures = ", ".join(f"{count} {kind}" for kind, count in run.failures.items())
        blocks.append(Note((f"failed: {failures}",), bad=True))
    blocks.append(_show_mappings(run))
    if len(run.front) > 1:
        blocks.append(_draw_front(run))
    if run.prediction is not None:
        blocks += prediction(run.prediction)
    return blocks


def _draw_front(run: Exploration) -> Points:
    """Draw workspace against time; the line is the workspace of the fastest kernel."""
    sizes = [run.memory_bytes(trial) / 1024 for trial in run.front]
    points = tuple((t.seconds * 1e3, size) for t, size in zip(run.front, sizes, strict=True))
    return Points("KiB of workspace against time; 1 is the fastest", "ms", points, sizes[0], 0)


def tuning(tuning: Tuning) -> list[Block]:
    """Show results of a network's tasks, and the allocation of trials over time."""
    head = ("", "count", "task", "predicted s", "best s", "instruction")
    rows = tuple(
        (number, task.count, task.operator, task.predicted or "", task.seconds or "")
        + (task.instruction or task.reason,)
        for number, task in enumerate(tuning.rows, 1)
    )
    reached = tuple(step.network_seconds for step in tuning.slices)
    return [
        Heading(
            f"{tuning.network}: {seconds(tuning.seconds)} in kernels",
            several(tuning.trials, "trial"),
        ),
        show_allocation(tuning),
        Curve("seconds in kernels after each slice", reached),
        Table(head, rows, sortable=True),
    ]


def frontier(frontier: Frontier) -> list[Block]:
    """Show errors against predicted times of a network's precisions, and their changes."""
    points = tuple((each.predicted_seconds * 1e3, each.error) for each in frontier.variants)
    chosen = frontier.variants.index(frontier.chosen)
    exact = max(each.predicted_seconds for each in frontier.variants)
    head = ("", "precision", "error", "ms in kernels", "changes", "stays as it is")
    rows = tuple(
        (number, each.name, each.error, each.predicted_seconds * 1e3)
        + (_changes(each, exact), _join_counts(x.cause for x in each.excluded.values()))
        for number, each in enumerate(frontier.variants, 1)
    )
    title = f"error against predicted time, budget {frontier.budget:.3g}"
    return [
        Heading(f"Precision {frontier.chosen.name}"),
        Note((str(frontier), *frontier.refused)),
        Points(title, "ms in kernels", points, frontier.budget, chosen),
        Table(head, rows, note=f"chosen: {frontier.chosen.name}"),
    ]


def _changes(variant: Variant, exact: float) -> str:
    """Describe the products that a precision changes, and the predicted saving."""
    saved = f", {seconds(exact - variant.predicted_seconds)} less" if variant.operators else ""
    return _join_counts(each.name for each in variant.operators) + saved


def _join_counts(texts: Iterable[str]) -> str:
    return ", ".join(f"{count} {text}" for text, count in Counter(texts).most_common())


def show_allocation(tuning: Tuning) -> Code:
    """Print the allocation of trials over time, a row a task (GTA, Figure 1)."""
    width = max(1, math.ceil(len(tuning.slices) / _COLUMNS))
    columns = [tuning.slices[n : n + width] for n in range(0, len(tuning.slices), width)]
    rows = [
        ("", "task", "slices in order" + (f", {width} a column" if width > 1 else ""), "trials")
    ]
    for number, task in enumerate(tuning.order):
        shares = (sum(step.task == number for step in own) / len(own) for own in columns)
        marks = "".join(_SHADES[math.ceil(share * (len(_SHADES) - 1))] for share in shares)
        rows.append((str(number + 1), f"{task.count} x {task.kind}", marks, str(task.trials)))
    return Code("\n".join(align_columns(rows, [True, False, False, True])))


def _contest(run: Exploration) -> Table:
    compared = [each for each in run.intrinsics if each.compared]
    rows = tuple(
        (each.intrinsic.name, each.trials)
        + (each.seconds * 1e3 if math.isfinite(each.seconds) else "", each.reason)
        for each in compared
    )
    uncompared = len(run.intrinsics) - len(compared)
    note = f"chosen: {run.intrinsic.name}" + (
        f"; {uncompared} others were not compared" if uncompared else ""
    )
    return Table(("instruction", "trials", "best ms", "why left out"), rows, note=note)


def _show_mappings(run: Exploration) -> Table:
    # Mappings of several instructions may have one name.
    tried: dict[tuple[str, ...], list[Trial]] = {}
    several = len(run.intrinsics) > 1
    for trial in run.trials:
        unit = (trial.mapping.intrinsic.name,) if several else ()
        tried.setdefault((*unit, trial.mapping.name), []).append(trial)
    best = {name: min(trials, key=lambda trial: trial.seconds) for name, trials in tried.items()}
    rows = tuple(
        (
            *name,
            len(tried[name]),
            run.model_seconds(trial) or "",
            trial.seconds,
            str(trial.schedule),
        )
        for name, trial in sorted(best.items(), key=lambda item: item[1].seconds)
    )
    head = ("mapping", "trials", "predicted s", "best s", "schedule of the best")
    return Table(
        ("instruction", *head) if several else head,
        rows,
        note="what each mapping reached",
        sortable=True,
    )


def candidate(candidate: Candidate) -> list[Block]:
    """Show mapping and schedule."""
    values = tuple((name, str(value)) for name, value in candidate.schedule.values)
    title = f"Candidate {candidate.mapping.name}"
    note = f"{candidate.mapping.operator.name} on {candidate.mapping.intrinsic.name}"
    blocks: list[Block] = [Heading(title, note), Code(str(candidate.mapping))]
    return [*blocks, Table(("schedule variable", "value"), values)]


def trial(trial: Trial) -> list[Block]:
    """Show a candidate with its predicted and its measured time."""
    measurement = trial.measurement
    loops = measurement is not None and measurement.implementation == "generic"
    lines = [] if loops else [f"predicted {seconds(trial.predicted)}"]
    if measurement is None:
        lines.append("not run")
    elif measurement.failure:
        lines.append(f"failed ({measurement.failure}): {measurement.message}")
    else:
        lines.append(
            f"measured {seconds(measurement.seconds)} ± {measurement.noise:.1%}, "
            f"{measurement.implementation}"
        )
        lines.append(f"{measurement.verified_elements:,} elements checked against NumPy")
    note = Note(tuple(lines), bad=measurement is not None and bool(measurement.failure))
    return [Heading(f"Trial {trial.number}"), note, *candidate(trial.candidate)]


def schedules(space: ScheduleSpace) -> list[Block]:
    """Show variables and their values."""
    rows = []
    for name, domain in space.variables.items():
        more = " …" if len(domain) > _VALUES else ""
        rows.append((name, len(domain), ", ".join(map(str, domain[:_VALUES])) + more))
    where = f" on {space.machine.name}" if space.machine is not None else ""
    note = f"{space.size:,} assignments, {len(space.csp.constraints)} constraints"
    return [
        Heading(f"Schedules of {space.mapping.name}{where}", note),
        Table(("variable", "values", ""), tuple(rows)),
    ]


def kernel(kernel: Kernel) -> list[Block]:
    """Show the compiled candidate, and its source."""
    note = f"{kernel.implementation}, inputs {', '.join(kernel.inputs)}"
    return [Heading(f"Kernel {kernel.candidate.mapping.name}", note), Code(kernel.source)]


def machine(machine: object) -> list[Block]:
    """Show cores, levels and rates."""
    first, *details = str(machine).split("\n")
    return [Heading(f"Machine {first}"), Code("\n".join(details))]
