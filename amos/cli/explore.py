"""``amos explore``: search mapping and schedule, then compile, check and time the best."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from amos.cli.explore_options import (
    DivisorsOnly,
    Epsilon,
    ExecutorAddress,
    ExportFolder,
    FlushCache,
    Implementation,
    MemoryLimit,
    MethodName,
    RecordFile,
    Seed,
    Stagnation,
    TimeLimit,
    Timeout,
    Top,
    Trials,
)
from amos.cli.fixing import Fix, read_fixes
from amos.cli.gpu_records import check_target, export_top
from amos.cli.options import (
    AsJson,
    Commute,
    Constants,
    Dtypes,
    EpilogueText,
    Extents,
    IntrinsicFiles,
    IntrinsicName,
    Layout,
    MachineName,
    OperatorText,
    Rule,
    RuleName,
    Shapes,
    read_intrinsic,
    read_operator,
)
from amos.cli.output import print_json, print_line, print_table, print_warning

if TYPE_CHECKING:
    from amos.explore import Exploration, Problem
    from amos.explore.options import MeasureOptions, SearchOptions
    from amos.records import Trial

__all__ = ["explore_command"]

#: Mappings listed with the best that each one reached.
_LISTED = 8


def explore_command(
    operator: OperatorText,
    intrinsic: IntrinsicName = None,
    machine: MachineName = "host",
    trials: Trials = 64,
    seed: Seed = 0,
    method: MethodName = "ga",
    fix: Fix = None,
    divisors: DivisorsOnly = False,
    stagnation: Stagnation = None,
    epsilon: Epsilon = 0.1,
    rule: Rule = RuleName.access,
    commute: Commute = False,
    records: RecordFile = None,
    timeout: Timeout = 30.0,
    memory: MemoryLimit = None,
    time_limit: TimeLimit = None,
    flush_cache: FlushCache = False,
    executor: ExecutorAddress = None,
    implementation: Implementation = None,
    files: IntrinsicFiles = None,
    extent: Extents = None,
    dtype: Dtypes = None,
    shape: Shapes = None,
    layout: Layout = None,
    constant: Constants = None,
    epilogue: EpilogueText = None,
    export: ExportFolder = None,
    top: Top = 3,
    as_json: AsJson = False,
) -> None:
    """Search mapping and schedule; compile, check and time the best kernel."""
    import amos

    if export is not None:
        check_target(machine)
    op = read_operator(operator, extent, dtype, shape, layout, constant, epilogue)
    unit = read_intrinsic(intrinsic, files)
    search = _search(commute, fix, divisors, stagnation, epsilon, time_limit)
    measure = _measure(executor, implementation, timeout, memory, flush_cache)
    start = time.monotonic()
    with _notes_of_an_interrupt():
        result = amos.explore(
            op,
            unit,
            machine=machine,
            trials=trials,
            seed=seed,
            method=method,
            rule=rule.value,
            records=records,
            search=search,
            measure=measure,
            progress=not as_json,
            announce=None if as_json else _announce,
            notify=print_warning,
        )
    _print(result, rule.value, time.monotonic() - start, as_json)
    if export is not None:
        _export(result, export, top, quiet=as_json)


def _search(
    commute: bool,
    fix: list[str] | None,
    divisors: bool,
    stagnation: int | None,
    epsilon: float,
    time_limit: float | None,
) -> SearchOptions:
    from amos.explore.options import SearchOptions

    return SearchOptions(
        commute=commute,
        fix=read_fixes(fix),
        tiling="divisors" if divisors else "hardware",
        stagnation=stagnation,
        epsilon=epsilon,
        time_limit=time_limit,
    )


def _measure(
    executor: str | None,
    implementation: str | None,
    timeout: float,
    memory: int | None,
    flush_cache: bool,
) -> MeasureOptions:
    from amos.explore.options import MeasureOptions

    return MeasureOptions(
        executor=executor,
        implementation=implementation,
        timeout=timeout,
        memory=None if memory is None else memory << 20,
        flush=_cache_bytes() if flush_cache else 0,
    )


@contextlib.contextmanager
def _notes_of_an_interrupt() -> Iterator[None]:
    """What Ctrl-C leaves is told: the best so far, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        for note in getattr(stop, "__notes__", ()):
            print_warning(note)
        raise


def _print(result: Exploration, rule: str, elapsed: float, as_json: bool) -> None:
    if as_json:
        print_json(result.to_dict())
    else:
        _report(result, rule, elapsed)


def _export(result: Exploration, folder: Path, top: int, *, quiet: bool) -> None:
    for path in export_top(result, folder, top):
        if not quiet:
            print_line(f"exported   {path}")


def _announce(problem: Problem) -> None:
    """What is searched, with the dtypes that the intrinsic filled in."""
    mapping = problem.mappings[0]
    print_line(f"operator   {mapping.operator.name}\n  compute  {mapping.operator}")
    print_line(f"intrinsic  {mapping.intrinsic}\n")


def _cache_bytes() -> int:
    """Bytes that drive everything out of this CPU's caches."""
    from amos.machine.cpu import cpu

    return max((4 * cache.capacity for cache in cpu().caches), default=64 << 20)


def _report(result: Exploration, rule: str, elapsed: float) -> None:
    """What was found, and why it is what it is."""
    from amos._progress import clock
    from amos.explore.progress import failures_text

    counts = ", ".join(f"{name} {count}" for name, count in result.counts.items())
    print_line(f"mappings   {counts}  (by rule)")
    print_line(
        f"searched   {result.searched} under rule {rule!r}, {result.space_size:,} assignments of "
        f"mapping and schedule, {len(result.trials)} tried by {result.method!r}, seed {result.seed}"
    )
    replayed = f", {result.replayed} of them from the record" if result.replayed else ""
    failed = f", {failures_text(result.failures)}" if result.failures else ""
    print_line(f"trials     {len(result.trials)} in {clock(elapsed)}{replayed}{failed}")
    best = result.best
    print_line(f"\nwinner     {best.mapping}")
    print_line(f"schedule   {best.schedule}")
    if best.measurement is None:
        print_line(f"predicted  {best.predicted * 1e3:.4f} ms on {result.machine.name} (not run)")
        print_line(f"speed      {result.speed}")
    else:
        print_line(f"predicted  {best.predicted * 1e3:.4f} ms")
        print_line(
            f"measured   {best.seconds * 1e3:.4f} ms, median of {len(best.measurement.times)}, "
            f"± {best.measurement.noise:.1%}"
        )
        print_line(f"speed      {result.speed}")
        print_line(
            f"checked    {best.measurement.verified_elements:,} elements against NumPy, "
            f"largest difference {best.measurement.max_difference:g}"
        )
        if result.note:
            print_line(f"note       {result.note}")
    _explain(result)


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
