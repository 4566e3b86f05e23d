"""The model of GPUs beside kernels that were measured on an H200.

``benchmarks/results/h200.jsonl`` has a kernel a line: those drawn at random, and the model's
best four of 64. All were right. docs/cuda.md says how they were made.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from amos import intrinsics, operators
from amos.machine import catalogue
from amos.mapping import Mapping
from amos.perfmodel import predict
from amos.perfmodel.accuracy import pairwise
from amos.plan.schedule import Schedule
from amos.schedule import ScheduleSpace

ROWS = Path(__file__).parents[2] / "benchmarks" / "results" / "h200.jsonl"


def _predicted_seconds(row: dict[str, Any]) -> float:
    op = operators.get(row["operator"], dtype="f16", **row["extents"])
    unit, machine = intrinsics.get(row["unit"]), catalogue.get("h200")
    matrix = [
        [it.name in row["mapping"][step.name] for it in op.iterations] for step in unit.iterations
    ]
    mapping = Mapping.of(op, unit, matrix, "access", tuple(row["sources"]))
    schedule = ScheduleSpace(mapping, machine).check(Schedule.of(row["schedule"]))
    return predict(mapping, machine, schedule).seconds


def _measured(drawn: str) -> dict[str, np.ndarray]:
    """Predicted and measured seconds of kernels of each operator."""
    pairs = defaultdict(list)
    for row in map(json.loads, ROWS.read_text(encoding="utf-8").splitlines()):
        if row["drawn"] == drawn:
            key = f"{row['operator']} {row['extents']}"
            pairs[key].append((_predicted_seconds(row), row["seconds"]))
    return {name: np.array(seconds).T for name, seconds in pairs.items()}


@pytest.fixture(scope="module")
def random_kernels() -> dict[str, np.ndarray]:
    """Predicted and measured seconds of the random kernels of each operator."""
    return _measured("random")


@pytest.mark.long
def test_kernels_are_ranked_as_measured(random_kernels: dict[str, np.ndarray]) -> None:
    share = {name: pairwise(*seconds) for name, seconds in random_kernels.items()}
    assert np.mean([*share.values()]) >= 0.88
    # The scan has six kernels: a pair of them is 0.07.
    assert all(each >= (0.72 if "scan" in name else 0.78) for name, each in share.items())


def test_seconds_are_those_measured_on_average(random_kernels: dict[str, np.ndarray]) -> None:
    ratios = np.concatenate([np.log(m / p) for p, m in random_kernels.values()])
    assert 0.8 <= np.exp(ratios.mean()) <= 1.3


def test_seconds_of_the_best_kernels_are_predicted() -> None:
    ratios = {name: np.log(m / p) for name, (p, m) in _measured("best").items()}
    assert 0.9 <= np.exp(np.concatenate([*ratios.values()]).mean()) <= 1.2
    large = next(ratios[name] for name in ratios if "4096" in name)
    assert 0.9 <= np.exp(large.min()) <= np.exp(large.max()) <= 1.25
