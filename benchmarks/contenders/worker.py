"""One contender in a process of its own: requests on standard input, answers as JSON lines.

Each family of contenders keeps its own process, so that no thread pool meets another;
a process waits for its next request without running. What libraries print goes to
standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", str(len(os.sched_getaffinity(0))))
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from amos.validate import evaluate
from contenders import amos_, metaschedule, onednn, peaks, pytorch
from contenders.requests import serve
from contenders.workloads import Workload, find

#: Seconds that one timing spans, and calls that come before it.
SPAN, WARM = 0.005, 3

Timed = Callable[[int], float]


class Worker:
    """Tunes, loads and times; loaded are the contenders of one workload at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loaded: dict[str, tuple[Timed, int]] = {}
        self.data: dict[str, tuple[dict[str, np.ndarray], np.ndarray]] = {}

    def tune(self, workload: str, contender: str, trials: int) -> dict[str, Any]:
        work = find(workload)
        if contender == "metaschedule":
            return metaschedule.tune(work, trials, self.folder)
        return amos_.tune(work, contender, trials, self.folder)

    def load(self, workload: str, contender: str, tuned: dict[str, Any] | None) -> list[str]:
        """Names of what can be timed, each checked against NumPy first."""
        work = find(workload)
        inputs, expected = self._data(work)
        if contender.startswith("peak"):
            found = peaks.load(work, contender)
        elif contender.startswith("onednn"):
            found = onednn.load(work, contender.rpartition("_")[2], inputs, expected)
        elif contender.startswith("pytorch"):
            found = pytorch.load(work, inputs, expected)
        elif contender == "metaschedule":
            assert tuned is not None
            found = metaschedule.load(work, tuned, inputs, expected, self.folder)
        else:
            assert tuned is not None
            found = amos_.load(work, tuned, inputs, expected)
        made = []
        for kind, run in found.items():
            run(WARM)
            once = max(run(WARM), 1e-7)
            name = f"{contender}/{(tuned or {}).get('tried', 0)}/{kind}"
            self.loaded[name] = run, max(1, round(SPAN / once))
            made.append(name)
        return made

    def time(self, name: str) -> float:
        """Seconds of one run, after a few that bring caches and threads back."""
        run, count = self.loaded[name]
        run(WARM)
        return run(count)

    def drop(self) -> None:
        self.loaded.clear()
        self.data.clear()

    def _data(self, work: Workload) -> tuple[dict[str, np.ndarray], np.ndarray]:
        if work.name not in self.data:
            inputs = work.inputs(np.random.default_rng(0))
            self.data = {work.name: (inputs, evaluate(work.op, inputs))}
        return self.data[work.name]


if __name__ == "__main__":
    serve(Worker)
