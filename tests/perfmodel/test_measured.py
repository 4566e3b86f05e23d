"""Predictions beside measurements, for whatever implementations this CPU runs.

They need the whole machine: on a core that others use a kernel takes any time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from amos import intrinsics, operators
from amos.codegen.tir.tensor_intrin import check_operands, implementation
from amos.errors import BuildError, MappingError
from amos.explore.sampled import best_sampled
from amos.machine.cpu import cpu
from amos.mapping import enumerate_mappings
from amos.measure import Runner, Task, host_machine

#: Layers of ResNet-18 with 13 million operations each.
LAYERS = ("resnet18:C4", "resnet18:C10")
#: How far a prediction may be off, either way.
MOST = 2.5
#: Mappings of a layer, schedules of each, and measurements; the best of them counts, since
#: whatever else runs can only make one worse.
MAPPINGS, SCHEDULES, ROUNDS = 8, 16, 6


def _runnable() -> Iterator[tuple[str, str]]:
    """Every instruction of the catalogue that this CPU has; of loops no time is predicted."""
    for name in intrinsics.names():
        unit = intrinsics.get(name)
        try:
            check_operands(unit)
        except BuildError:
            continue
        if (kind := implementation(unit, cpu().features)) != "generic":
            yield name, kind


def _off(name: str, kind: str, layer: str) -> float | None:
    """Measured by predicted seconds of the best that is drawn; ``None`` without a mapping."""
    unit, rng = intrinsics.get(name), np.random.default_rng(1)
    try:
        space = enumerate_mappings(operators.resolve(layer), unit, rule="paper")
    except MappingError:  # it computes something else than products
        return None
    with Runner(timeout=120) as runner:
        machine = host_machine([unit], runner=runner, implementation=kind)
        numbers = range(0, space.count, max(1, space.count // MAPPINGS))
        drawn = (best_sampled(space[n], machine, SCHEDULES, rng) for n in numbers)
        fitting = [pair for pair in drawn if pair is not None]
        if not fitting:
            return None
        prediction, candidate = min(fitting, key=lambda pair: pair[0].seconds)
        best = float("inf")
        for _ in range(ROUNDS):
            measured = runner.measure(Task(candidate, implementation=kind))
            assert measured.ok, measured.message
            best = min(best, *measured.times)
            if best <= MOST * prediction.seconds:
                break
        return best / prediction.seconds


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("name", "kind"), list(_runnable()))
def test_every_prediction_is_near_what_is_measured(name: str, kind: str, layer: str) -> None:
    off = _off(name, kind, layer)
    if off is None:
        pytest.skip(f"{name} has no mapping of {layer} that fits")
    assert 1 / MOST <= off <= MOST
