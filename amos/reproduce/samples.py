"""Measured samples of mappings and schedules, and the file that keeps them.

A dataset is a gzipped file of JSON lines: first the machine, then one line a
sample. Nothing in it is evaluated; it suffices to study the model without
measuring again.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from amos import operators
from amos.errors import RecordError
from amos.intrinsics import get as get_intrinsic
from amos.machine import Costs, Machine, fitted_costs
from amos.mapping import enumerate_mappings
from amos.measure import Runner, Task
from amos.perfmodel import evaluate
from amos.plan import Candidate, LoopBatch, Schedule, Structure, batch_of
from amos.records.canonical import machine_from
from amos.schedule import ScheduleSpace

_VERSION = 2
#: Significant digits of a measured time.
_DIGITS = 5


@dataclass(frozen=True)
class Sample:
    """One measured candidate.

    Attributes:
        layer: name in the tables of :mod:`amos.operators`.
        groups: the mapping: intrinsic iteration → software iterations.
        rounds: for each round of measuring, the shortest of its times, in seconds.
    """

    layer: str
    groups: Mapping[str, Sequence[str]]
    schedule: Mapping[str, int | str]
    rounds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rounds or not all(seconds > 0 for seconds in self.rounds):
            raise RecordError(f"sample of {self.layer}: times must be positive, got {self.rounds}")
        object.__setattr__(self, "rounds", tuple(self.rounds))

    @staticmethod
    def of(layer: str, candidate: Candidate, rounds: Sequence[float]) -> Sample:
        """Create a sample of a candidate of a layer with its times."""
        groups = {name: list(group) for name, group in candidate.mapping.groups.items()}
        return Sample(layer, groups, candidate.schedule.as_dict(), tuple(rounds))


@dataclass(frozen=True)
class Dataset:
    """Samples of one intrinsic on one machine."""

    machine: Machine
    intrinsic: str
    samples: tuple[Sample, ...]

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers that were sampled, in order."""
        return tuple(dict.fromkeys(sample.layer for sample in self.samples))

    def machine_with(self, costs: Costs | None) -> Machine:
        """Return the machine with constants of the model, by default those of the CPU's maker."""
        return replace(
            self.machine, costs=fitted_costs(self.machine.maker) if costs is None else costs
        )

    def of(self, layers: Iterable[str]) -> list[LayerSamples]:
        """Return the samples of some layers for the model."""
        return [LayerSamples(self, layer) for layer in layers]


class LayerSamples:
    """The samples of one layer in the form of the model's input.

    Attributes:
        measured: seconds of each candidate, the least disturbed of all rounds.
        mappings: name of the mapping of each.
        halves: two independent measurements of each candidate, the best of every other
            round; ``None`` if there is only one round.
        noise: share by which two measurements differ, typically; 0 if there is only one.
    """

    def __init__(self, dataset: Dataset, layer: str) -> None:
        self.layer = layer
        rows = [sample for sample in dataset.samples if sample.layer == layer]
        rounds = np.array([row.rounds for row in rows]).T
        self.measured = rounds.min(axis=0)
        self.halves: tuple[np.ndarray, np.ndarray] | None = None
        self.noise = 0.0
        if len(rounds) > 1:
            self.halves = rounds[::2].min(axis=0), rounds[1::2].min(axis=0)
            self.noise = float(np.expm1(np.std(np.log(self.halves[0] / self.halves[1]))))
        op, unit = operators.resolve(layer), get_intrinsic(dataset.intrinsic)
        space = enumerate_mappings(op, unit, rule="access")
        mappings = {tuple(map(tuple, m.groups.values())): m for m in space}
        places: dict[tuple[tuple[str, ...], ...], list[int]] = {}
        for number, row in enumerate(rows):
            places.setdefault(tuple(map(tuple, row.groups.values())), []).append(number)
        self.mappings = [mappings[tuple(map(tuple, row.groups.values()))].name for row in rows]
        self._batches: list[tuple[Structure, LoopBatch, list[int]]] = []
        for groups, numbers in places.items():
            structure = Structure(mappings[groups])
            batch = batch_of(structure, [Schedule.of(rows[n].schedule) for n in numbers])
            self._batches.append((structure, batch, numbers))

    def predict(self, machine: Machine, model: str) -> np.ndarray:
        """Predict seconds of each candidate by a model."""
        return self._evaluate(machine, model).seconds

    def calls(self, machine: Machine) -> np.ndarray:
        """Return the least seconds that the calls of each candidate take by the model."""
        return self._evaluate(machine, "amos+").compute

    def _evaluate(self, machine: Machine, model: str) -> _Evaluated:
        rows = _Evaluated(np.empty(len(self.measured)), np.empty(len(self.measured)))
        for structure, batch, numbers in self._batches:
            batched = evaluate(structure, machine, batch, model)
            rows.seconds[numbers], rows.compute[numbers] = batched.seconds, batched.compute
        return rows


