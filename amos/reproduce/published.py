"""AMOS, Figure 5, on a GPU: our model beside the times that the authors of AMOS published.

Their logs hold, for six convolutions on an A100, the best time of each mapping over the few
schedules that they tried. Loops of extent 1, as the batch, change no computation, so that
several of their mappings are one kernel. How far the times of equals differ says how much of
the order of mappings is chance.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping as MappingType
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from math import comb
from typing import Any

import numpy as np

from amos import intrinsics, machines, operators
from amos.machine import Machine
from amos.mapping import Mapping, enumerate_mappings
from amos.perfmodel import evaluate
from amos.perfmodel.accuracy import pairwise
from amos.plan import Structure, batch_of
from amos.schedule import ScheduleSpace

INTRINSIC, MACHINE = "wmma_m16n16k16_f16_f32", "a100"
#: Schedules that are drawn of each mapping, and permutations of the times of a layer.
_DRAWN, _PERMUTATIONS = 120, 1000


@dataclass(frozen=True)
class Published:
    """One mapping of one layer, as it was published.

    Attributes:
        sizes: of the layer, by the names of :func:`amos.operators.conv2d`.
        mapping: its name in our space.
        measured: number of schedules that were tried.
    """

    sizes: MappingType[str, int]
    mapping: str
    seconds: float
    measured: int


@dataclass(frozen=True)
class PublishedLayer:
    """Agreement of our model with the published times on one layer.

    Attributes:
        layer: channels, size, kernel and stride.
        computations: different ones among them.
        pairwise: share of pairs of different computations that the model puts in the published
            order; ``None`` if there is one computation only.
        repeatability: the same if the published times of its equals predict each mapping.
        equals_differ: factor by which times of one computation differ (standard deviation).
        mappings_differ: factor by which all times of the layer differ.
        chance: share of random permutations of the times in which the computation explains as
            much of them; a mapping matters if this is small.
        best_us: the best published time.
        best_ratio: that time over the best that the model predicts.
        median_ratio: published times over the median schedule of the same mapping, by the model.
    """

    layer: str
    mappings: int
    computations: int
    pairwise: float | None
    repeatability: float | None
    equals_differ: float
    mappings_differ: float
    chance: float
    best_us: float
    best_ratio: float
    median_ratio: float


def load_published() -> list[Published]:
    """Read the published times, which come with the package."""
    file = resources.files("amos.reproduce") / "data" / "published_a100.csv"
    lines = [x for x in file.read_text(encoding="utf-8").splitlines() if not x.startswith("#")]
    rows = []
    for row in csv.DictReader(lines):
        mapping, seconds, measured = (row.pop(x) for x in ("mapping", "best_seconds", "measured"))
        sizes = {name: int(size) for name, size in row.items()}
        rows.append(Published(sizes, mapping, float(seconds), int(measured)))
    return rows


def compare_published(seed: int = 0) -> dict[str, Any]:
    """Compare the model with the published times: plain values, by layer and overall."""
    by_layer: dict[tuple[int, ...], list[Published]] = defaultdict(list)
    for row in load_published():
        by_layer[tuple(row.sizes.values())].append(row)
    machine = machines.get(MACHINE, [intrinsics.get(INTRINSIC)])
    compared = [_Compared(rows, machine, seed) for rows in by_layer.values()]
    layers = [each.result() for each in compared]
    rated = [x for x in layers if x.pairwise is not None and x.repeatability is not None]
    predicted = np.concatenate([each.predicted for each in compared])
    measured = np.concatenate([each.measured for each in compared])
    return {
        "machine": machine.name,
        "intrinsic": INTRINSIC,
        "source": "logs of the authors of AMOS (github.com/pku-liang/AMOS), Apache-2.0",
        "mappings": len(measured),
        "pairwise": float(np.mean([x.pairwise for x in rated])),
        "repeatability": float(np.mean([x.repeatability for x in rated])),
        "pooled_pairwise": pairwise(predicted, measured),
        "layers": [asdict(x) for x in layers],
    }


class _Compared:
    """One layer.

    Attributes:
        predicted: seconds by the model of the best of as many drawn schedules as were tried.
        computations: name of each mapping without loops of extent 1.
    """

    def __init__(self, rows: Sequence[Published], machine: Machine, seed: int) -> None:
        self.sizes = dict(rows[0].sizes)
        op = operators.builder("conv2d")(dtype="f16", **self.sizes)
        space = {m.name: m for m in enumerate_mappings(op, intrinsics.get(INTRINSIC), rule="paper")}
        self.measured = np.array([row.seconds for row in rows])
        mappings = [space[row.mapping] for row in rows]
        self.computations = np.array([_computation(mapping) for mapping in mappings])
        drawn: dict[str, np.ndarray] = {}
        for name, mapping in zip(self.computations, mappings, strict=True):
            if name not in drawn:
                drawn[name] = _draw_seconds(mapping, machine, seed)
        seconds = [drawn[name] for name in self.computations]
        self.predicted = np.array(
            [_best_of(x, row.measured) for x, row in zip(seconds, rows, strict=True)]
        )
        self.medians = np.array([np.median(x) for x in seconds])
        self.best = min(x[0] for x in seconds)

    def result(self) -> PublishedLayer:
        names, logs, size = self.computations, np.log(self.measured), self.sizes
        means = {name: logs[names == name].mean() for name in set(names)}
        spread = logs - np.array([means[name] for name in names])
        free = max(1, len(logs) - len(means))
        return PublishedLayer(
            layer=f"{size['c']}x{size['h']}x{size['w']} to {size['k']}, {size['r']}x{size['s']}, "
            f"stride {size['stride']}",
            mappings=len(logs),
            computations=len(means),
            pairwise=self._pairs(self.predicted),
            repeatability=self._pairs(self._equals()),
            equals_differ=float(np.exp(np.sqrt((spread**2).sum() / free))),
            mappings_differ=float(np.exp(logs.std(ddof=1))),
            chance=_chance(logs, names),
            best_us=float(self.measured.min() * 1e6),
            best_ratio=float(self.measured.min() / self.best),
            median_ratio=float(np.exp(np.mean(logs - np.log(self.medians)))),
        )

    def _equals(self) -> np.ndarray:
        """Return the geometric mean of published times of a mapping's equals; NaN without any."""
        same = self.computations[:, None] == self.computations
        np.fill_diagonal(same, val=False)
        count = same.sum(axis=1)
        total = same @ np.log(self.measured)
        mean = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
        return np.asarray(np.exp(mean))

    def _pairs(self, guess: np.ndarray) -> float | None:
        """Return the share of pairs of different computations in the right order."""
        first, second = np.triu_indices(len(guess), 1)
        counted = self.computations[first] != self.computations[second]
        counted &= ~np.isnan(guess[first] + guess[second])
        first, second = first[counted], second[counted]
        if not len(first):
            return None
        order = np.sign(guess[first] - guess[second])
        truth = np.sign(self.measured[first] - self.measured[second])
        return float(np.mean(np.where(order == 0, 0.5, order == truth)))


