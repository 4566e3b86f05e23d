"""Heron, Table 10 and Figure 14: the time that a search takes, and its parts.

The paper tunes five operators for Tensor Cores with 2,000 measurements each. Here every
candidate is compiled, checked and timed on this CPU, for VNNI (DL Boost in the paper), with fewer
measurements. AutoTVM and AMOS are their search methods on our space, ``sa`` and ``ga``; no method
sees the performance model.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from amos import intrinsics, machines, operators
from amos.errors import UnknownNameError
from amos.explore.methods import method as find_method
from amos.explore.objective import Problem
from amos.explore.options import MeasureOptions, check_run
from amos.ir import Operator
from amos.mapping import enumerate_mappings
from amos.measure import Runner, Task

#: Minutes for 2,000 trials in the paper's Table 10, by operator and compiler.
PAPER_MINUTES = {
    "GEMM": {"AutoTVM": 91, "AMOS": 96, "Heron": 92},
    "BMM": {"AutoTVM": 90, "AMOS": 97, "Heron": 90},
    "Conv1D": {"AutoTVM": 98, "AMOS": 87, "Heron": 56},
    "Conv2D": {"AutoTVM": 97, "AMOS": 91, "Heron": 90},
    "Conv3D": {"AutoTVM": 105, "AMOS": 147, "Heron": 97},
}
PAPER_TRIALS = 2000
#: Mean shares of Heron's time in the paper's Figure 14; learning is said to take less than 1 %.
PAPER_SHARES = {"search": 0.23, "measurement": 0.76, "learning": 0.01}
#: Our method for each compiler of the table.
METHODS = {"AutoTVM": "sa", "AMOS": "ga", "Heron": "cga"}

_INTRINSIC = "vnni_dpbusd_m16k4_u8_s8_s32"
_BATCH = 8
_TIMEOUT_SECONDS = 60.0
#: Three cases of each operator: products and 2-D convolutions of Heron's Table 9 (G3 to G5; C1,
#: C4 and C5 at batch 1), others of our own, as the paper prints none.
_CASES: dict[str, tuple[str, tuple[dict[str, int], ...]]] = {
    "GEMM": (
        "gemm",
        (dict(m=32, n=1000, k=2048), dict(m=32, n=4096, k=4096), dict(m=32, n=1000, k=4096)),
    ),
    "BMM": (
        "bmm",
        (
            dict(b=12, m=128, n=64, k=128),
            dict(b=12, m=128, n=128, k=64),
            dict(b=8, m=256, n=64, k=64),
        ),
    ),
    "Conv1D": (
        "conv1d",
        (
            dict(p=256, c=64, k=128, r=3),
            dict(p=128, c=128, k=256, r=1),
            dict(p=64, c=256, k=256, r=5),
        ),
    ),
    "Conv2D": (
        "conv2d",
        (
            dict(p=56, q=56, c=64, k=64, r=1, s=1),
            dict(p=7, q=7, c=512, k=512, r=3, s=3),
            dict(p=14, q=14, c=256, k=256, r=3, s=3),
        ),
    ),
    "Conv3D": (
        "conv3d",
        (
            dict(d=8, p=28, q=28, c=16, k=32, t=3, r=3, s=3),
            dict(d=8, p=14, q=14, c=32, k=64, t=3, r=3, s=3),
            dict(d=16, p=14, q=14, c=64, k=64, t=1, r=1, s=1),
        ),
    ),
}
#: Channels last, so that neighbours in memory are summed up by one instruction.
_LAYOUTS = {"Conv1D": "NHC", "Conv2D": "NHWC", "Conv3D": "NDHWC"}


@dataclass(frozen=True)
class SearchTime:
    """Wall seconds of one search, by activity.

    Attributes:
        trials: candidates that were measured.
        search: choosing them: the solver, crossover and mutation.
        learning: training the cost model on their times; 0 for a method without one.
        measurement: compiling, checking and timing them.
        best: seconds of the fastest.
        failed: how many did not run, or were wrong.
    """

    trials: int
    search: float
    learning: float
    measurement: float
    best: float
    failed: int

    @property
    def seconds(self) -> float:
        """Seconds of the whole search."""
        return self.search + self.learning + self.measurement

    @property
    def shares(self) -> dict[str, float]:
        """Part of the time that each activity takes, as in Figure 14."""
        parts = {"search": self.search, "measurement": self.measurement, "learning": self.learning}
        return {name: seconds / self.seconds for name, seconds in parts.items()}


@dataclass(frozen=True)
class HeronTable10Row:
    """One operator: the paper's minutes by compiler, and times of our searches by method."""

    operator: str
    paper: dict[str, int]
    times: dict[str, SearchTime]


