"""Measured samples of a layer in the form that the model takes, made once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from amos.machine import Costs, Machine, fitted
from amos.perfmodel import evaluate
from amos.plan import LoopBatch, Structure, batch_of
from amos.reproduce.samples import Dataset, restore

__all__ = ["Prepared", "halves", "machine_of", "prepare"]


class Prepared:
    """The samples of one layer.

    Attributes:
        layer: its name.
        rounds: seconds, rounds × candidates.
        measured: seconds of each candidate, the least disturbed of all rounds.
        noise: share by which two measurements differ, typically; 0 if there is only one.
        parts: the candidates of each mapping, and their places among all.
    """

    def __init__(self, dataset: Dataset, layer: str) -> None:
        found, self.rounds = restore(dataset, layer)
        self.measured = self.rounds.min(axis=0)
        self.noise = _noise(self.rounds)
        self.layer = layer
        self.parts: list[tuple[Structure, LoopBatch, list[int]]] = []
        order = sorted(range(len(found)), key=lambda n: found[n].mapping.name)
        for _, group in itertools.groupby(order, key=lambda n: found[n].mapping.name):
            rows = list(group)
            structure = Structure(found[rows[0]].mapping)
            batch = batch_of(structure, [found[n].schedule for n in rows])
            self.parts.append((structure, batch, rows))

    def predict(self, machine: Machine, model: str) -> np.ndarray:
        """Seconds of each candidate by a model."""
        seconds = np.empty(len(self.measured))
        for structure, batch, rows in self.parts:
            seconds[rows] = evaluate(structure, machine, batch, model).seconds
        return seconds


def halves(rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Two independent measurements of each candidate: best of every other round."""
    return (rounds[::2].min(axis=0), rounds[1::2].min(axis=0)) if len(rounds) > 1 else None


def _noise(rounds: np.ndarray) -> float:
    """Share by which two measurements differ, typically; 0 if there is only one."""
    pair = halves(rounds)
    return 0.0 if pair is None else float(np.expm1(np.std(np.log(pair[0] / pair[1]))))


def prepare(dataset: Dataset, layers: Sequence[str]) -> list[Prepared]:
    """The samples of some layers of a dataset."""
    return [Prepared(dataset, layer) for layer in layers]


def machine_of(dataset: Dataset, costs: Costs | None) -> Machine:
    """The machine that a dataset was measured on, with the constants of its maker or others."""
    machine = dataset.machine
    return replace(machine, costs=fitted(machine.maker) if costs is None else costs)
