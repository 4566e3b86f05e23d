"""Trials until a network is nearly as fast as any scheduler of its tasks makes it.

    taskset -c 0 python benchmarks/bench_schedulers.py MODEL.onnx KERNELS.json --trials 200

`amos.tune` runs with each scheduler. Kernels are timed as `pool_tasks.py` times them, since noise
is larger than what is compared, and kept in the file: what was timed once counts in all runs, of
this and later commands. At last the fastest kernels of each task are timed again until the
fastest one stays, since the least of many single times owes something to luck. All runs are
compared with it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

from pool_tasks import Here, Product

import amos
from amos.explore.choosing import Chooser
from amos.ir import Operator
from amos.measure.executor import Task
from amos.plan.schedule import Candidate
from amos.records import Measurement
from amos.records.canonical import digest, operator_values
from amos.records.record import candidate_key

#: Times of the network over those of the fastest kernels.
WITHIN = (1.05, 1.03, 1.02, 1.01)


#: How often the fastest kernel of a task is timed, and the timings that this may take.
SETTLED, TIMINGS = 5, 100


class Kept(Here):
    """Measures what was not measured before, and notes what is asked for.

    Attributes:
        times: seconds of each kernel of each operator, one or several timings.
        asked: operators and kernels, in order.
        seen: the kernels of each operator that this command has asked for.
    """

    def __init__(self, path: Path) -> None:
        kept = json.loads(path.read_text()) if path.exists() else {}
        super().__init__(Product(kept.get("product")))
        self.path, self.asked = path, list[tuple[str, str]]()
        self.times: dict[str, dict[str, list[float]]] = kept.get("times", {})
        self.seen: dict[str, dict[str, Candidate]] = {}

    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        for number, task in tasks:
            mapping = task.candidate.mapping
            operator = _name(mapping.operator)
            key = f"{mapping.intrinsic.name} {candidate_key(task.candidate)}"
            self.seen.setdefault(operator, {})[key] = task.candidate
            if key not in self.times.setdefault(operator, {}):
                self.again(operator, key)
            self.asked.append((operator, key))
            first = self.times[operator][key][0]
            if math.isfinite(first):
                yield number, Measurement((first,) * 9, 1, 0.0, "native")
            else:
                yield number, Measurement((), failure="build", message="it failed before")

    def again(self, operator: str, key: str) -> None:
        """Time a kernel, once more or for the first time."""
        ((_, told),) = super().measure([(0, Task(self.seen[operator][key]))])
        seconds = told.seconds if told.ok else math.inf
        self.times[operator].setdefault(key, []).append(seconds)
        kept = {"product": self.product.seconds, "times": self.times}
        self.path.write_text(json.dumps(kept))

    def seconds(self, operator: str, key: str) -> float:
        """Of a kernel, the median of its timings."""
        return median(self.times[operator][key])

    def settle(self, operator: str) -> None:
        """Time the fastest kernel of an operator until it is the fastest of several timings."""
        for _ in range(TIMINGS):
            fastest = min(self.seen[operator], key=partial(self.seconds, operator))
            if len(self.times[operator][fastest]) >= SETTLED:
                return
            self.again(operator, fastest)


def _name(operator: Operator) -> str:
    return digest(operator_values(operator))


def needed(
    asked: list[tuple[str, str]], untuned: dict[str, str], weights: dict[str, int], kept: Kept
) -> list[str]:
    """Trials until the network is within each of :data:`WITHIN`, from untuned kernels on."""
    least = sum(
        weight * min(kept.seconds(name, key) for key in kept.seen[name])
        for name, weight in weights.items()
    )
    now, said = {name: kept.seconds(name, key) for name, key in untuned.items()}, dict[float, str]()
    for count in range(len(asked) + 1):
        ratio = sum(weight * now[name] for name, weight in weights.items()) / least
        said = {each: str(count) for each in WITHIN if ratio <= each} | said
        if count < len(asked):
            name, key = asked[count]
            now[name] = min(now[name], kept.seconds(name, key))
    return [said.get(each, "-") for each in WITHIN]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("kernels", type=Path)
    parser.add_argument("--schedulers", nargs="+", default=["gradient", "bound"])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--reference", type=int, default=0, help="trials of a longer run, by bound")
    chosen = parser.parse_args()
    if len(os.sched_getaffinity(0)) > 1:
        parser.error("expected one core, as `taskset -c 0` gives")
    network = amos.load_network(str(chosen.model))
    weights = {_name(task.operator): task.weight for task in network.tasks}
    runs: dict[tuple[str, int, int], list[tuple[str, str]]] = {}
    with Kept(chosen.kernels) as kept, tempfile.TemporaryDirectory() as folder:
        chooser = Chooser("host")
        candidates = [chooser.choose(task.operator).candidate for task in network.tasks]
        list(kept.measure(enumerate(map(Task, candidates))))
        untuned = dict(kept.asked)
        reference = [("bound", 0, chosen.reference)] if chosen.reference else []
        others = product(chosen.schedulers, chosen.seeds, [chosen.trials])
        for name, seed, trials in (*reference, *others):
            kept.asked.clear()
            tuned = amos.tune(
                network,
                trials=trials,
                records=Path(folder) / f"{name}{seed}_{trials}.db",
                scheduler=name,
                seed=seed,
                measure=amos.MeasureOptions(executor=kept),
                progress=False,
            )
            # What follows confirms the leaders.
            runs[name, seed, trials] = kept.asked[: tuned.trials]
        for name in weights:
            kept.settle(name)
    print("scheduler   seed trials", *(f"{each - 1:7.0%}" for each in WITHIN))
    for (name, seed, trials), asked in runs.items():
        counts = needed(asked, untuned, weights, kept)
        print(f"{name:12}{seed:4}{trials:7}", *(f"{each:>7}" for each in counts))


if __name__ == "__main__":
    main()