@dataclass(frozen=True)
class HeronFig14Row:
    """One case of an operator, from 1 to 3, searched by Heron's method."""

    operator: str
    case: int
    statement: str
    time: SearchTime


#: Told the searches that are done, all of them, and the one that comes next.
Progress = Callable[[int, int, str], None]


def heron_table10(
    trials: int = 40, names: Sequence[str] = (), seed: int = 0, progress: Progress | None = None
) -> list[HeronTable10Row]:
    """Search the first case of each operator by each method, and say how long it takes."""
    selected = _select(trials, names, seed)
    jobs = [(name, compiler) for name in selected for compiler in METHODS]
    times: dict[str, dict[str, SearchTime]] = {name: {} for name in selected}
    with _start_runner() as runner:
        for number, (name, compiler) in enumerate(jobs):
            if progress is not None:
                progress(number, len(jobs), f"{name} {METHODS[compiler]}")
            operator = _operator(name, 0)
            times[name][compiler] = time_search(operator, METHODS[compiler], trials, seed, runner)
    return [HeronTable10Row(name, PAPER_MINUTES[name], times[name]) for name in selected]


def heron_fig14(
    trials: int = 40, names: Sequence[str] = (), seed: int = 0, progress: Progress | None = None
) -> list[HeronFig14Row]:
    """Divide the time of Heron's method into its parts, for three cases of each operator."""
    selected = _select(trials, names, seed)
    jobs = [(name, case) for name in selected for case in range(len(_CASES[name][1]))]
    rows = []
    with _start_runner() as runner:
        for number, (name, case) in enumerate(jobs):
            if progress is not None:
                progress(number, len(jobs), f"{name} {case + 1}")
            operator = _operator(name, case)
            measured = time_search(operator, METHODS["Heron"], trials, seed, runner)
            rows.append(HeronFig14Row(name, case + 1, str(operator), measured))
    return rows


def time_search(
    operator: Operator, method: str, trials: int, seed: int, runner: Runner
) -> SearchTime:
    """Search a product of bytes by measurements alone, with a clock at each step."""
    mappings = list(enumerate_mappings(operator, intrinsics.get(_INTRINSIC)))
    machine = machines.get("host")  # measured once, before any search
    start = time.perf_counter()
    problem = Problem(mappings, machine)
    search = find_method(method)(problem, np.random.default_rng(seed))
    spent = {"search": time.perf_counter() - start, "measurement": 0.0, "learning": 0.0}
    seconds: list[float] = []
    while len(seconds) < trials:
        clock = [time.perf_counter()]
        batch = search.ask(min(_BATCH, trials - len(seconds)))
        clock.append(time.perf_counter())
        if not batch:
            break
        measured = [runner.measure(Task(candidate)).seconds for candidate in batch]
        clock.append(time.perf_counter())
        search.tell(list(zip(batch, measured, strict=True)))
        clock.append(time.perf_counter())
        seconds += measured
        for activity, (start, end) in zip(spent, itertools.pairwise(clock), strict=True):
            spent[activity] += end - start
    best, failed = min(seconds, default=math.inf), sum(map(math.isinf, seconds))
    return SearchTime(trials=len(seconds), best=best, failed=failed, **spent)


def mean_ratios(minutes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the geometric mean of Heron's time over each rival's, as the paper computes it."""
    return {
        rival: math.exp(float(np.mean([math.log(row["Heron"] / row[rival]) for row in minutes])))
        for rival in METHODS
        if rival != "Heron"
    }


def _start_runner() -> Runner:
    """Start a runner with one search, so that the first timed search does not include the start."""
    runner = Runner(_TIMEOUT_SECONDS)
    time_search(_operator("BMM", 0), METHODS["Heron"], 1, 0, runner)
    return runner


def _select(trials: int, names: Sequence[str], seed: int) -> list[str]:
    check_run(trials, seed, MeasureOptions())
    for name in names:
        if name not in _CASES:
            raise UnknownNameError("operator of Heron's Table 10", name, _CASES)
    return list(dict.fromkeys(names or _CASES))


def _operator(name: str, case: int) -> Operator:
    kind, cases = _CASES[name]
    layout = {"layout": _LAYOUTS[name], "n": 1} if name in _LAYOUTS else {}
    return operators.get(kind, dtype="u8s8", **cases[case], **layout)