@dataclass(frozen=True, eq=False)
class _Evaluated:
    """For each sample, by a model: all seconds, and those of its calls alone."""

    seconds: np.ndarray
    compute: np.ndarray


def candidates(layer: str, intrinsic: str, count: int, seed: int) -> list[Candidate]:
    """Draw distinct candidates of a layer: a mapping, then a schedule of it."""
    unit = get_intrinsic(intrinsic)
    mappings = list(enumerate_mappings(operators.resolve(layer), unit, rule="access"))
    rng = np.random.default_rng([seed, *layer.encode()])
    drawn: dict[Any, Candidate] = {}
    while len(drawn) < count:
        mapping = mappings[int(rng.integers(len(mappings)))]
        candidate = Candidate(mapping, ScheduleSpace(mapping).sample(rng))
        drawn.setdefault(candidate.key, candidate)
    return list(drawn.values())


def collect(
    layers: Iterable[str],
    intrinsic: str,
    machine: Machine,
    *,
    count: int,
    seed: int,
    rounds: int = 2,
    progress: Callable[[int, int, str], None] | None = None,
) -> Dataset:
    """Measure random candidates of each layer on this machine.

    Args:
        rounds: how often everything is measured, one round after the other, so
            that a disturbance does not hit the same candidates twice.
    """
    todo = {layer: candidates(layer, intrinsic, count, seed) for layer in layers}
    times: dict[tuple[str, int], list[float]] = {}
    with Runner(timeout=60) as runner:
        for turn in range(rounds * len(todo)):
            layer = list(todo)[turn % len(todo)]
            if progress is not None:
                progress(turn, rounds * len(todo), layer)
            for number, candidate in enumerate(todo[layer]):
                measured = runner.measure(Task(candidate, repeat=7))
                if measured.ok:
                    best = float(f"{min(measured.times):.{_DIGITS}g}")
                    times.setdefault((layer, number), []).append(best)
    samples = tuple(
        Sample.of(layer, todo[layer][number], rows)
        for (layer, number), rows in sorted(times.items())
        if len(rows) == rounds
    )
    return Dataset(machine, intrinsic, samples)


def save(dataset: Dataset, path: Path) -> None:
    """Write a dataset; raise RecordError if the file cannot be written."""
    # The constants belong to the model, not to the machine that was measured.
    omitted = ("costs", "gpu", "stream")
    machine = {k: v for k, v in asdict(dataset.machine).items() if k not in omitted}
    head = {"version": _VERSION, "intrinsic": dataset.intrinsic, "machine": machine}
    lines = [json.dumps(head), *(json.dumps(asdict(sample)) for sample in dataset.samples)]
    try:
        # No time stamp inside, so that the same samples are the same file.
        path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    except OSError as error:
        raise RecordError(f"dataset {str(path)!r} cannot be written: {error}") from error


def load(path: Path) -> Dataset:
    """Read a dataset of this version, or raise RecordError."""
    try:
        head, *rows = gzip.decompress(path.read_bytes()).decode().splitlines()
        header = json.loads(head)
        if header.get("version") != _VERSION:
            raise RecordError(f"version {header.get('version')}, expected {_VERSION}")
        samples = tuple(Sample(**json.loads(row)) for row in rows)
        machine = machine_from(header["machine"] | {"costs": {}})
        return Dataset(machine, header["intrinsic"], samples)
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecordError) as error:
        raise RecordError(f"dataset {str(path)!r} cannot be read: {error}") from error
