"""Trials until a network is nearly as fast as any scheduler of its tasks makes it.

    taskset -c 0 python benchmarks/bench_schedulers.py MODEL.onnx KERNELS.json --trials 200

`amos.tune` runs with each scheduler. Kernels are timed as `pool_tasks.py` times them, since noise
is larger than what is compared, and kept in the file: what was timed once counts in all runs, of
this and later commands, and the fastest of each task is what all are compared with.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from pool_tasks import Here

import amos
from amos.ir import Operator
from amos.measure.executor import Task
from amos.network.candidates import Chooser
from amos.records import Measurement
from amos.records.canonical import digest, operator_values
from amos.records.record import candidate_key

#: Times of the network over those of the fastest kernels.
WITHIN = (1.05, 1.03, 1.02, 1.01)


class Kept(Here):
    """Measures what was not measured before, and notes what is asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.asked = path, list[tuple[str, float]]()
        text = path.read_text() if path.exists() else "{}"
        self.seconds: dict[str, dict[str, float]] = json.loads(text)

    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        for number, task in tasks:
            mapping = task.candidate.mapping
            operator = _name(mapping.operator)
            kernels = self.seconds.setdefault(operator, {})
            key = f"{mapping.intrinsic.name} {candidate_key(task.candidate)}"
            if key not in kernels:
                ((_, told),) = super().measure([(0, task)])
                kernels[key] = told.seconds if told.ok else math.inf
                self.path.write_text(json.dumps(self.seconds))
            self.asked.append((operator, kernels[key]))
            if math.isfinite(kernels[key]):
                yield number, Measurement((kernels[key],) * 9, 1, 0.0, "native")
            else:
                yield number, Measurement((), failure="build", message="it failed before")


def _name(operator: Operator) -> str:
    return digest(operator_values(operator))


def needed(
    asked: list[tuple[str, float]], untuned: dict[str, float], weights: dict[str, int], kept: Kept
) -> list[str]:
    """Trials until the network is within each of :data:`WITHIN`, from untuned kernels on."""
    least = sum(weights[each] * min(kept.seconds[each].values()) for each in weights)
    now, said = dict(untuned), dict[float, str]()
    for count in range(len(asked) + 1):
        ratio = sum(weights[each] * now[each] for each in weights) / least
        said = {each: str(count) for each in WITHIN if ratio <= each} | said
        if count < len(asked):
            operator, seconds = asked[count]
            now[operator] = min(now[operator], seconds)
    return [said.get(each, "-") for each in WITHIN]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("kernels", type=Path)
    parser.add_argument("--schedulers", nargs="+", default=["gradient", "bound"])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    chosen = parser.parse_args()
    if len(os.sched_getaffinity(0)) > 1:
        parser.error("expected one core, as `taskset -c 0` gives")
    network = amos.load_network(str(chosen.model))
    weights = {_name(task.operator): task.weight for task in network.tasks}
    runs: dict[tuple[str, int], list[tuple[str, float]]] = {}
    with Kept(chosen.kernels) as kept, tempfile.TemporaryDirectory() as folder:
        chooser = Chooser("host")
        candidates = [chooser.predicted(task.operator).candidate for task in network.tasks]
        list(kept.measure(enumerate(map(Task, candidates))))
        untuned = dict(kept.asked)
        for name, seed in product(chosen.schedulers, chosen.seeds):
            kept.asked.clear()
            tuned = amos.tune(
                network,
                trials=chosen.trials,
                records=Path(folder) / f"{name}{seed}.db",
                scheduler=name,
                seed=seed,
                measure=amos.MeasureOptions(executor=kept),
                progress=False,
            )
            # What follows confirms the leaders.
            runs[name, seed] = kept.asked[: tuned.trials]
    print("scheduler   seed", *(f"{each - 1:7.0%}" for each in WITHIN))
    for (name, seed), asked in runs.items():
        counts = needed(asked, untuned, weights, kept)
        print(f"{name:12}{seed:4}", *(f"{each:>7}" for each in counts))


if __name__ == "__main__":
    main()
