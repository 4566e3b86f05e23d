"""Bounds, held against every candidate of tiny spaces and drawn ones of others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import amos
from amos.cli.app import main
from amos.explore.method import enumerate_candidates
from amos.explore.objective import Problem
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine
from amos.machine.catalogue import with_timings
from amos.perfmodel import Prediction
from amos.schedule import ScheduleSpace
from amos.streams.bounds import bound_of
from amos.streams.codegen.transfers import Load, Store
from tests.support.architects import ENERGETIC, ENERGIES, UNIT, files
from tests.support.streams import OPERATORS, PYNQ, S8, VTA, drawn

TARGET = with_timings(ENERGETIC, [UNIT])
#: Small enough for every candidate, with buffers that hold a part of it.
TINY = {
    "gemm": Operator.parse(
        "out[i,j] += image[i,k] * weight[k,j]", extents=dict(i=3, j=48, k=64), dtypes=S8
    ),
    "window": Operator.parse(
        "out[p,k] += pad(image[p*2 + r - 1, c]) * weight[k,c,r]",
        extents=dict(p=4, k=16, c=32, r=3),
        dtypes=S8,
    ),
    "gaps": Operator.parse(
        "out[p,k] += image[p*3, c] * weight[k,c]", extents=dict(p=5, k=32, c=32), dtypes=S8
    ),
}
#: Bytes of the buffers of inputs, weights and sums.
ROOMS = [(64, 1024, 256), (64, 512, 128), (256, 512, 64), (16, 256, 64)]


def small_unit(rooms: tuple[int, int, int]) -> Intrinsic:
    memory = [
        replace(m, capacity=size, write_interval=0)
        for m, size in zip(VTA.memory, rooms, strict=True)
    ]
    return replace(VTA, memory=tuple(memory))


def _predictions(problem: Problem) -> Iterator[Prediction]:
    yield from map(problem.predict, enumerate_candidates(problem))


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("rooms", ROOMS)
def test_no_candidate_is_below_and_one_reaches_it(name: str, rooms: tuple[int, int, int]) -> None:
    mappings = [*amos.enumerate_mappings(TINY[name], small_unit(rooms))][:4]
    problem = Problem(mappings, PYNQ)
    predictions = list(_predictions(problem))
    bound = bound_of(problem.mappings, PYNQ)
    assert bound.reached
    assert min(x.traffic_bytes for x in predictions) == pytest.approx(bound.traffic_bytes)
    joules = [x.energy_joules or 0.0 for x in predictions]
    assert min(joules) == pytest.approx(bound.energy_joules)
    assert min(x.seconds for x in predictions) >= bound.seconds * (1 - 1e-12)


@pytest.mark.parametrize("name", OPERATORS)
def test_no_stream_moves_less(name: str) -> None:
    """Bytes of loads and stores of simulated streams, which are those of the model."""
    op = OPERATORS[name]
    bound = bound_of([*amos.enumerate_mappings(op, VTA)], PYNQ)
    for kernel in drawn(op, 8, seed=1):
        sizes = {buffer.name: buffer.bytes for buffer in kernel.stream.buffers}
        moved = sum(
            each.rows * each.columns * sizes[each.buffer]
            for each in kernel.stream.instructions
            if isinstance(each, Load | Store) and each.buffer != "uop"
        )
        plan = kernel.plan
        predicted = amos.predict(plan.mapping, PYNQ, plan.schedule)
        assert moved == pytest.approx(predicted.traffic_bytes)
        assert moved >= bound.traffic_bytes * (1 - 1e-12)
        assert (predicted.energy_joules or 0.0) >= (bound.energy_joules or 0.0) * (1 - 1e-12)
        kernel.run()
        assert kernel.last is not None
        assert kernel.last.cycles >= bound.seconds * PYNQ.clock * (1 - 1e-12)


@pytest.mark.parametrize("layer", ["C2", "C4", "C5", "C11"])
@pytest.mark.parametrize(("machine", "unit"), [(PYNQ, VTA), (TARGET, UNIT)])
def test_no_drawn_candidate_of_a_layer_is_below(
    layer: str, machine: Machine, unit: Intrinsic
) -> None:
    op = amos.operators.resolve(f"resnet18:{layer}", dtype="s8")
    mappings = [*amos.enumerate_mappings(op, unit)][::7]
    bound, rng = bound_of(mappings, machine), np.random.default_rng(0)
    for mapping in mappings:
        for schedule in ScheduleSpace(mapping, machine).draw(6, rng):
            predicted = amos.predict(mapping, machine, schedule)
            assert predicted.traffic_bytes >= bound.traffic_bytes * (1 - 1e-12)
            assert predicted.seconds >= bound.seconds * (1 - 1e-12)
            assert (predicted.energy_joules or 0) >= (bound.energy_joules or 0) * (1 - 1e-12)


def test_bounds_at_a_clock_that_takes_ages() -> None:
    """Seconds times bytes a second are then beyond all numbers."""
    slow = replace(
        PYNQ,
        clock=1e-300,
        peaks={n: replace(x, interval=1e300, latency=1e300) for n, x in PYNQ.peaks.items()},
    )
    mappings = [*amos.enumerate_mappings(TINY["gemm"], VTA)][:2]
    bound, usual = bound_of(mappings, slow), bound_of(mappings, PYNQ)
    assert usual.seconds < bound.seconds < np.inf
    assert bound.traffic_bytes == usual.traffic_bytes


def test_explore_says_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board, unit = files(tmp_path, ENERGIES)
    command = ["explore", "gemm", "--extent", "m=32", "--extent", "n=64", "--extent", "k=16"]
    command += ["--dtype", "s8", "--machine", board, "--trials", "4", "--objective", "energy"]
    assert main([*command, "--intrinsic", unit, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert 0 < report["bound"] <= report["energy_joules"]
    assert report["bound_ratio"] == pytest.approx(report["energy_joules"] / report["bound"])
    assert report["bound"] == report["bounds"]["energy_joules"]
    board, unit = files(tmp_path, ENERGIES)
    assert main([*command, "--intrinsic", unit]) == 0
    assert "of the bound" in capsys.readouterr().out
