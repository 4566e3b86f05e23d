"""``amos explore``: search mapping and schedule, then compile, check and time the best."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import amos
from amos.cli import options
from amos.cli.chains import explore_chain, is_chain, read_tiles
from amos.cli.energy import print_energy
from amos.cli.gpu_records import check_target, export_top
from amos.cli.output import (
    milliseconds,
    notes_of_an_interrupt,
    print_checked,
    print_json,
    print_line,
    print_table,
    print_warning,
)

if TYPE_CHECKING:
    from amos.explore import Exploration, Problem
    from amos.explore.options import MeasureOptions, SearchOptions
    from amos.intrinsics import Intrinsic
    from amos.ir import Operator
    from amos.records import Trial
    from amos.schedule import Tiling

#: Mappings listed with the best that each one reached.
_LISTED = 8

Objective = Annotated[
    str,
    typer.Option(
        "--objective",
        "--minimize",
        metavar="NAME",
        help="Minimize time; time,memory for the fastest at each size of its workspace; energy, or "
        "edp, energy times time, by the energies of the machine.",
    ),
]


@options.takes_operator
def explore_command(
    op: Operator,
    intrinsic: options.IntrinsicNames = None,
    machine: options.MachineName = "host",
    trials: options.Trials = None,
    seed: options.Seed = 0,
    method: options.MethodName = "ga",
    objective: Objective = "time",
    fix: options.Fix = None,
    tiling: options.TilingName = "hardware",
    stagnation: options.Stagnation = None,
    epsilon: options.Epsilon = 0.1,
    rule: options.Rule = "access",
    commute: options.Commute = False,
    records: options.RecordFile = None,
    timeout: options.Timeout = 30.0,
    memory: options.MemoryLimit = None,
    time_limit: options.TimeLimit = None,
    flush_cache: options.FlushCache = False,
    executor: options.ExecutorAddress = None,
    implementation: options.Implementation = None,
    files: options.IntrinsicFiles = None,
    export: options.ExportFolder = None,
    top: options.Top = 3,
    as_json: options.AsJson = False,
) -> None:
    """Search mapping and schedule; compile, check and time the best kernel.

    Without INTRINSIC all instructions of the machine compete for the trials.
    """
    if export is not None:
        check_target(machine)
    units = options.read_intrinsics(intrinsic, files)
    tiles = None
    if is_chain(op):
        tiles, fix = read_tiles(fix)
    search = _search(commute, fix, tiling, stagnation, epsilon, time_limit, objective)
    trials = search.default_trials if trials is None else trials
    basic = dict(machine=machine, trials=trials, seed=seed, method=method, rule=rule)
    measure = _measure(executor, implementation, timeout, memory, flush_cache)
    start = time.monotonic()
    if tiles is not None:
        basic |= dict(search=search, measure=measure, records=records, tiles=tiles)
        explore_chain(op, units, as_json, **basic)
        return
    result = _explore(op, units, as_json, records=records, search=search, measure=measure, **basic)
    _report(result, rule, time.monotonic() - start, as_json)
    for path in export_top(result, export, top) if export is not None else ():
        if not as_json:
            print_line(f"exported   {path}")


def _explore(
    op: Operator, units: str | Intrinsic | list[str] | None, quiet: bool, **options: Any
) -> Exploration:
    """Run the search; print its subject, and the result so far on Ctrl-C."""
    with notes_of_an_interrupt():
        return amos.explore(
            op,
            units,
            progress=not quiet,
            announce=None if quiet else _Announcement(),
            notify=print_warning,
            **options,
        )


def _search(
    commute: bool,
    fix: list[str] | None,
    tiling: str,
    stagnation: int | None,
    epsilon: float,
    time_limit: float | None,
    objective: str,
) -> SearchOptions:
    return amos.SearchOptions(
        commute=commute,
        fix=options.read_fixes(fix),
        tiling=cast("Tiling", tiling),
        stagnation=stagnation,
        epsilon=epsilon,
        time_limit=time_limit,
        objective=objective,
    )


def _measure(
    executor: str | None,
    implementation: str | None,
    timeout: float,
    memory: int | None,
    flush_cache: bool,
) -> MeasureOptions:
    from amos.machine.cpu import cpu

    # Bytes beyond all caches of this CPU.
    flushed = max((4 * cache.capacity for cache in cpu().caches), default=64 << 20)
    return amos.MeasureOptions(
        executor=executor,
        implementation=implementation,
        timeout=timeout,
        memory=None if memory is None else memory << 20,
        flush=flushed if flush_cache else 0,
    )


class _Announcement:
    """Prints the operator once, with the dtypes that the intrinsic filled in, and its mappings."""

    def __init__(self) -> None:
        self._operator = ""

    def __call__(self, problem: Problem) -> None:
        mapping = problem.mappings[0]
        operator = f"operator   {mapping.operator.name}\n  compute  {mapping.operator}"
        if operator != self._operator:
            print_line(operator)
        self._operator = operator
        print_line(f"intrinsic  {mapping.intrinsic}\n")


def _report(result: Exploration, rule: str, elapsed: float, as_json: bool) -> None:
    from amos._progress import clock
    from amos.explore.constants import constant_saving
    from amos.explore.progress import failures_text

    if as_json:
        print_json(result.to_dict())
        return
    counts = ", ".join(f"{name} {count}" for name, count in result.counts.items())
    print_line(f"mappings   {counts}  (by rule)")
    print_line(
        f"searched   {result.searched} under rule {rule!r}, {result.space_size:,} assignments of "
        f"mapping and schedule, {len(result.trials)} tried by {result.method!r}, seed {result.seed}"
    )
    replayed = f", {result.replayed} of them from the record" if result.replayed else ""
    failed = f", {failures_text(result.failures)}" if result.failures else ""
    print_line(f"trials     {len(result.trials)} in {clock(elapsed)}{replayed}{failed}")
    best, measured = result.best, result.best.measurement
    if len(result.intrinsics) > 1:
        _contest(result)
    print_line(f"\nwinner     {best.mapping}")
    print_line(f"schedule   {best.schedule}")
    where = "" if measured is not None else f" on {result.machine.name} (not run)"
    if (expected := result.model_seconds(best)) is not None:
        print_line(f"predicted  {expected * 1e3:.4f} ms{where}")
    if measured is not None:
        count = len(measured.times)
        times = f"median of {count}, ± {measured.noise:.1%}" if count > 1 else "timed once"
        if result.simulated:
            times = f"simulated, {best.seconds * result.machine.clock:,.0f} cycles"
        print_line(f"measured   {best.seconds * 1e3:.4f} ms, {times}")
    print_line(f"speed      {result.speed}")
    if result.bound_ratio is not None:
        print_line(
            f"least      {_least(result)}: the best has {result.bound_ratio:.3f} of the bound"
        )
    if result.certificate is not None:
        print_line(f"proven     {result.certificate}")
    if measured is not None:
        print_checked(measured)
    if result.note:
        print_line(f"note       {result.note}")
    if result.disturbance:
        print_line(f"disturbed  {result.disturbance}")
    if saving := constant_saving(best.candidate, result.machine):
        print_line(f"constant   {saving}")
    if result.front:
        _print_front(result)
    _explain(result)


def _print_front(result: Exploration) -> None:
    print_line("\nthe fastest at each size of its workspace")
    print_table(
        ["workspace KiB", "best ms", "mapping", "schedule"],
        [
            [result.memory_bytes(trial) / 1024, milliseconds(trial.seconds)]
            + [trial.mapping.name, str(trial.schedule)]
            for trial in result.front
        ],
    )


def _least(result: Exploration) -> str:
    """Describe the bounds of the objective and of the traffic."""
    from amos.explore.objective import TIME_AND_MEMORY

    assert result.least is not None
    assert result.bound is not None
    value = {
        "time": f"{result.bound * 1e3:.4f} ms",
        TIME_AND_MEMORY: f"{result.bound * 1e3:.4f} ms",
        "energy": f"{result.bound * 1e6:.4g} uJ",
        "edp": f"{result.bound:.4g} Js",
    }[result.objective]
    return f"{value}, {result.least.traffic_bytes / 1024:.1f} KiB from and to DRAM"


def _contest(result: Exploration) -> None:
    from amos.explore.contenders import reasons

    print_line(f"chosen     {result.intrinsic.name}\n")
    print_table(
        ["instruction", "mappings", "predicted ms", "trials", "best ms", "why not"],
        [
            [each.intrinsic.name, each.mappings, milliseconds(each.predicted), each.trials]
            + [milliseconds(each.seconds), each.reason]
            for each in result.intrinsics
            if each.compared
        ],
    )
    unasked = [each for each in result.intrinsics if not each.compared]
    for line in reasons([each for each in unasked if each.mappings]):
        print_line(line)
    if unmapped := sum(not each.mappings for each in unasked):
        print_line(f"{unmapped} others cannot compute it; amos map says why")


def _explain(result: Exploration) -> None:
    """Print the bound of the best candidate, and the other mappings."""
    if result.prediction is not None:
        print_line(f"bound by   {result.prediction.bound}\n")
        print_energy(result.prediction, result.machine)
        print_table(
            ["level", "trips", "compute ms", "read ms", "write ms"],
            [
                [row.level, row.trips, row.compute * 1e3, row.read * 1e3, row.write * 1e3]
                for row in result.prediction.rows
            ],
        )
    # Mappings of several instructions may have one name.
    several = len(result.intrinsics) > 1
    reached: dict[tuple[str, ...], Trial] = {}
    for trial in sorted(result.trials, key=lambda t: t.seconds):
        unit = (trial.mapping.intrinsic.name,) if several else ()
        reached.setdefault((*unit, trial.mapping.name), trial)
    print_table(
        [*(["instruction"] if several else []), "mapping tried"]
        + ["predicted ms", "best ms", "schedule"],
        [
            [*name, milliseconds(result.model_seconds(trial)), milliseconds(trial.seconds)]
            + [str(trial.schedule)]
            for name, trial in list(reached.items())[:_LISTED]
        ],
    )
