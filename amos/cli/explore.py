"""``amos explore``: search mapping and schedule, then compile, check and time the best."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from amos.cli.fixing import Fix, read_fixes
from amos.cli.options import (
    AsJson,
    Commute,
    Constants,
    Dtypes,
    Extents,
    IntrinsicFiles,
    IntrinsicName,
    Layout,
    MachineName,
    OperatorText,
    RuleName,
    Shapes,
    read_intrinsic,
    read_operator,
)
from amos.cli.output import console, print_json, print_line, print_table

if TYPE_CHECKING:
    from amos.explore import Exploration, Problem, Trial

__all__ = ["explore_command"]

#: Mappings listed with the best that each one reached.
_LISTED = 8


def explore_command(
    operator: OperatorText,
    intrinsic: IntrinsicName = None,
    machine: MachineName = "host",
    trials: Annotated[int, typer.Option(help="How many candidates to measure.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the random generator.")] = 0,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Search method: ga, cga, cga1, sa, random, ga_sr, ga_sat, ga_mo, exhaustive.",
        ),
    ] = "ga",
    fix: Fix = None,
    divisors: Annotated[
        bool, typer.Option("--divisors", help="Only register tiles that divide their loops.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option(help="End after this many seconds of searching.")
    ] = None,
    stagnation: Annotated[
        int | None, typer.Option(metavar="N", help="End after N trials without progress.")
    ] = None,
    epsilon: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of candidates drawn by chance.")
    ] = 0.1,
    rule: Annotated[
        RuleName, typer.Option("--rule", help="Which mappings to search.")
    ] = RuleName.access,
    commute: Commute = False,
    records: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep every trial in this SQLite file.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that one candidate may take.")
    ] = 30.0,
    implementation: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="native or generic; native where the CPU can."),
    ] = None,
    files: IntrinsicFiles = None,
    extent: Extents = None,
    dtype: Dtypes = None,
    shape: Shapes = None,
    layout: Layout = None,
    constant: Constants = None,
    as_json: AsJson = False,
) -> None:
    """Search mapping and schedule; compile, check and time the best kernel."""
    import amos

    op = read_operator(operator, extent, dtype, shape, layout, constant)
    unit = read_intrinsic(intrinsic, files)

    def announce(problem: Problem) -> None:
        if not as_json:
            # With the dtypes that the intrinsic filled in.
            print_line(f"operator   {op.name}\n  compute  {problem.mappings[0].operator}")
            print_line(f"intrinsic  {unit}\n")

    with _progress(trials, quiet=as_json) as tell:
        result = amos.explore(
            op,
            unit,
            machine=machine,
            trials=trials,
            seed=seed,
            method=method,
            rule=rule.value,
            commute=commute,
            records=records,
            timeout=timeout,
            implementation=implementation,
            fix=read_fixes(fix),
            tiling="divisors" if divisors else "hardware",
            seconds=seconds,
            stagnation=stagnation,
            epsilon=epsilon,
            progress=tell,
            announce=announce,
        )
    if as_json:
        print_json(result.to_dict())
    else:
        _report(result, rule.value)


@contextlib.contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[Trial, int], None] | None]:
    """A bar on the terminal; lines are kept out of pipes, where they would be noise."""
    if quiet:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    screen = console(stderr=True)
    bar = Progress(
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[best]}"),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    best, failed = float("inf"), 0
    with bar:
        task = bar.add_task("", total=total, best="probing the machine")

        def tell(trial: Trial, _: int) -> None:
            nonlocal best, failed
            best = min(best, trial.seconds)
            failed += trial.measurement is not None and not trial.measurement.ok
            text = f"best {best * 1e3:.4f} ms" + (f", {failed} failed" if failed else "")
            bar.update(task, advance=1, best=text)

        yield tell


def _report(result: Exploration, rule: str) -> None:
    """What was found, and why it is what it is."""
    counts = ", ".join(f"{name} {count}" for name, count in result.counts.items())
    print_line(f"mappings   {counts}  (by rule)")
    print_line(
        f"searched   {result.searched} under rule {rule!r}, {result.space_size:,} assignments of "
        f"mapping and schedule, {len(result.trials)} tried by {result.method!r}, seed {result.seed}"
    )
    for kind, count in result.failures.items():
        print_line(f"failed     {count} x {kind}")
    best = result.best
    print_line(f"\nwinner     {best.mapping}")
    print_line(f"schedule   {best.schedule}")
    if best.measurement is None:
        print_line(f"predicted  {best.predicted * 1e3:.4f} ms on {result.machine.name} (not run)")
        print_line(f"speed      {_speed(result)} peak")
    else:
        print_line(f"predicted  {best.predicted * 1e3:.4f} ms")
        print_line(
            f"measured   {best.seconds * 1e3:.4f} ms, median of {len(best.measurement.times)}"
        )
        print_line(f"speed      {_speed(result)} measured peak of {result.machine.cores} cores")
        print_line(
            f"checked    {best.measurement.verified_elements:,} elements against NumPy, "
            f"largest difference {best.measurement.max_difference:g}"
        )
        if best.measurement.implementation == "generic":
            print_line(_generic(result))
    _explain(result)


def _speed(result: Exploration) -> str:
    return (
        f"{result.tops:.3f} Top/s, {result.peak_fraction:.1%} of the {result.peak_tops:.3f} Top/s"
    )


def _generic(result: Exploration) -> str:
    needed = set(result.intrinsic.requires) - set(result.machine.features)
    why = f"this CPU lacks {', '.join(sorted(needed))}" if needed else "as asked"
    return f"note       compiled through the intrinsic's generic implementation: {why}"


def _explain(result: Exploration) -> None:
    if result.prediction is None:
        return
    print_line(f"bound by   {result.prediction.bound}\n")
    print_table(
        ["level", "trips", "compute ms", "read ms", "write ms"],
        [
            [row.level, row.trips, row.compute * 1e3, row.read * 1e3, row.write * 1e3]
            for row in result.prediction.rows
        ],
    )
    reached: dict[str, Trial] = {}
    for trial in sorted(result.trials, key=lambda t: t.seconds):
        reached.setdefault(trial.mapping.name, trial)
    print_table(
        ["mapping tried", "predicted ms", "best ms", "schedule"],
        [
            [name, trial.predicted * 1e3, trial.seconds * 1e3, str(trial.schedule)]
            for name, trial in list(reached.items())[:_LISTED]
        ],
    )
