"""GTA, Figure 10: the loss from searching on only a share of the mappings.

A replay on stored samples (:mod:`amos.reproduce.gta_replay`): each layer gets a budget of its
samples. In the paper the sampling rate is also the budget; here they are separate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from amos.explore.options import check_count
from amos.explore.retention import check_retain
from amos.machine import Machine
from amos.reproduce.fig5 import load_stored
from amos.reproduce.gta_replay import replay_search
from amos.reproduce.samples import LayerSamples

#: Shares of the mappings that are retained; the paper's, and all.
RATES = (0.2, 0.4, 0.6, 1.0)


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


def fig10(budget: float = 0.2, rates: Sequence[float] = RATES, seeds: int = 10) -> list[Fig10Row]:
    """Replay every layer of the stored samples at some rates, measuring a share of the samples."""
    check_retain(budget, "budget")
    check_count("seeds", seeds)
    dataset = load_stored()
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
        times = layer.measured
        replays = (
            replay_search(layer.mappings, times, rate, seed, predicted) for seed in range(seeds)
        )
        orders = [[*islice(replay, most)] for replay in replays]
        best = [times.min() / times[order].min() for order in orders]
        reached[layer.layer] = float(np.mean(best))
        count, total = count + sum(map(len, orders)), total + seeds * len(predicted)
    worst = min(reached, key=lambda name: reached[name])
    mean = float(np.mean([*reached.values()]))
    return Fig10Row(rate, budget, mean, reached[worst], worst, count / total)
