"""AMOS, section 7.2 and Figure 5: how well the model ranks measured candidates.

The constants of :class:`amos.machine.Costs` are fitted on the layers of
ResNet-18 alone; layers of VGG-16 and MobileNet are held back and only judged. CPUs of two
makers were measured, each of which has constants of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from amos import machines
from amos.machine import Costs, Machine
from amos.perfmodel.accuracy import best_of_first, pairwise, recall, trials_until
from amos.reproduce.samples import Dataset, LayerSamples, collect, load

FITTED_ON = tuple(f"resnet18:C{n}" for n in range(12))
HELD_BACK = (
    *(f"vgg16:V{n}" for n in (1, 3, 5, 6, 7, 8, 9)),
    *(f"mobilenet:M{n}" for n in range(10)),
)
#: The two sets, by the name that results give them.
SETS = {"fitted_on": FITTED_ON, "held_back": HELD_BACK}
INTRINSIC = "vnni_dpbusd_m16k4_u8_s8_s32"
#: Shares of the candidates that a recall is given for, in percent.
SHARES = (10, 20, 30, 40, 50, 60)
#: Constants of the refined model with one term off, by term.
TERMS: Mapping[str, Mapping[str, float]] = {
    "calls of several tiles in flight": {"window": 0.0},
    "calls in close order": {"dense": 1.0},
    "elements copied one by one": {"serial": 0.0},
    "divisions and tests in copies": {"find": 0.0},
    "windows kept beyond the registers": {"reload": 0.0},
    "reads in order": {"sweep": 1.0},
    "lines that cores take from each other": {"exchange": 0.0},
    "levels in each other's way": {"overlap": math.inf},
    "far memory that little hides": {"far": math.inf},
}
#: Logarithm by which two predictions must differ to count as distinct while fitting:
#: about what two measurements of one candidate differ by.
_APART = 0.06
#: Share of a layer's candidates, fastest first, whose times count while fitting, and the
#: logarithm from which the error of one counts no longer as its square.
_FAST, _LARGE = 0.7, 0.08
#: Figures of AMOS for its model on a Tensor Core (section 7.2).
PAPER = {"pairwise": 0.8569, "recall40": 0.914}


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of the ranking of one layer, or of several together.

    Attributes:
        layer: the layer; ``"overall"`` for the mean over several.
        pairwise: share of pairs in the right order.
        beyond_noise: the same over pairs that differ by more than two measurements do.
        recall: percent → share of the fastest candidates, that many percent, that was found.
        best_of_ten: fastest of the ten best predicted, over the fastest sampled.
        trials: how many of the best predicted come within 5 % of the fastest.
    """

    layer: str
    samples: int
    pairwise: float
    beyond_noise: float
    recall: Mapping[int, float]
    best_of_ten: float
    trials: float


