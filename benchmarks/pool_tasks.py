"""Kernels of a network's tasks, measured once, for `amos reproduce gta-fig8` to replay.

    taskset -c 0 python benchmarks/pool_tasks.py MODEL.onnx POOL.jsonl.gz [--trials 48]

Candidates are drawn as a search draws them, over all mappings, with a larger share by chance.
Each is built and checked as in a search, but timed on one core, by the clock of its thread, in
turns with a NumPy product: what neighbours on the machine and its clock do to both then hardly
counts. A task is kept as soon as it is done, and the same command goes on with the next.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import amos
from amos.explore.options import MeasureOptions, SearchOptions
from amos.explore.ranking import find_best
from amos.explore.setting import Setting
from amos.measure.executor import LocalExecutor
from amos.measure.messages import Context, Failure
from amos.measure.reference import References
from amos.measure.task import Task
from amos.records import Measurement
from amos.reproduce.pools import PooledTask, load, save

#: Share of the candidates that is drawn by chance; in a search a tenth.
CHANCE = 0.3
#: Short runs of a candidate, and seconds that one takes at the least.
RUNS, SHORT = 60, 3e-4
#: Extent of the square product that is timed in turns with each candidate.
SIDE = 224


class Product:
    """A product of NumPy's as a clock.

    Attributes:
        seconds: what it takes, as all times are scaled to.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._sources = np.random.default_rng(0).random((2, SIDE, SIDE), np.float32)
        self._result = np.empty((SIDE, SIDE), np.float32)
        self.seconds = seconds or float(np.median([self.once() for _ in range(999)]))

    def once(self) -> float:
        """Seconds of the thread for one product."""
        start = time.thread_time()
        np.matmul(*self._sources, out=self._result)
        return time.thread_time() - start


@dataclass(frozen=True)
class _InTurns(Task):
    """A measurement in turns with a product."""

    product: Product = field(kw_only=True)

    def _times(
        self, kernel: Any, inputs: dict[str, np.ndarray], once: float, limit: float
    ) -> tuple[float, ...]:
        arguments = kernel.prepare(inputs)
        number, ratios = max(1, math.ceil(SHORT / once)), []
        before = self.product.once()
        for _ in range(RUNS):
            start = time.thread_time()
            for _ in range(number):
                kernel.run(arguments)
            seconds, after = time.thread_time() - start, self.product.once()
            ratios.append(seconds / (before + after))
            before = after
        return (float(np.median(ratios)) * 2 * self.product.seconds / number,)


class Here(LocalExecutor):
    """Measures in this process, whose candidates are of the package's own making."""

    def __init__(self, product: Product | None = None) -> None:
        super().__init__()
        self.product = product or Product()
        self._context = Context(References(), lambda: None)

    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        for number, task in tasks:
            told = _InTurns(task.candidate, product=self.product).run(self._context)
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
    bound = problem.predict(find_best(problem)).rows[0].compute
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
