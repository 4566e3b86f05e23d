"""Schedules of streamed units: tiles that fit buffers of their own."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

import amos
from amos.errors import BuildError, ScheduleError
from amos.plan import Candidate, CpuSchedule, Schedule, Structure
from amos.schedule import ScheduleSpace, spaces_of
from amos.streams import StreamSchedule
from amos.streams.plan import StreamPlan
from amos.streams.runtime import StreamKernel
from amos.streams.tiles import StreamTiles
from tests.support.streams import OPERATORS, PYNQ, VTA

CONV = {m.name: m for m in amos.enumerate_mappings(OPERATORS["conv"], VTA)}["n-k-c"]


def test_a_schedule_is_the_same_as_a_dictionary() -> None:
    schedule = StreamSchedule(
        tile={"p": 3}, steps={"r": 3}, buffers={"Src1": 2}, order=("p", "q", "i2.tile")
    )
    values = schedule.as_dict()
    assert values == {"tile.p": 3, "step.r": 3, "buffers.Src1": 2, "order": "p q i2.tile"}
    again = Schedule.of(values)
    assert isinstance(again, StreamSchedule)
    assert again == schedule
    named = schedule.rename_loops(lambda name: f"{name}_")
    assert (named.tile["p_"], named.steps["r_"]) == (3, 3)


def test_drawn_tiles_fit_their_buffers() -> None:
    """Counted fragment by fragment: which ones the steps of the largest tile read."""
    space = ScheduleSpace(CONV, PYNQ)
    for schedule in space.draw(40, np.random.default_rng(0)):
        assert isinstance(schedule, StreamSchedule)
        tile, step = schedule.tile, schedule.steps
        rows = {2 * p + r for p in range(tile["p"]) for r in range(step["r"])}
        columns = {2 * q + s for q in range(tile["q"]) for s in range(step["s"])}
        reads = (max(rows) + 1) * (max(columns) + 1) * step["r1.tile"]
        values = space.values(schedule)
        assert values["inp.used"] == 16 * reads * schedule.buffers["Src1"] <= 32768
        blocks = tile["i2.tile"] * step["r"] * step["s"] * step["r1.tile"]
        assert values["wgt.used"] == 256 * blocks * schedule.buffers["Src2"] <= 262144
        sums = tile["p"] * tile["q"] * tile["i2.tile"]
        assert values["acc.used"] == 64 * sums * schedule.buffers["Dst"] <= 131072
        assert sums >= 3
        counts = StreamTiles(Structure(CONV), schedule.batch(Structure(CONV)))
        assert values["tiles"] == counts.computes[0] == prod(counts.counts[:, 0])


def test_what_does_not_fit_is_named() -> None:
    op = amos.operators.resolve("resnet18:C1", dtype="s8")
    mapping = {m.name: m for m in amos.enumerate_mappings(op, VTA)}["n-k-c"]
    space = ScheduleSpace(mapping, PYNQ)
    values = space.smallest().as_dict() | {"tile.p": 56, "tile.q": 56, "step.r1.tile": 1}
    with pytest.raises(ScheduleError, match="bytes of Src1 in buffer inp, but it has 32768"):
        space.check(Schedule.of(values))
    with pytest.raises(BuildError, match="1 tiles of 3364 fragments of Src1 in buffer inp"):
        amos.plan(Candidate(mapping, Schedule.of(values)), "vta_pynq")
    few = StreamSchedule(tile={"q": 4}, order=("p", "q", "i2.tile"), reduce=("r", "s", "r1.tile"))
    message = "112896 tiles, but a stream has instructions for 2048"
    assert any(message in each for each in space.violations(Schedule.of(few.as_dict() | {
        **{f"step.{n}": 1 for n in ("r", "s", "r1.tile")}, "tile.p": 1, "tile.i2.tile": 1,
        **{f"buffers.{n}": 1 for n in ("Src1", "Src2", "Dst")}})))  # fmt: skip


def test_mappings_without_a_schedule_say_what_is_too_large() -> None:
    product = amos.operators.resolve("heron:G2", dtype="s8")
    words = r"1 mappings has a schedule; .*too many bytes of Dst in buffer acc, but it has 131072"
    with pytest.raises(ScheduleError, match=words):
        spaces_of([*amos.enumerate_mappings(product, VTA)], PYNQ)


def test_a_schedule_of_another_target_is_refused() -> None:
    with pytest.raises(ScheduleError, match="expected one of streams, got a CpuSchedule"):
        StreamPlan.of(CONV, CpuSchedule(), PYNQ)
    with pytest.raises(BuildError, match="no streams of vta_gemm_m1n16k16_s8_s32 run there"):
        StreamPlan.of(CONV, StreamSchedule(), amos.machines.get("a100"))
    with pytest.raises(ScheduleError, match="expected a CpuSchedule, got a StreamSchedule$"):
        amos.build(CONV, StreamSchedule())


@pytest.mark.parametrize("name", ["tile.r", "step.p", "buffers.image"])
def test_a_value_of_what_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(ScheduleError, match=f"unknown variable '{name}'; "):
        StreamPlan.of(CONV, StreamSchedule.of({name: 2}), PYNQ)


def test_values_can_be_fixed() -> None:
    (space,) = spaces_of([CONV], PYNQ, [("buffers.Src1", 2), ("tile_p", 3)]).values()
    for schedule in space.draw(10, np.random.default_rng(0)):
        assert schedule.as_dict()["buffers.Src1"] == 2
        assert schedule.tile["p"] == 3


def test_tiles_that_stay_are_loaded_once() -> None:
    """Loads counted against walking through the tiles, with the oldest one making room."""
    structure = Structure(CONV)
    for schedule in ScheduleSpace(CONV, PYNQ).draw(30, np.random.default_rng(3)):
        plan = StreamPlan.of(CONV, schedule, PYNQ)
        tiles = plan.tiles
        for number, op in enumerate(tiles.operands[:-1]):
            moving = [
                (*structure.spatial, *structure.reduce)[n].name for n in tiles.loops_along(op)
            ]
            resident: list[tuple[int, ...]] = []
            loads = 0
            for spatial in plan.output_tiles():
                for reduction in plan.reduction_tiles():
                    spans = {**spatial, **reduction}
                    key = tuple(spans[name].start for name in moving)
                    loads += key not in resident
                    resident = [*(k for k in resident if k != key), key]
                    resident = resident[-int(tiles.buffers(number)[0]) :]
            assert loads <= tiles.loads(number)[0] <= max(loads, 1.5 * loads), str(plan)


@pytest.mark.parametrize("epilogue", ["", "s8(max(acc + 64 >> 7, 0) - 3)"])
@pytest.mark.parametrize("name", ["conv", "wide", "back", "down", "gemm"])
def test_no_stream_is_longer_than_its_space_says(name: str, epilogue: str) -> None:
    op = OPERATORS[name].with_epilogue(epilogue) if epilogue else OPERATORS[name]
    rng = np.random.default_rng(0)
    for mapping in list(amos.enumerate_mappings(op, VTA))[::8]:
        space = ScheduleSpace(mapping, PYNQ)
        for schedule in space.draw(4, rng):
            length = len(StreamKernel(Candidate(mapping, schedule), PYNQ).stream.instructions)
            assert length <= space.values(schedule)["instructions"] + 1  # finish
    assert PYNQ.stream is not None
    tight = replace(PYNQ, stream=replace(PYNQ.stream, instructions=length - 1))
    with pytest.raises(ScheduleError, match="instructions for|up to .* but a stream has room for"):
        ScheduleSpace(mapping, tight).check(schedule)
