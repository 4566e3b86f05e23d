"""Kernels of a network's tasks, measured once, for `amos reproduce gta-fig8` to replay.

    taskset -c 0 python benchmarks/pool_tasks.py MODEL.onnx POOL.jsonl.gz [--trials 48]

Candidates are drawn as a search draws them, over all mappings, with a larger share by chance.
Each is built and checked as in a search, but timed by the clock of its thread, on one core, and
the shortest of many short runs counts: neighbours on the machine then hardly do. A task is kept
as soon as it is done, and the same command goes on with the next.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import amos
from amos.explore.options import MeasureOptions, SearchOptions
from amos.explore.setting import Setting
from amos.measure.executor import LocalExecutor
from amos.measure.messages import Context, Failure
from amos.measure.reference import References
from amos.measure.task import Task
from amos.network.candidates import best_predicted
from amos.records import Measurement
from amos.reproduce.pools import PooledTask, load, save

#: Share of the candidates that is drawn by chance; in a search a tenth.
CHANCE = 0.3
#: Short runs of a candidate, and seconds that one takes at the least.
RUNS, SHORT = 60, 3e-4


class _Quiet(Task):
    """A measurement by the clock of the thread."""

    def _times(
        self, kernel: Any, inputs: dict[str, np.ndarray], once: float, limit: float
    ) -> tuple[float, ...]:
        arguments = kernel.prepare(inputs)
        number, best = max(1, math.ceil(SHORT / once)), math.inf
        for _ in range(RUNS):
            start = time.thread_time()
            for _ in range(number):
                kernel.run(arguments)
            best = min(best, (time.thread_time() - start) / number)
        return (best,)


class Here(LocalExecutor):
    """Measures in this process, whose candidates are of the package's own making."""

    def __init__(self) -> None:
        super().__init__()
        self._context = Context(References(), lambda: None)

    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        for number, task in tasks:
            told = _Quiet(task.candidate).run(self._context)
            if isinstance(told, Failure):
                told = Measurement(failure=told.failure, message=told.message)
            yield number, told


def pooled(task: Any, workers: LocalExecutor, trials: int) -> PooledTask:
    """The candidates of a task."""
    search = SearchOptions(commute=True, epsilon=CHANCE)
    setting = Setting(
        operator=task.operator,
        machine="host",
        workers=workers,
        method="ga",
        seed=0,
        rule="access",
        search=search,
        measure=MeasureOptions(),
    )
    contest = setting.contest(setting.units(None), trials)
    problem = contest.winner.session.problem
    bound = problem.predict(best_predicted(problem)[0]).rows[0].compute
    done = [each for each in contest.run(trials) if math.isfinite(each.seconds)]
    names = list(dict.fromkeys((t.mapping.intrinsic.name, t.mapping.name) for t in done))
    return PooledTask(
        task=str(task.operator),
        kind=task.operator.name,
        weight=task.weight,
        operations=task.operator.operations,
        bound=float(f"{bound:.5g}"),
        mappings=tuple(names.index((t.mapping.intrinsic.name, t.mapping.name)) for t in done),
        predicted=tuple(float(f"{each.predicted:.5g}") for each in done),
        measured=tuple(float(f"{each.seconds:.5g}") for each in done),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("pool", type=Path)
    parser.add_argument("--trials", type=int, default=48)
    chosen = parser.parse_args()
    if len(os.sched_getaffinity(0)) > 1:
        parser.error("expected one core, as `taskset -c 0` gives")
    done = load(chosen.pool) if chosen.pool.exists() else []
    names = {task.task for task in done}
    with Here() as workers:
        for number, task in enumerate(amos.load_network(str(chosen.model)).tasks):
            if str(task.operator) in names:
                continue
            start = time.monotonic()
            pool = pooled(task, workers, chosen.trials)
            done.append(pool)
            save(done, chosen.pool)
            print(f"{number}: {len(pool.measured)} kernels, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