@dataclass(frozen=True)
class Judged:
    """A model judged on a set of layers.

    Attributes:
        pooled: pairwise accuracy and recall of the top 40 % in one ranking of all
            candidates of all layers, which large and small layers make easier.
    """

    layers: tuple[Accuracy, ...]
    pooled: Mapping[str, float]

    @property
    def overall(self) -> Accuracy:
        """Mean over the layers, each layer counting once."""

        def mean(values: Sequence[float]) -> float:
            return float(np.mean(values))

        return Accuracy(
            "overall",
            sum(x.samples for x in self.layers),
            mean([x.pairwise for x in self.layers]),
            mean([x.beyond_noise for x in self.layers]),
            {share: mean([x.recall[share] for x in self.layers]) for share in SHARES},
            mean([x.best_of_ten for x in self.layers]),
            mean([x.trials for x in self.layers]),
        )

    @property
    def within_5pct(self) -> int:
        """Layers whose ten best predicted hold one within 5 % of the fastest."""
        return sum(x.best_of_ten <= 1.05 for x in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        overall = self.overall
        return {
            "layers": [x.layer for x in self.layers],
            "samples": overall.samples,
            "pairwise": overall.pairwise,
            "pairwise_beyond_noise": overall.beyond_noise,
            "recall": {str(share): value for share, value in overall.recall.items()},
            "pooled": self.pooled,
            "top10_within_5pct": self.within_5pct,
            "trials_within_5pct": overall.trials,
        }


def load_stored(name: str = "fig5") -> Dataset:
    """Load samples that come with the package: ``"fig5"``, or ``"fig5_second_cpu"``.

    The second CPU is of another maker. It was measured before kernels wrote cut tiles separately,
    so its candidates are only those whose register tiles divide every loop: some 31 a layer.
    """
    file = resources.files("amos.reproduce") / "data" / f"{name}.jsonl.gz"
    with resources.as_file(file) as path:
        return load(Path(path))


def collect_samples(
    count: int, seed: int, rounds: int, progress: Callable[[int, int, str], None] | None
) -> Dataset:
    """Measure new samples of every layer on this machine; see :func:`collect`."""
    layers = [layer for group in SETS.values() for layer in group]
    host = machines.probe()
    return collect(
        layers, INTRINSIC, host, count=count, seed=seed, rounds=rounds, progress=progress
    )


def present(dataset: Dataset) -> dict[str, tuple[str, ...]]:
    """List the layers of each set that a dataset has samples of, without empty sets."""
    there = {name: tuple(x for x in SETS[name] if x in dataset.layers) for name in SETS}
    return {name: layers for name, layers in there.items() if layers}


def judge(
    dataset: Dataset, layers: Sequence[str], model: str = "amos+", costs: Costs | None = None
) -> Judged:
    """Judge ``"amos+"`` or ``"amos"`` on layers, by default with the maker's constants."""
    return _judge(dataset.of(layers), dataset.machine_with(costs), model)


def _judge(group: Sequence[LayerSamples], machine: Machine, model: str = "amos+") -> Judged:
    predicted = [x.predict(machine, model) for x in group]
    guess, truth = np.concatenate(predicted), np.concatenate([x.measured for x in group])
    pooled = {"pairwise": pairwise(guess, truth), "recall40": recall(guess, truth, 0.4)}
    return Judged(tuple(map(_rank, group, predicted)), pooled)


def _rank(samples: LayerSamples, predicted: np.ndarray) -> Accuracy:
    truth = samples.measured
    return Accuracy(
        samples.layer,
        len(truth),
        pairwise(predicted, truth),
        pairwise(predicted, truth, samples.noise),
        {share: recall(predicted, truth, share / 100) for share in SHARES},
        best_of_first(predicted, truth, 10),
        trials_until(predicted, truth, 0.05),
    )


def _repeatability(group: Sequence[LayerSamples]) -> dict[str, Any] | None:
    """Score how well half of the rounds ranks the measurements of the other half.

    An order that a second measurement does not confirm can hardly be predicted. ``None`` if there
    was one round only.
    """
    pairs = [x.halves for x in group if x.halves is not None]
    if not pairs:
        return None
    return {
        "pairwise": float(np.mean([pairwise(a, b) for a, b in pairs])),
        "recall": {
            str(share): float(np.mean([recall(a, b, share / 100) for a, b in pairs]))
            for share in SHARES
        },
        "noise": float(np.mean([x.noise for x in group])),
    }


def fig5(dataset: Dataset, costs: Costs | None = None) -> dict[str, Any]:
    """Compare the models on both sets; plain values."""
    groups = {name: dataset.of(layers) for name, layers in present(dataset).items()}
    machine = dataset.machine_with(costs)
    refined = {name: _judge(group, machine) for name, group in groups.items()}
    return {
        "machine": dataset.machine.source,
        "intrinsic": dataset.intrinsic,
        "constants": len(fields(Costs)),
        **{
            name: judged.to_dict() | {"repeatability": _repeatability(groups[name])}
            for name, judged in refined.items()
        },
        "paper_equation": {
            name: _judge(group, machine, "amos").to_dict() for name, group in groups.items()
        },
        "paper_reports": PAPER,
        "terms": {
            term: {name: _term_gain(groups[name], machine, off, refined[name]) for name in groups}
            for term, off in TERMS.items()
        },
    }


def _term_gain(
    group: Sequence[LayerSamples], machine: Machine, off: Mapping[str, float], whole: Judged
) -> dict[str, float]:
    """Return the gain of a term: accuracy of the whole model less that without the term."""
    less = _judge(group, replace(machine, costs=replace(machine.costs, **off))).overall
    return {
        "pairwise": whole.overall.pairwise - less.pairwise,
        "recall40": whole.overall.recall[40] - less.recall[40],
    }


def second_cpu() -> dict[str, Any]:
    """Judge the models on the held-back layers on a CPU of another maker.

    With the constants that were fitted on ResNet-18 there, and under ``first_constants`` with those
    of the first CPU, as on a CPU without measurements.
    """
    dataset, first = load_stored("fig5_second_cpu"), load_stored().machine_with(None).costs
    held_back, machine = dataset.of(HELD_BACK), dataset.machine_with(None)
    return {
        "machine": dataset.machine.source,
        **_judge(held_back, machine).to_dict(),
        "repeatability": _repeatability(held_back),
        "fitted_on": _judge(dataset.of(FITTED_ON), machine).to_dict(),
        "first_constants": _judge(held_back, replace(machine, costs=first)).to_dict(),
        "paper_equation": _judge(held_back, machine, "amos").to_dict(),
    }


def predictions(
    dataset: Dataset, costs: Costs | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return for each layer predicted and measured seconds of its samples."""
    machine = dataset.machine_with(costs)
    samples = dataset.of(dataset.layers)
    return {x.layer: (x.predict(machine, "amos+"), x.measured) for x in samples}


def fit(dataset: Dataset, layers: Sequence[str], rounds: int = 4) -> Costs:
    """Fit the constants of the model: coordinate descent over powers of two, refined.

    The objective is the mean over layers of two sums: the share of pairs in the wrong
    order, smoothed, in which a pair whose predictions hardly differ counts half, and the
    error of the times. Order alone says nothing of pairs far apart, so that terms which
    only slow candidates have could be wrong by any factor.
    """
    samples = dataset.of(layers)
    best = dataset.machine_with(None).costs

    def loss(costs: Costs) -> float:
        machine = dataset.machine_with(costs)
        pairs = [(x.predict(machine, "amos+"), x.measured) for x in samples]
        return float(np.mean([_misorder_share(*pair) + error(*pair) for pair in pairs]))

    least = loss(best)
    for turn in range(rounds):
        factor = 2.0 ** (0.5**turn)
        for field in fields(Costs):
            for step in (factor, 1 / factor):
                while True:
                    trial = replace(best, **{field.name: getattr(best, field.name) * step})
                    if not (reached := loss(trial)) < least * (1 - 1e-4):
                        break
                    best, least = trial, reached
    return best


def _misorder_share(predicted: np.ndarray, measured: np.ndarray) -> float:
    first, second = np.triu_indices(len(predicted), 1)
    truth = np.sign(measured[first] - measured[second])
    right = np.log(predicted[first] / predicted[second]) * truth
    return float(np.mean(1.0 / (1.0 + np.exp(np.clip(right / _APART, -50.0, 50.0)))))


def error(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Return the Huber error of the logarithms, without a factor that all samples of a layer share.

    Only candidates count that are among the fastest by either: of those slow by both, the exact
    time does not matter.
    """
    last = min(int(_FAST * len(measured)), len(measured) - 1)
    fast = (measured <= np.sort(measured)[last]) | (predicted <= np.sort(predicted)[last])
    # A candidate predicted not to fit has no error of its time.
    fast &= np.isfinite(predicted)
    off = np.log(predicted[fast] / measured[fast])
    off = np.abs(off - np.median(off))
    return float(np.mean(np.where(off < _LARGE, off * off / (2 * _LARGE), off - _LARGE / 2)))
