"""GTA, Figure 8: networks whose trials are divided by one scheduler or another.

The paper compares compilers, and explains their order by how each spends the same trials. Here
only that differs: every scheduler of :mod:`amos.explore.task_scheduler` divides measurements
between the layers of three networks, on stored samples (:mod:`amos.reproduce.gta_replay`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from amos import operators
from amos.errors import ExploreError, shown
from amos.explore.task_scheduler import RETAINED, SCHEDULERS, TaskState, scheduler
from amos.reproduce.fig5 import stored
from amos.reproduce.gta_replay import BATCH, searched
from amos.reproduce.samples import Dataset, LayerSamples

__all__ = ["NETWORKS", "Fig8Row", "fig8"]

#: How often each sampled layer occurs. Not sampled are VGG's two largest, depthwise layers and
#: matrix products. ResNet-18 is AMOS's, with a product of channels (C2) that others leave out.
NETWORKS: Mapping[str, Mapping[str, int]] = {
    "resnet18": dict.fromkeys([f"C{n}" for n in range(12)], 1) | dict(C1=4, C5=3, C8=3, C11=3),
    "vgg16": dict(V1=1, V3=1, V5=1, V6=2, V7=1, V8=2, V9=3),
    "mobilenet": dict.fromkeys([f"M{n}" for n in range(10)], 1) | dict(M7=5),
}
#: ``equal`` divides as ``round_robin`` does while no task ends; only the order differs.
_REPLAYED = tuple(name for name in SCHEDULERS if name != "equal")


@dataclass(frozen=True)
class Fig8Row:
    """One scheduler on one network.

    Attributes:
        network: its name.
        samples: of all its layers.
        model: whether the model ranked the candidates.
        scheduler: who divided the measurements.
        retain: share of the mappings that was searched on.
        within5, within1: measurements until the network takes at most 5 and 1 % more than with
            the fastest sample of each layer; medians of the seeds.
    """

    network: str
    samples: int
    model: bool
    scheduler: str
    retain: float
    within5: float
    within1: float


def fig8(seeds: int = 9) -> list[Fig8Row]:
    """Replay every network under every scheduler, with the model and without.

    Args:
        seeds: replays of each.

    Raises:
        ExploreError: there is no replay.
    """
    if seeds < 1:
        raise ExploreError(f"seeds: expected at least one, got {shown(seeds)}")
    dataset = stored()
    return [
        row
        for name in NETWORKS
        for model in (True, False)
        for row in _rows(dataset, name, model, seeds)
    ]


@dataclass(frozen=True)
class _Layer:
    """A layer as a task, and the seconds of its samples by the model."""

    samples: LayerSamples
    task: TaskState
    predicted: np.ndarray

    def curve(self, rate: float, seed: Sequence[int], model: bool) -> list[float]:
        """Best seconds after each batch."""
        order = [*searched(self.samples, rate, seed, self.predicted if model else None)]
        best = np.minimum.accumulate(self.samples.measured[order])
        return [float(best[min(n, len(best)) - 1]) for n in range(BATCH, len(best) + BATCH, BATCH)]


def _layers(dataset: Dataset, network: str) -> list[_Layer]:
    """The layers of a network, the longest first."""
    machine, layers = dataset.machine_with(None), []
    for name, weight in NETWORKS[network].items():
        samples = LayerSamples(dataset, f"{network}:{name}")
        predicted, calls = samples.predict(machine, "amos+"), samples.calls(machine)
        task = TaskState(
            weight=weight,
            operations=operators.resolve(samples.layer).operations,
            kind="conv2d",
            bound=float(calls[np.argmin(predicted)]),
        )
        layers.append(_Layer(samples, task, predicted))
    return sorted(layers, key=lambda each: -each.task.weight * each.predicted.min())


def _rows(dataset: Dataset, network: str, model: bool, seeds: int) -> Iterator[Fig8Row]:
    layers = _layers(dataset, network)
    least = sum(each.task.weight * each.samples.measured.min() for each in layers)
    curves: dict[float, list[list[list[float]]]] = {}
    for name in _REPLAYED:
        rate = RETAINED.get(name, 1.0)
        if rate not in curves:
            curves[rate] = [
                [each.curve(rate, (seed, n), model) for n, each in enumerate(layers)]
                for seed in range(seeds)
            ]
        tasks = [each.task for each in layers]
        histories = [np.array(_divided(name, tasks, each)) / least for each in curves[rate]]
        yield Fig8Row(
            network=network,
            samples=sum(len(each.samples.measured) for each in layers),
            model=model,
            scheduler=name,
            retain=rate,
            within5=_until(histories, 1.05),
            within1=_until(histories, 1.01),
        )


def _until(histories: Sequence[np.ndarray], ratio: float) -> float:
    return float(np.median([BATCH * (np.argmax(each <= ratio) + 1) for each in histories]))


def _divided(name: str, tasks: Sequence[TaskState], curves: Sequence[list[float]]) -> list[float]:
    """Seconds of the network after each slice; infinite until each layer has a kernel."""
    among, states = scheduler(name, sum(map(len, curves))), [*tasks]
    history: list[float] = []
    while (n := among.next(states)) is not None:
        best = tuple(curves[n][: states[n].slices + 1])
        states[n] = replace(states[n], best=best, ended=len(best) == len(curves[n]))
        reached = (each.weight * each.best[-1] if each.best else math.inf for each in states)
        history.append(sum(reached))
    return history
