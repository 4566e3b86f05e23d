"""GTA, Figure 10: what is lost when only a share of the mappings is searched on.

A replay on stored samples: what was measured then stands for the machine, so that the result
is the same everywhere. Each layer gets a budget of its samples, in batches; a batch takes
the candidates of the retained mappings that the corrected model ranks first, and now and
then one by chance. In the paper the sampling rate is the budget too; here both are apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amos.errors import ExploreError, shown
from amos.explore.guided import EPSILON
from amos.explore.objective import corrections
from amos.explore.retention import check_retain, retained
from amos.machine import Machine
from amos.reproduce.fig5 import stored
from amos.reproduce.samples import LayerSamples

__all__ = ["RATES", "Fig10Row", "fig10"]

#: Shares of the mappings that are retained; the paper's, and all.
RATES = (0.2, 0.4, 0.6, 1.0)
_BATCH = 4


@dataclass(frozen=True)
class Fig10Row:
    """One sampling rate.

    Attributes:
        retain: share of the mappings that was searched on.
        budget: share of the samples that could be measured.
        mean: of all layers and seeds, the fastest sample's time over that of the best found.
        worst: of the means of the layers, the lowest.
        worst_layer: which that is.
        measurements: share of the samples that was measured.
    """

    retain: float
    budget: float
    mean: float
    worst: float
    worst_layer: str
    measurements: float


def fig10(
    budget: float = 0.2, rates: Sequence[float] = RATES, seeds: int = 10, samples: str = "fig5"
) -> list[Fig10Row]:
    """Replay every layer of the stored samples at some rates.

    Args:
        budget: share of a layer's samples that may be measured.
        rates: shares of the mappings to retain.
        seeds: replays of each layer.
        samples: name of the stored samples; see :func:`amos.reproduce.fig5.stored`.

    Raises:
        ExploreError: a share is not above 0 and at most 1, or there is no replay.
    """
    check_retain(budget)
    if seeds < 1:
        raise ExploreError(f"seeds: expected at least one, got {shown(seeds)}")
    dataset = stored(samples)
    machine = dataset.machine_with(None)
    layers = dataset.of(dataset.layers)
    return [_row(layers, machine, budget, check_retain(rate), seeds) for rate in rates]


def _row(
    layers: Sequence[LayerSamples], machine: Machine, budget: float, rate: float, seeds: int
) -> Fig10Row:
    reached: dict[str, float] = {}
    count = total = 0
    for layer in layers:
        predicted = layer.predict(machine, "amos+")
        most = max(1, math.floor(budget * len(predicted)))
        orders = [_replayed(layer, predicted, most, rate, seed) for seed in range(seeds)]
        best = [layer.measured.min() / layer.measured[order].min() for order in orders]
        reached[layer.layer] = float(np.mean(best))
        count, total = count + sum(map(len, orders)), total + seeds * len(predicted)
    worst = min(reached, key=lambda name: reached[name])
    mean = float(np.mean([*reached.values()]))
    return Fig10Row(rate, budget, mean, reached[worst], worst, count / total)


def _replayed(
    layer: LayerSamples, predicted: np.ndarray, most: int, rate: float, seed: int
) -> list[int]:
    """The samples that a search measures, in order."""
    rng, names = np.random.default_rng(seed), layer.mappings
    order: list[int] = []
    while len(order) < most:
        ratios: dict[str, list[float]] = {name: [] for name in names}
        for n in order:
            ratios[names[n]].append(math.log(layer.measured[n] / predicted[n]))
        factors = corrections(ratios)
        scores = predicted * np.array([factors[name] for name in names])
        seconds = dict.fromkeys(names, math.inf)
        for n, name in enumerate(names):
            seconds[name] = min(seconds[name], scores[n])
        done = Counter(names[n] for n in order)
        seconds |= {x: min(layer.measured[n] for n in order if names[n] == x) for x in done}
        kept = retained(seconds, done, rate)
        left = [n for n in np.argsort(scores) if n not in order]
        ranked = [n for n in left if names[n] in kept] + [n for n in left if names[n] not in kept]
        for _ in range(min(_BATCH, most - len(order))):
            chance = rng.random() < EPSILON
            chosen = ranked.pop(int(rng.integers(len(ranked))) if chance else 0)
            order.append(int(chosen))
    return order
