"""ResNet-18 on VTA: the best of a search beside a plain schedule, and its bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from amos import machines, operators
from amos.errors import BuildError, StreamError
from amos.explore.run import explore
from amos.ir import Operator
from amos.machine import Machine
from amos.mapping import enumerate_mappings
from amos.perfmodel import predict
from amos.perfmodel.accuracy import pairwise
from amos.plan import Candidate, Structure
from amos.schedule import ScheduleSpace
from amos.streams.runtime import Run, StreamKernel
from amos.streams.schedule import StreamSchedule
from amos.validate import evaluate, random_inputs

LAYERS = tuple(f"C{number}" for number in range(1, 12))
_INTRINSIC, _PLAIN = "vta_gemm_m1n16k16_s8_s32", "n-k-c"
#: Steps of loops in a tile of the plain schedule: a row of outputs, 64 channels, a window.
_TILE, _STEPS = {"q": 56, "i2.tile": 4}, {"r": 3, "s": 3}


@dataclass(frozen=True)
class VtaRow:
    """One layer.

    Attributes:
        cycles: of the best candidate, simulated.
        peak: share of the unit's products in a cycle.
        bound: share of its bound: the products, or the port to DRAM with the bytes that
            this candidate moves.
        plain: cycles of the plain schedule, which has one buffer of each operand.
        failed: candidates that were not right, or had a hazard.
        ranked: share of the pairs of drawn candidates that the model puts in the order of the
            simulator; those within 1 % of each other are left out.
    """

    layer: str
    cycles: int
    peak: float
    bound: float
    plain: int
    failed: int
    ranked: float | None = None


def vta(
    layers: Sequence[str] = LAYERS, *, trials: int = 24, seed: int = 0, drawn: int = 0
) -> Iterator[VtaRow]:
    """Search each layer on the simulator, and compare (Heron, section 7: VTA).

    Args:
        drawn: random candidates of each layer to judge the model by.
    """
    machine = machines.get("vta_pynq")
    for layer in layers:
        op = operators.resolve(f"resnet18:{layer}", dtype="s8")
        result = explore(op, _INTRINSIC, machine=machine, trials=trials, seed=seed, progress=False)
        best = Candidate(result.best.mapping, result.best.schedule)
        run, plain = _run(best, machine), _run(_plain(op), machine)
        least = Structure(best.mapping).nest.calls
        chance = _measure_drawn(op, machine, drawn, seed) if drawn else []
        moving = run.moved * machine.clock / machine.levels[-1].read_bandwidth
        yield VtaRow(
            layer=layer,
            cycles=run.cycles,
            peak=least / run.cycles,
            bound=max(least, moving) / run.cycles,
            plain=plain.cycles,
            failed=drawn
            - len(chance)
            + sum(bool(t.measurement and t.measurement.failure) for t in result.trials),
            ranked=_rank(chance),
        )


def _measure_drawn(
    op: Operator, machine: Machine, count: int, seed: int
) -> list[tuple[float, float]]:
    """Predict and simulate drawn candidates; seconds of those that are right."""
    rng, mappings = np.random.default_rng(seed), list(enumerate_mappings(op, _INTRINSIC))
    inputs = random_inputs(op, rng)
    expected = evaluate(op, inputs)
    points = []
    for _ in range(count):
        mapping = mappings[int(rng.integers(len(mappings)))]
        schedule = ScheduleSpace(mapping, machine).sample(rng)
        try:
            kernel = StreamKernel(Candidate(mapping, schedule), machine)
            kernel.run(arguments := kernel.prepare(inputs))
        except (BuildError, StreamError):
            continue
        if kernel.last is not None and np.array_equal(kernel.result(arguments), expected):
            seconds = predict(mapping, machine, schedule).seconds
            points.append((seconds, kernel.last.cycles / machine.clock))
    return points


def _rank(points: Sequence[tuple[float, float]]) -> float | None:
    if len(points) < 2:
        return None
    predicted, simulated = np.transpose(points)
    return pairwise(predicted, simulated, noise=0.01)


def _plain(op: Operator) -> Candidate:
    (mapping,) = (m for m in enumerate_mappings(op, _INTRINSIC) if m.name == _PLAIN)
    structure = Structure(mapping)
    tile = {x.name: min(x.extent, _TILE[x.name]) for x in structure.spatial if x.name in _TILE}
    steps = {x.name: x.extent for x in structure.reduce if x.name in _STEPS}
    return Candidate(mapping, StreamSchedule(tile=tile, steps=steps))


def _run(candidate: Candidate, machine: Machine) -> Run:
    kernel = StreamKernel(candidate, machine)
    inputs = random_inputs(candidate.mapping.operator, np.random.default_rng(0))
    kernel.run(kernel.prepare(inputs))
    assert kernel.last is not None
    return kernel.last