def _computation(mapping: Mapping) -> str:
    """Name of a mapping without the loops that run once."""
    extents = mapping.operator.extents
    live = (
        "".join(name for name in group if extents[name] > 1) for group in mapping.groups.values()
    )
    return "-".join(live)


def _draw_seconds(mapping: Mapping, machine: Machine, seed: int) -> np.ndarray:
    """Predict random schedules of a mapping, the fastest first."""
    drawn = ScheduleSpace(mapping, machine).draw(_DRAWN, np.random.default_rng(seed))
    structure = Structure(mapping)
    return np.sort(evaluate(structure, machine, batch_of(structure, drawn)).seconds)


def _best_of(ordered: np.ndarray, count: int) -> float:
    """Return the geometric mean of the fastest of ``count`` schedules, over all draws."""
    total = len(ordered)
    count = min(count, total)
    weights = [comb(total - 1 - place, count - 1) for place in range(total)]
    return float(np.exp(np.dot(weights, np.log(ordered)) / comb(total, count)))


def _chance(logs: np.ndarray, names: np.ndarray) -> float:
    """Return the share of permutations whose classes explain at least as much of the variance."""
    groups = [names == name for name in set(names.tolist())]

    def explain(values: np.ndarray) -> float:
        return float(sum(values[group].sum() ** 2 / group.sum() for group in groups))

    rng, centred = np.random.default_rng(0), logs - logs.mean()
    least = explain(centred) - 1e-9 * float((centred**2).sum())
    return float(
        np.mean([explain(rng.permutation(centred)) >= least for _ in range(_PERMUTATIONS)])
    )
