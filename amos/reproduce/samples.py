"""Measured samples of mappings and schedules, and the file that keeps them.

A dataset is a gzipped file of JSON lines: first the machine, then one line a
sample. Nothing in it is evaluated; whoever has it can study the model without
measuring again.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amos import operators
from amos.errors import RecordError
from amos.intrinsics import get as get_intrinsic
from amos.machine import Level, Machine, Peak
from amos.mapping import Mapping as Placement
from amos.mapping import enumerate_mappings
from amos.measure import Runner, Task
from amos.plan import Candidate, Schedule
from amos.schedule import ScheduleSpace

__all__ = ["Dataset", "Sample", "collect", "load", "save"]

_VERSION = 2
#: Digits of a measured time that are worth keeping.
_DIGITS = 5


@dataclass(frozen=True)
class Sample:
    """One measured candidate.

    Attributes:
        layer: name in the tables of :mod:`amos.operators`.
        groups: the mapping: intrinsic iteration → software iterations.
        schedule: the schedule's variables.
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

    @property
    def seconds(self) -> float:
        """The shortest of all measured times, the one least disturbed."""
        return min(self.rounds)


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


def candidates(layer: str, intrinsic: str, count: int, seed: int) -> list[Candidate]:
    """Distinct candidates of a layer: a random mapping, then a random schedule of it."""
    unit = get_intrinsic(intrinsic)
    mappings = list(enumerate_mappings(operators.resolve(layer), unit, rule="access"))
    rng = np.random.default_rng([seed, *layer.encode()])
    found: dict[Any, Candidate] = {}
    while len(found) < count:
        mapping: Placement = mappings[int(rng.integers(len(mappings)))]
        candidate = Candidate(mapping, ScheduleSpace(mapping).sample(rng))
        found.setdefault(candidate.key, candidate)
    return list(found.values())


def collect(
    layers: Iterable[str],
    intrinsic: str,
    machine: Machine,
    *,
    count: int,
    seed: int,
    rounds: int = 2,
    progress: Callable[[str, int], None] | None = None,
) -> Dataset:
    """Measure random candidates of each layer on this machine.

    Args:
        layers: names in the layer tables.
        intrinsic: name of the intrinsic.
        machine: this machine, as it was probed.
        count: candidates of a layer.
        seed: seed of the random generator.
        rounds: how often everything is measured, one round after the other, so
            that a disturbance does not hit the same candidates twice.
        progress: called with a layer and a round when a layer is done.
    """
    todo = {layer: candidates(layer, intrinsic, count, seed) for layer in layers}
    found: dict[tuple[str, int], list[float]] = {}
    with Runner(timeout=60) as runner:
        for turn in range(rounds):
            for layer, group in todo.items():
                for number, candidate in enumerate(group):
                    measured = runner.measure(Task(candidate, repeat=7))
                    if measured.ok:
                        best = float(f"{min(measured.times):.{_DIGITS}g}")
                        found.setdefault((layer, number), []).append(best)
                if progress is not None:
                    progress(layer, turn)
    samples = [
        Sample(
            layer,
            {k: list(v) for k, v in todo[layer][number].mapping.groups.items()},
            todo[layer][number].schedule.as_dict(),
            tuple(times),
        )
        for (layer, number), times in sorted(found.items())
        if len(times) == rounds
    ]
    return Dataset(machine, intrinsic, tuple(samples))


def restore(dataset: Dataset, layer: str) -> tuple[list[Candidate], np.ndarray]:
    """Candidates of a layer and their measured seconds: rounds × candidates."""
    unit = get_intrinsic(dataset.intrinsic)
    space = enumerate_mappings(operators.resolve(layer), unit, rule="access")
    known = {tuple(map(tuple, m.groups.values())): m for m in space}
    rows = [sample for sample in dataset.samples if sample.layer == layer]
    found = [
        Candidate(known[tuple(map(tuple, row.groups.values()))], Schedule.of(row.schedule))
        for row in rows
    ]
    return found, np.array([row.rounds for row in rows]).T


def save(dataset: Dataset, path: Path) -> None:
    """Write a dataset.

    Raises:
        RecordError: the file cannot be written.
    """
    # The constants belong to the model, not to the machine that was measured.
    machine = {k: v for k, v in asdict(dataset.machine).items() if k not in ("costs", "gpu")}
    head = {"version": _VERSION, "intrinsic": dataset.intrinsic, "machine": machine}
    lines = [json.dumps(head), *(json.dumps(asdict(sample)) for sample in dataset.samples)]
    try:
        # No time stamp inside, so that the same samples are the same file.
        path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    except OSError as error:
        raise RecordError(f"dataset {str(path)!r} cannot be written: {error}") from error


def load(path: Path) -> Dataset:
    """Read a dataset.

    Raises:
        RecordError: the file is missing, or is no dataset of this version.
    """
    try:
        head, *rows = gzip.decompress(path.read_bytes()).decode().splitlines()
        about = json.loads(head)
        if about.get("version") != _VERSION:
            raise RecordError(
                f"dataset {str(path)!r}: version {about.get('version')}, expected {_VERSION}"
            )
        samples = tuple(Sample(**json.loads(row)) for row in rows)
        return Dataset(_machine(about["machine"]), about["intrinsic"], samples)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"dataset {str(path)!r} cannot be read: {error}") from error


def _machine(data: dict[str, Any]) -> Machine:
    levels = tuple(Level(**level) for level in data.pop("levels"))
    peaks = {name: Peak(**peak) for name, peak in data.pop("peaks").items()}
    features = tuple(data.pop("features"))
    return Machine(**data, levels=levels, peaks=peaks, features=features)
