"""The model of streamed units, held against the simulator."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import amos
from amos.errors import MachineError
from amos.perfmodel import evaluate, total_joules
from amos.plan import Candidate, Structure, batch_of
from amos.schedule import ScheduleSpace
from amos.streams import StreamSchedule
from amos.streams.runtime import StreamKernel
from tests.support.streams import OPERATORS, PYNQ, VTA, drawn, inputs_of

CONV = {m.name: m for m in amos.enumerate_mappings(OPERATORS["conv"], VTA)}["n-k-c"]


def _cycles(kernel: StreamKernel) -> int:
    kernel.run(kernel.prepare(inputs_of(kernel.plan.mapping.operator)))
    assert kernel.last is not None
    return kernel.last.cycles


def test_the_model_ranks_as_the_simulator_does() -> None:
    op = amos.operators.get("conv2d", n=1, c=32, k=32, p=7, q=7, r=3, s=3, dtype="s8")
    points = []
    for kernel in drawn(op, 24, seed=2):
        seconds = amos.predict(kernel.plan.mapping, PYNQ, kernel.plan.schedule).seconds
        points.append((seconds, _cycles(kernel)))
    pairs = [(a, b) for a, b in combinations(points, 2) if abs(a[1] - b[1]) > 0.01 * a[1]]
    right = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs)
    assert right / len(pairs) > 0.9


def test_transfers_pass_behind_products_where_buffers_allow() -> None:
    op = amos.operators.resolve("resnet18:C5", dtype="s8")
    mapping = {m.name: m for m in amos.enumerate_mappings(op, VTA)}["n-k-c"]
    tile, steps = {"p": 7, "q": 28, "i2.tile": 4}, {"r": 3, "s": 3, "r1.tile": 2}
    seconds, cycles = [], []
    for count in (1, 2):
        buffers = dict.fromkeys(("Src1", "Src2", "Dst"), count)
        schedule = StreamSchedule(tile=tile, steps=steps, buffers=buffers)
        seconds.append(amos.predict(mapping, PYNQ, schedule).seconds * PYNQ.clock)
        cycles.append(_cycles(StreamKernel(Candidate(mapping, schedule), PYNQ)))
    assert seconds == pytest.approx(cycles, rel=0.1)
    assert cycles[1] < 0.85 * cycles[0]


def test_products_wait_for_large_tiles_that_are_loaded_now_and_then() -> None:
    """Two halves of the weights stay for all rows, with no buffer left for the next, or one does
    and the next one comes behind the rows of the step before."""
    op = amos.operators.get("gemm", dtype="s8", m=128, n=256, k=512)
    (mapping,) = amos.enumerate_mappings(op, VTA)
    buffers = dict.fromkeys(("Src1", "Src2", "Dst"), 2)
    for halves in (2, 1):
        schedule = StreamSchedule(
            tile={"i1.tile": 16, "i2.tile": 4},
            order=("i2.tile", "i1.tile"),
            steps={"r1.tile": 32 // halves},
            buffers=buffers,
        )
        cycles = _cycles(StreamKernel(Candidate(mapping, schedule), PYNQ))
        predicted = amos.predict(mapping, PYNQ, schedule).seconds * PYNQ.clock
        assert predicted == pytest.approx(cycles, rel=0.05)


def test_tiles_that_do_not_fit_take_forever() -> None:
    op = amos.operators.resolve("resnet18:C1", dtype="s8")
    mapping = {m.name: m for m in amos.enumerate_mappings(op, VTA)}["n-k-c"]
    large = StreamSchedule(tile={"p": 56, "q": 56})
    with pytest.raises(MachineError, match="the tiles in buffer inp exceed it"):
        amos.predict(mapping, PYNQ, large)


def test_a_large_batch_has_all_accesses() -> None:
    """It is predicted in pieces, and each row is what it is alone."""
    structure = Structure(CONV)
    schedules = ScheduleSpace(CONV, PYNQ).draw(4, np.random.default_rng(0))
    small = evaluate(structure, PYNQ, batch_of(structure, schedules))
    large = evaluate(structure, PYNQ, batch_of(structure, schedules * 1500))
    expected, joules = total_joules(small.accesses), total_joules(large.accesses)
    assert expected is not None
    assert joules is not None
    assert joules.tolist() == expected.tolist() * 1500
    for few, many in zip(small.accesses, large.accesses, strict=True):
        assert (few.level, few.operand) == (many.level, many.operand)
        assert many.read_bytes.tolist() == few.read_bytes.tolist() * 1500
        assert many.written_bytes.tolist() == few.written_bytes.tolist() * 1500
