"""AMOS, section 7.2 and Figure 5: how well the model ranks what was measured.

The constants of :class:`amos.perfmodel.Costs` are fitted on the layers of
ResNet-18 alone; layers of VGG-16 and MobileNet are held back and only judged.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from amos.perfmodel import Costs, LoopBatch, Machine, Structure, evaluate
from amos.perfmodel.accuracy import best_of_first, pairwise, recall, trials_until
from amos.perfmodel.residual import Residual, features
from amos.reproduce.samples import Dataset, load, restore
from amos.schedule import batch_of

__all__ = [
    "FITTED_ON",
    "HELD_BACK",
    "INTRINSIC",
    "SETS",
    "Accuracy",
    "Judged",
    "fig5",
    "fit",
    "judge",
    "predictions",
    "stored",
]

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
#: What AMOS reports for its model on a Tensor Core (section 7.2).
PAPER = {"pairwise": 0.8569, "recall40": 0.914}


@dataclass(frozen=True)
class Accuracy:
    """How one layer, or several together, were ranked.

    Attributes:
        layer: the layer; ``"overall"`` for the mean over several.
        samples: number of candidates.
        pairwise: share of pairs in the right order.
        recall: percent → share of the fastest so many percent that were found.
        best_of_ten: fastest of the ten best predicted, over the fastest sampled.
        trials: how many of the best predicted come within 5 % of the fastest.
    """

    layer: str
    samples: int
    pairwise: float
    recall: Mapping[int, float]
    best_of_ten: float
    trials: float


@dataclass(frozen=True)
class Judged:
    """A model judged on a set of layers."""

    model: str
    layers: tuple[Accuracy, ...]

    @property
    def overall(self) -> Accuracy:
        """Mean over the layers, each layer counting once."""

        def mean(values: Sequence[float]) -> float:
            return float(np.mean(values))

        return Accuracy(
            "overall",
            sum(x.samples for x in self.layers),
            mean([x.pairwise for x in self.layers]),
            {share: mean([x.recall[share] for x in self.layers]) for share in SHARES},
            mean([x.best_of_ten for x in self.layers]),
            mean([x.trials for x in self.layers]),
        )

    @property
    def within_5pct(self) -> int:
        """Layers whose ten best predicted hold one within 5 % of the fastest."""
        return sum(x.best_of_ten <= 1.05 for x in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "layers": [x.layer for x in self.layers],
            "samples": self.overall.samples,
            "pairwise": self.overall.pairwise,
            "recall": {str(share): value for share, value in self.overall.recall.items()},
            "top10_within_5pct": self.within_5pct,
            "trials_within_5pct": self.overall.trials,
        }


class _Prepared:
    """The samples of a layer in the form that the model takes, made once."""

    def __init__(self, dataset: Dataset, layer: str) -> None:
        found, self.measured = restore(dataset, layer)
        self.layer = layer
        self.parts: list[tuple[Structure, LoopBatch, list[int]]] = []
        order = sorted(range(len(found)), key=lambda n: found[n].mapping.name)
        for _, group in itertools.groupby(order, key=lambda n: found[n].mapping.name):
            rows = list(group)
            structure = Structure(found[rows[0]].mapping)
            batch = batch_of(structure, [found[n].schedule for n in rows])
            self.parts.append((structure, batch, rows))

    def predict(self, machine: Machine, model: str) -> np.ndarray:
        seconds = np.empty(len(self.measured))
        for structure, batch, rows in self.parts:
            seconds[rows] = evaluate(structure, machine, batch, model).seconds
        return seconds

    def terms(self, machine: Machine) -> tuple[np.ndarray, np.ndarray]:
        """Features of the learned correction, and the predicted seconds."""
        found = [
            (features(structure, machine, batch), rows) for structure, batch, rows in self.parts
        ]
        table = np.empty((len(self.measured), found[0][0].shape[1]))
        for values, rows in found:
            table[rows] = values
        return table, self.predict(machine, "amos+")


def stored() -> Dataset:
    """The samples that come with the package."""
    file = resources.files("amos.reproduce") / "data" / "fig5.jsonl.gz"
    with resources.as_file(file) as path:
        return load(Path(path))


def judge(
    dataset: Dataset, layers: Sequence[str], model: str = "amos+", costs: Costs | None = None
) -> Judged:
    """Judge a model on some layers of a dataset.

    Args:
        dataset: measured samples.
        layers: those to judge on.
        model: ``"amos+"`` or ``"amos"``.
        costs: constants of the model; those of this version if omitted.
    """
    machine = replace(dataset.machine, costs=costs or Costs())
    return Judged(
        model,
        tuple(_accuracy(_Prepared(dataset, layer), machine, model) for layer in layers),
    )


def _accuracy(prepared: _Prepared, machine: Machine, model: str) -> Accuracy:
    return _ranked(prepared, prepared.predict(machine, model))


def _ranked(prepared: _Prepared, predicted: np.ndarray) -> Accuracy:
    measured = prepared.measured
    return Accuracy(
        prepared.layer,
        len(measured),
        pairwise(predicted, measured),
        {share: recall(predicted, measured, share / 100) for share in SHARES},
        best_of_first(predicted, measured, 10),
        trials_until(predicted, measured, 0.05),
    )


def fit(dataset: Dataset, layers: Sequence[str] = FITTED_ON, rounds: int = 4) -> Costs:
    """Fit the constants of the model: coordinate descent over powers of two, refined.

    What is minimized is the mean over layers of the spread of log(measured /
    predicted): a common factor does not change a ranking.
    """
    prepared = [_Prepared(dataset, layer) for layer in layers]
    best = Costs()

    def loss(costs: Costs) -> float:
        machine = replace(dataset.machine, costs=costs)
        logs = [np.log(x.measured / x.predict(machine, "amos+")) for x in prepared]
        return float(np.mean([np.abs(x - np.median(x)).mean() for x in logs]))

    least = loss(best)
    for turn in range(rounds):
        factor = 2.0 ** (0.5**turn)
        for field in fields(Costs):
            for step in (factor, 1 / factor):
                while True:
                    trial = replace(best, **{field.name: getattr(best, field.name) * step})
                    found = loss(trial)
                    if found >= least * (1 - 1e-4):
                        break
                    best, least = trial, found
    return best


def fig5(dataset: Dataset, costs: Costs | None = None) -> dict[str, Any]:
    """The whole comparison as plain values: both sets, by each model.

    With xgboost installed, the learned correction is judged too: trained on the
    first set alone.
    """
    present = {
        name: [layer for layer in layers if layer in dataset.layers]
        for name, layers in SETS.items()
    }
    found = {n: judge(dataset, x, costs=costs).to_dict() for n, x in present.items()}
    paper = {n: judge(dataset, x, "amos").to_dict() for n, x in present.items()}
    result = {
        "machine": dataset.machine.source,
        "intrinsic": dataset.intrinsic,
        **found,
        "paper_equation": paper,
        "paper_reports": PAPER,
    }
    if find_spec("xgboost") is not None:
        result["learned"] = {
            name: judged.to_dict() for name, judged in _learned(dataset, present, costs).items()
        }
    return result


def _learned(
    dataset: Dataset, sets: Mapping[str, Sequence[str]], costs: Costs | None
) -> dict[str, Judged]:
    machine = replace(dataset.machine, costs=costs or Costs())
    prepared = {n: [_Prepared(dataset, layer) for layer in x] for n, x in sets.items()}
    train = [x.terms(machine) for x in prepared["fitted_on"]]
    residual = Residual.train(
        np.concatenate([rows for rows, _ in train]),
        np.concatenate([predicted for _, predicted in train]),
        np.concatenate([x.measured for x in prepared["fitted_on"]]),
    )
    return {
        name: Judged(
            "learned",
            tuple(_ranked(x, residual.correct(*x.terms(machine))) for x in group),
        )
        for name, group in prepared.items()
    }


def predictions(
    dataset: Dataset, costs: Costs | None = None, model: str = "amos+"
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each layer predicted and measured seconds of its samples."""
    machine = replace(dataset.machine, costs=costs or Costs())
    prepared = [_Prepared(dataset, layer) for layer in dataset.layers]
    return {x.layer: (x.predict(machine, model), x.measured) for x in prepared}
