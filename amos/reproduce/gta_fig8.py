"""GTA, Figure 8: networks whose trials are divided by one scheduler or another.

The paper compares compilers, and explains their order by how each spends the same trials. Here
only that differs: every scheduler of :mod:`amos.explore.task_scheduler` divides measurements
between the tasks of a network, in replays (:mod:`amos.reproduce.gta_replay`). Three networks are
made up of the layers that :mod:`amos.reproduce.fig5` has samples of; of others the tasks as
``amos.tune`` sees them were sampled (:mod:`amos.reproduce.pools`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from amos import operators
from amos.explore.options import check_count
from amos.explore.task_scheduler import RETAINED, SCHEDULERS, TRIALS, TaskState, scheduler
from amos.reproduce.fig5 import load_stored as samples
from amos.reproduce.gta_replay import BATCH, replay_search
from amos.reproduce.pools import POOLED, PooledTask, load_pool
from amos.reproduce.samples import Dataset, LayerSamples

#: Number of occurrences of each sampled layer. VGG's two largest layers, depthwise layers and
#: matrix products are not sampled. ResNet-18 is AMOS's, with a product of channels (C2) that
#: other authors leave out.
NETWORKS: Mapping[str, Mapping[str, int]] = {
    "resnet18": dict.fromkeys([f"C{n}" for n in range(12)], 1) | dict(C1=4, C5=3, C8=3, C11=3),
    "vgg16": dict(V1=1, V3=1, V5=1, V6=2, V7=1, V8=2, V9=3),
    "mobilenet": dict.fromkeys([f"M{n}" for n in range(10)], 1) | dict(M7=5),
}


@dataclass(frozen=True)
class Fig8Row:
    """One scheduler on one network.

    Attributes:
        samples: of all its tasks.
        model: whether the model ranked the candidates.
        scheduler: the one that divided the measurements.
        retain: share of the mappings that was searched on.
        within5, within1: measurements until the network takes at most 5 and 1 % more than with
            the fastest sample of each task; of all seeds, the fewest first.
    """

    network: str
    samples: int
    model: bool
    scheduler: str
    retain: float
    within5: tuple[int, ...]
    within1: tuple[int, ...]

    @property
    def medians(self) -> tuple[float, float]:
        """Median measurements until 5 and until 1 %."""
        return float(np.median(self.within5)), float(np.median(self.within1))


def fig8(seeds: int = 9) -> list[Fig8Row]:
    """Replay every network under every scheduler, with the model and without."""
    check_count("seeds", seeds)
    dataset = samples()
    sampled = {name: _layers(dataset, name) for name in NETWORKS}
    pooled = {
        name.replace("_", " "): [_sample(each) for each in load_pool(name)] for name in POOLED
    }
    return [
        row
        for name, tasks in (sampled | pooled).items()
        for model in (True, False)
        for row in _rows(
            name, sorted(tasks, key=_Sampled.model_seconds, reverse=True), model, seeds
        )
    ]


@dataclass(frozen=True)
class _Sampled:
    """A task with its samples: the mapping of each, and its seconds measured and by the model."""

    task: TaskState
    mappings: Sequence[str]
    measured: np.ndarray
    predicted: np.ndarray

    @property
    def preferred(self) -> float:
        """Seconds of the kernel that the model prefers, which is compiled until one is measured."""
        return float(self.measured[np.argmin(self.predicted)])

    def model_seconds(self) -> float:
        """Return the seconds of all occurrences by the model."""
        return float(self.task.weight * self.predicted.min())

    def curve(self, rate: float, seed: Sequence[int], model: bool, batch: int) -> list[float]:
        """Return the best seconds after each batch."""
        predicted = self.predicted if model else None
        order = [*replay_search(self.mappings, self.measured, rate, seed, predicted, batch)]
        best = np.minimum.accumulate(self.measured[order])
        return [float(best[min(n, len(best)) - 1]) for n in range(batch, len(best) + batch, batch)]


def _layers(dataset: Dataset, network: str) -> list[_Sampled]:
    machine, layers = dataset.machine_with(None), []
    for name, weight in NETWORKS[network].items():
        layer = LayerSamples(dataset, f"{network}:{name}")
        predicted, calls = layer.predict(machine, "amos+"), layer.calls(machine)
        task = TaskState(
            weight=weight,
            operations=operators.resolve(layer.layer).operations,
            kind="conv2d",
            bound=float(calls[np.argmin(predicted)]),
            predicted=float(predicted.min()),
        )
        layers.append(_Sampled(task, layer.mappings, layer.measured, predicted))
    return layers


def _sample(pool: PooledTask) -> _Sampled:
    task = TaskState(pool.weight, pool.operations, pool.kind, pool.bound, min(pool.predicted))
    names, columns = [*map(str, pool.mappings)], map(np.array, (pool.measured, pool.predicted))
    return _Sampled(task, names, *columns)


def _rows(network: str, sampled: Sequence[_Sampled], model: bool, seeds: int) -> Iterator[Fig8Row]:
    least = sum(each.task.weight * each.measured.min() for each in sampled)
    curves: dict[tuple[float, int], list[list[list[float]]]] = {}
    for name in SCHEDULERS:
        how = rate, batch = RETAINED.get(name, 1.0), TRIALS.get(name, BATCH)
        if how not in curves:
            curves[how] = [
                [each.curve(rate, (seed, n), model, batch) for n, each in enumerate(sampled)]
                for seed in range(seeds)
            ]
        tasks = [each.task for each in sampled]
        first = [each.preferred if model else math.inf for each in sampled]
        histories = [np.array(_divide(name, tasks, first, each)) / least for each in curves[how]]
        yield Fig8Row(
            network=network,
            samples=sum(len(each.measured) for each in sampled),
            model=model,
            scheduler=name,
            retain=rate,
            within5=_until(histories, 1.05, batch),
            within1=_until(histories, 1.01, batch),
        )


def _until(histories: Sequence[np.ndarray], ratio: float, batch: int) -> tuple[int, ...]:
    return tuple(sorted(batch * int(np.argmax(each <= ratio)) for each in histories))


def _divide(
    name: str, tasks: Sequence[TaskState], first: Sequence[float], curves: Sequence[list[float]]
) -> list[float]:
    """Divide slices by a scheduler; return the network's seconds before any, and after each."""
    among, states, kernels = scheduler(name, sum(map(len, curves))), [*tasks], [*first]

    def network() -> float:
        return sum(task.weight * seconds for task, seconds in zip(tasks, kernels, strict=True))

    history = [network()]
    while (n := among.next(states)) is not None:
        best = tuple(curves[n][: states[n].slices + 1])
        states[n] = replace(states[n], best=best, ended=len(best) == len(curves[n]))
        kernels[n] = min(kernels[n], best[-1])
        history.append(network())
    return history
