"""Failure drills: what can go wrong in a tuning run is made to go wrong.

Each drill returns figures; together they are what ``make drills`` writes. Only
the workload is a fake: processes, pipes, signals, limits and files are real.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import statistics
import tempfile
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from amos.errors import AmosError, RecordError
from amos.explore import Exploration, MeasureOptions, explore
from amos.records import Record, Records
from amos.records.salvage import salvage
from tests.support.fake import INTRINSIC, OPERATOR, FakeExecutor, overhead_of
from tests.support.misbehaviour import HOSTILE

__all__ = [
    "damage_drill",
    "full_disk_drill",
    "hostile_drill",
    "kill_drill",
    "leftovers",
    "living",
    "overhead_drill",
    "writers_drill",
]

#: Marks every process of a drill in its environment.
_MARK = "AMOS_DRILL"


def _run(path: Path | None, trials: int, seed: int = 0, report: int | None = None) -> Exploration:
    """A whole exploration; with ``report`` each written trial is told through a pipe."""

    def tell(trial: Any, _: int) -> None:
        if report is not None:
            os.write(report, b"%d\n" % trial.number)

    return explore(
        OPERATOR,
        INTRINSIC,
        trials=trials,
        seed=seed,
        method="random",
        rule="gather",
        records=path,
        measure=MeasureOptions(executor=FakeExecutor()),
        progress=tell,
    )


def kill_drill(kills: int, folder: Path, trials: int = 40, seed: int = 0) -> dict[str, int]:
    """SIGKILL at random instants of a run, each followed by the same command.

    Args:
        kills: how many runs are killed.
        folder: where record files may be made.
        trials: of each run.
        seed: of the instants.
    """
    rng = np.random.default_rng(seed)
    whole = _run(folder / "whole.db", trials)
    # Timed the second time, when everything is loaded as it is in a forked process.
    start = time.monotonic()
    _run(folder / "again.db", trials)
    seconds_per_trial = (time.monotonic() - start) / trials
    counts = Counter(kills=kills, lost_records=0, duplicate_records=0, corrupt_files=0)
    counts["completed_resumes"] = counts["interrupted"] = 0
    for number in range(kills):
        path = folder / f"killed-{number}.db"
        # So many trials later, and a little: a busy machine is slower at one time than another.
        whole_trials, fraction = divmod(float(rng.uniform(0, trials)), 1)
        reported = _killed_run(path, trials, int(whole_trials), fraction * seconds_per_trial)
        counts["interrupted"] += len(reported) < trials
        try:
            with Records(path) as records:
                rows = records.all()
        except RecordError:
            counts["corrupt_files"] += 1
            continue
        written = {row.number for row in rows if row.phase == "search"}
        counts["lost_records"] += len(reported - written)
        # Of what was written but not reported there may be the one in flight.
        counts["duplicate_records"] += _duplicates(rows)
        again = _run(path, trials)
        with Records(path) as records:
            counts["duplicate_records"] += _duplicates(records.all())
        same = again.best.candidate == whole.best.candidate and again.history == whole.history
        counts["completed_resumes"] += same and again.replayed == len(written)
    return dict(counts)


def _killed_run(path: Path, trials: int, after: int, delay: float) -> set[int]:
    """Trials that a run had reported as written when it was killed.

    Args:
        path: record file of the run.
        trials: of the run.
        after: trials that it reports first.
        delay: seconds from then on.
    """
    reader, writer = os.pipe()
    child = _forked(lambda: _run(path, trials, report=writer))
    os.close(writer)
    with os.fdopen(reader) as lines:
        reported = [line for _, line in zip(range(after), lines, strict=False)]
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        reported += lines
    return {int(line) for line in reported if line.endswith("\n")}


def _forked(work: Callable[[], object]) -> int:
    """Run something in a forked process; status 0 if it returns, 2 for an error of ours."""
    with warnings.catch_warnings():
        # NumPy's idle threads; its library knows what to do about a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    status = 1
    # What waits for threads when it is deleted, as sessions of onnxruntime do, waits forever here.
    gc.freeze()
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        work()
        status = 0
    except AmosError:
        status = 2
    finally:
        os._exit(status)


def _duplicates(records: list[Record]) -> int:
    seen = Counter((r.key, r.candidate, r.phase, r.attempt) for r in records)
    return sum(n - 1 for n in seen.values())


def hostile_drill(
    candidates: int, hostile: int, folder: Path, timeout: float = 0.5, seed: int = 0
) -> dict[str, Any]:
    """A run in which some candidates crash, hang, allocate, lie, or raise.

    Args:
        candidates: trials of the run.
        hostile: how many of them are hostile; every kind occurs in turn.
        folder: where a record file may be made.
        timeout: seconds that one candidate may take.
        seed: of which ones are hostile.
    """
    rng, kinds = np.random.default_rng(seed), list(HOSTILE)
    chosen = sorted(rng.choice(candidates, hostile, replace=False).tolist())
    what = {number: kinds[n % len(kinds)] for n, number in enumerate(chosen)}
    executor = FakeExecutor(what, timeout)
    path = folder / "hostile.db"
    with _marked() as mark:
        explore(
            OPERATOR,
            INTRINSIC,
            trials=candidates,
            method="random",
            rule="gather",
            records=path,
            measure=MeasureOptions(executor=executor),
        )
        remaining = leftovers(mark)
    with Records(path, readonly=True) as records:
        rows = [row for row in records.all() if row.phase == "search"]
    expected = {n: HOSTILE[how] for n, how in what.items()}
    wrong = [r for r in rows if r.failure != expected.get(r.number, "")]
    return {
        "candidates": len(rows),
        "hostile_candidates": hostile,
        "failures": dict(Counter(row.failure for row in rows if row.failure)),
        "unclassified": len(wrong) + candidates - len(rows),
        "leftover_processes": len(remaining),
        "overhead_ms": 1e3 * statistics.median(executor.overheads),
    }


def overhead_drill(candidates: int) -> dict[str, float]:
    """What isolation adds to building, checking and timing real kernels, in milliseconds."""
    from amos.explore.objective import Problem
    from amos.explore.random_search import RandomSearch
    from amos.intrinsics import get
    from amos.machines import get as machine
    from amos.mapping import enumerate_mappings
    from amos.measure import Runner, Task

    mappings = list(enumerate_mappings(OPERATOR, get(INTRINSIC), rule="access"))
    problem = Problem(mappings, machine("xeon_6240"))
    drawn = RandomSearch(problem, np.random.default_rng(0)).ask(candidates + 1)
    beyond, work = [], []
    with Runner(60.0) as runner:
        # The first one waits for TVM to be loaded, as without isolation.
        runner.measure(Task(drawn[0], 3))
        for candidate in drawn[1:]:
            measurement, seconds = overhead_of(partial(runner.measure, Task(candidate, 3)))
            work.append(measurement.work_seconds)
            beyond.append(seconds)
    return {
        "overhead_ms_real": 1e3 * statistics.median(beyond),
        "work_ms_real": 1e3 * statistics.median(work),
    }


def full_disk_drill(folder: Path, size: int = 128 << 10) -> dict[str, int]:
    """A run whose files may not grow beyond ``size`` bytes; what it reported is there."""
    import resource

    path = folder / "full.db"
    reader, writer = os.pipe()

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        _run(path, 400, report=writer)

    child = _forked(work)
    os.close(writer)
    with os.fdopen(reader) as lines:
        reported = {int(line) for line in lines if line.endswith("\n")}
    _, status = os.waitpid(child, 0)
    with Records(path) as records:
        written = {row.number for row in records.all()}
    return {
        "full_disk_reported": len(reported),
        "full_disk_lost": len(reported - written),
        "full_disk_told": int(os.waitstatus_to_exitcode(status) == 2),
    }


def writers_drill(folder: Path, trials: int = 30) -> dict[str, int]:
    """Two runs of different seeds and two of the same, all at once on one file."""
    path = folder / "shared.db"
    seeds = (1, 2, 3, 3)
    children = [_forked(lambda seed=seed: _run(path, trials, seed)) for seed in seeds]  # type: ignore[misc]
    status = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    with Records(path, readonly=True) as records:
        rows = records.all()
    counts = Counter(row.seed for row in rows if row.phase == "search")
    missing = sum(trials - counts[seed] for seed in set(seeds))
    return {
        "writers_failed": sum(code != 0 for code in status),
        "writers_missing": missing,
        "writers_duplicates": _duplicates(rows),
    }


def damage_drill(folder: Path, trials: int = 60) -> dict[str, Any]:
    """Cut and overwritten files are refused, and salvaged as far as they go."""
    whole = folder / "undamaged.db"
    _run(whole, trials)
    with Records(whole) as records:
        expected = {row.digest for row in records.all()}
    data = whole.read_bytes()
    beginning, middle = len(data) // 8, len(data) // 2
    damaged = {
        "truncated": data[:middle],
        "corrupted": data[:beginning] + os.urandom(8192) + data[beginning + 8192 :],
        "headless": b"\0" * 100 + data[100:],
    }
    result: dict[str, Any] = {"damaged_refused": 0, "salvage": {}}
    for name, content in damaged.items():
        path = folder / f"{name}.db"
        path.write_bytes(content)
        try:
            with Records(path) as records:
                records.all()
        except RecordError:
            result["damaged_refused"] += 1
        unchanged = path.read_bytes() == content
        try:
            salvaged = salvage(path, folder / f"{name}-salvaged.db")
        except RecordError as error:
            result["salvage"][name] = {"said": str(error)}
            continue
        genuine = {row.digest for row in salvaged.records.values()} <= expected
        result["salvage"][name] = {
            "of": len(expected),
            "salvaged": len(salvaged.records),
            "said": str(salvaged),
            "genuine": genuine,
            "left_alone": unchanged,
        }
    return result


@contextlib.contextmanager
def _marked() -> Iterator[str]:
    """Every process that is started inside carries a mark in its environment."""
    mark = uuid.uuid4().hex
    os.environ[_MARK] = mark
    try:
        yield mark
    finally:
        del os.environ[_MARK]


def leftovers(mark: str, seconds: float = 30.0) -> list[int]:
    """Living processes with that mark after at most ``seconds``, without this one."""
    end = time.monotonic() + seconds
    while (processes := living(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return processes


def living(mark: str) -> list[int]:
    """Living processes with that mark, without this one."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        with contextlib.suppress(OSError):
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
            named = f"{_MARK}={mark}".encode() in path.read_bytes()
            if pid != os.getpid() and named and state not in "ZX":
                lines.append(pid)
    return lines


def run_all(kills: int, candidates: int, hostile: int) -> dict[str, Any]:
    """Every drill, and the figures that are promised."""
    folder = Path(tempfile.mkdtemp(prefix="amos-drills-"))
    # A place of its own for temporary files, where whatever is left is ours.
    private = folder / "temporary"
    private.mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(private)
    try:
        with _marked() as mark:
            figures: dict[str, Any] = kill_drill(kills, folder)
            killed = leftovers(mark)
        figures |= hostile_drill(candidates, hostile, folder)
        figures["leftover_processes"] += len(killed)
        figures |= overhead_drill(20)
        figures |= full_disk_drill(folder)
        figures |= writers_drill(folder)
        figures |= damage_drill(folder)
        figures["leftover_files"] = len(list(private.iterdir()))
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)
    figures["overhead_ms"] = max(figures["overhead_ms"], figures["overhead_ms_real"])
    return figures
