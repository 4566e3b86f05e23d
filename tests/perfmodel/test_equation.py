"""The level equation by hand, and what amos+ makes of its terms."""

from __future__ import annotations

from dataclasses import replace

import pytest

import amos
from amos.ir import Operator
from amos.machine import Level, Peak
from amos.perfmodel import MODELS, Prediction, predict
from amos.plan import Schedule
from tests.support.models import LEVELS, VNNI, gemm, machine_of


@pytest.mark.parametrize("model", MODELS)
def test_the_level_equation_by_hand(model: str) -> None:
    """Two rows of 16 lanes, two steps of four bytes: four calls."""
    prediction = predict(gemm(), machine_of(*LEVELS), Schedule.of({}), model=model)
    zero, first, two = prediction.rows
    # No register tile, so each call waits for the one before it.
    assert (zero.level, zero.trips, zero.compute) == ("intrinsic", 4, 4 * 5.0)
    # Out of L1 a call reads 4 bytes into each of 16 lanes, and 64 bytes of weights.
    assert (first.bytes_in, first.bytes_out) == (4 * (4 * 16 + 64), 2 * 64)
    assert (first.compute, first.read, first.write) == (20.0, 512 / 64, 128 / 32)
    # One row of each operand fits the 200 bytes of L1; the weights stay there.
    assert (two.trips, two.bytes_in, two.bytes_out) == (2, 2 * 8 + 128, 2 * 64)
    assert (two.compute, two.read, two.write) == (20.0, 144 / 16, 128 / 8)
    if model == "amos":
        assert prediction.seconds == max(20.0, 9.0, 16.0)
    else:
        # Reads and writes of a level share its buffers.
        # A single core has no region to start.
        assert (prediction.staging, prediction.launch) == (0.0, 0.0)
        assert prediction.seconds == max(20.0, 9.0 + 16.0)
    assert prediction.bound == "issue of the intrinsic"


def test_padding_costs_calls() -> None:
    """Five rows in tiles of two are six."""
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=5, j=16, k=8))
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    machine = machine_of(Level("DRAM", 0, 1e9, 1e9))
    first, two = (predict(mapping, machine, Schedule.of({"tile.i": t})) for t in (1, 2))
    assert first.rows[0].compute == 5 * 2 * 5.0
    assert two.rows[0].compute == 6 * 2 * 2.5


def test_a_cut_tile_makes_fewer_calls_and_waits_as_long() -> None:
    """Twenty-five rows in tiles of eight are four tiles, the last one of a single row."""
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=25, j=16, k=8))
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    machine = machine_of(Level("DRAM", 0, 1e9, 1e9))
    assert predict(mapping, machine, Schedule.of({"tile.i": 8})).rows[0].compute == 25 * 2
    slow = replace(machine, peaks={VNNI.name: Peak(latency=16.0, interval=1.0)})
    assert predict(mapping, slow, Schedule.of({"tile.i": 8})).rows[0].compute == 4 * 2 * 16


def test_calls_in_close_order_take_longer_than_a_probe_says() -> None:
    machine = machine_of(Level("DRAM", 0, 1e9, 1e9))
    dense = replace(machine, costs=replace(machine.costs, dense=4.0))
    first, two = (predict(gemm(), dense, Schedule.of({"tile.i": tile})) for tile in (1, 2))
    # Calls that wait for each other are in no such order.
    assert (first.rows[0].compute, two.rows[0].compute) == (20.0, 16.0)


def test_near_levels_hinder_each_other_and_far_ones_do_not() -> None:
    """Both ways of a level add up; what the second cache lacks is hidden, or hides the rest."""

    def predicted(bandwidth: float) -> Prediction:
        caches = (Level("L1", 64, 8.0, 8.0), Level("L2", 128, 8.0, 8.0))
        machine = machine_of(*caches, Level("DRAM", 0, bandwidth, bandwidth))
        machine = replace(machine, costs=replace(machine.costs, overlap=1.0))
        return predict(gemm(), machine, Schedule.of({}))

    fast, slow = predicted(64.0), predicted(0.25)
    calls, first, second, memory = fast.rows
    near = first.read + first.write + second.read + second.write
    # The calls count twice, as those that start and as those that wait for others.
    assert calls.compute + near <= fast.seconds - fast.launch <= 2 * calls.compute + near
    assert 0 < memory.read + memory.write < near
    far = slow.rows[-1]
    assert slow.seconds - slow.launch == pytest.approx(far.read + far.write)
    assert far.read + far.write > fast.seconds


def test_what_comes_from_far_is_hidden_less() -> None:
    """As much of it as the exponent says; all of it adds to the rest if that is 1."""
    caches = (Level("L1", 64, 8.0, 8.0), Level("L2", 128, 8.0, 8.0))
    machine = machine_of(*caches, Level("DRAM", 0, 4.0, 4.0))
    costs = replace(machine.costs, far=1.0)
    added = predict(gemm(), replace(machine, costs=costs), Schedule.of({}))
    calls, *levels = added.rows
    first, second, memory = (level.read + level.write for level in levels)
    assert min(first, second, memory) > 0
    near = max(calls.compute, first, second)
    assert added.seconds == pytest.approx(near + memory + added.launch)
    hidden = predict(gemm(), machine, Schedule.of({}))
    assert hidden.seconds == pytest.approx(max(near, memory) + hidden.launch)


def test_slow_memory_binds_and_is_named() -> None:
    machine = machine_of(Level("DRAM", 0, 1.0, 1e9))
    prediction = predict(gemm(), machine, Schedule.of({}), model="amos")
    assert prediction.seconds == 512
    assert prediction.bound == "DRAM reads of `a`: 26x the compute time"
    machine = machine_of(Level("DRAM", 0, 1e9, 1.0))
    found_out = predict(gemm(), machine, Schedule.of({}))
    assert found_out.bound == "DRAM writes of `out`: 6.4x the compute time"
    assert list(prediction.levels.index) == ["intrinsic", "DRAM"]
    assert prediction.levels["binding"].tolist() == [False, True]
