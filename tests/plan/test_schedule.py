"""One schedule: a value that survives being written down."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

import amos
from amos.cuda import GpuSchedule
from amos.errors import ScheduleError
from amos.ir import Operator
from amos.plan import CpuSchedule, Schedule, Structure, Value, batch_of
from amos.plan.nest import Nest
from amos.schedule import ScheduleSpace

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
GEMM = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=32, k=12))
MAPPING = amos.enumerate_mappings(GEMM, VNNI)[0]
NEST, STRUCTURE = Nest(MAPPING), Structure(MAPPING)


def test_round_trip() -> None:
    space, rng = ScheduleSpace(MAPPING), np.random.default_rng(0)
    for _ in range(10):
        schedule = space.sample(rng)
        again = Schedule.of(json.loads(json.dumps(schedule.as_dict())))
        assert again == schedule
        assert hash(again) == hash(schedule)
        assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_the_order_of_the_variables_does_not_matter() -> None:
    first, second = Schedule.of({"unroll": 2, "tile.i": 3}), Schedule.of({"tile.i": 3, "unroll": 2})
    assert first == second
    assert hash(first) == hash(second)
    assert str(first) == "tile.i=3, unroll=2"


def test_what_is_left_out_has_a_default() -> None:
    empty = CpuSchedule()
    assert empty.tile["i"] == empty.block["i"] == empty.split == 1
    assert (empty.stage["Src1"], empty.copy, empty.copy_width) == ("whole", "elements", 64)
    assert [loop.name for loop in empty.spatial_order(NEST)] == ["i", "i1.tile"]
    assert [loop.name for loop in empty.reduce_order(NEST)] == ["r1.tile"]
    assert empty == Schedule.of({})
    gpu = GpuSchedule()
    assert (gpu.stage["Src1"], gpu.padding["Src1"], gpu.copy_bytes) == ("tile", 0, 16)


def test_variables_tell_the_target() -> None:
    values: dict[str, Value] = {
        "order": "p q",
        "parallel": 2,
        "tile.p": 2,
        "block.q": 4,
        "vector": 8,
    }
    cpu = Schedule.of(values)
    assert cpu == CpuSchedule(
        tile={"p": 2}, block={"q": 4}, order=("p", "q"), parallel=2, copy_width=8
    )
    gpu = Schedule.of(values | {"bind": "warps", "pipeline": 3, "align.Src1": -1})
    assert gpu == GpuSchedule(
        tile={"p": 2},
        warps={"q": 4},
        order=("p", "q"),
        stages=3,
        copy_bytes=8,
        padding={"Src1": -1},
    )
    assert gpu.as_recorded() == values | {"bind": "warps", "pipeline": 3, "align.Src1": -1}
    assert gpu.as_dict() == {
        "align.Src1": -1,
        "bind": "warps",
        "copy_bytes": 8,
        "order": "p q",
        "parallel": 2,
        "pipeline": 3,
        "tile.p": 2,
        "warps.q": 4,
    }
    assert Schedule.of(gpu.as_dict()) == gpu
    assert cpu.as_dict() == values


def test_a_variable_under_two_keys_is_refused() -> None:
    assert GpuSchedule.of({"warps.p": 4, "block.p": 4}) == GpuSchedule(warps={"p": 4})
    for values in ({"warps.p": 4, "block.p": 2}, {"block.p": 2, "warps.p": 4}):
        with pytest.raises(ScheduleError, match="block.p = 2: expected it once, got warps.p too"):
            GpuSchedule.of(values)


def test_defaults_are_written_as_in_earlier_records() -> None:
    """The digest of a candidate is one of its written form, and must not change."""
    cpu = CpuSchedule(
        tile={"p": 1}, block={"p": 1}, order=("p",), reduce=("c",), stage={"A": "tile"}
    )
    assert cpu.as_dict() == {
        "order": "p",
        "parallel": 1,
        "reduce": "c",
        "stage.A": "tile",
        "tile.p": 1,
        "unroll": 1,
    }
    assert GpuSchedule(reduce=("c",)).as_dict() == {"reduce": "c", "unroll": 1}


def test_loops_can_be_renamed() -> None:
    cpu = CpuSchedule(tile={"p": 2}, block={"p": 4}, order=("p", "q"), stage={"p": "tile"})
    new = cpu.rename_loops(str.upper)
    assert new.as_dict() == {
        "block.P": 4,
        "order": "P Q",
        "parallel": 1,
        "stage.p": "tile",
        "tile.P": 2,
    }
    assert GpuSchedule(warps={"p": 2}, reduce=("c",)).rename_loops(str.upper).blocks == {"P": 2}


def test_the_model_takes_it_as_a_batch_of_one() -> None:
    space, rng = ScheduleSpace(MAPPING), np.random.default_rng(1)
    drawn = [space.sample(rng) for _ in range(20)]
    batch = batch_of(STRUCTURE, drawn)
    assert len(batch) == 20
    for number, schedule in enumerate(drawn):
        row = schedule.batch(STRUCTURE)
        assert len(row) == 1
        tiles = [schedule.tile[loop.name] for loop in STRUCTURE.spatial]
        assert row.tile.tolist() == [tiles]
        names = [STRUCTURE.spatial[n].name for n in row.order[0]]
        assert tuple(names) == schedule.order
        for field in ("tile", "order", "reduce", "parallel", "unroll", "ahead"):
            assert getattr(row, field)[0].tolist() == getattr(batch, field)[number].tolist()
        assert row.span[0].tolist() == batch.span[number].tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tile.i": 7}, "tile.i = 7 is more than the extent 6"),
        ({"block.i": 8}, "block.i = 8 is more than the extent 6"),
        ({"order": "i"}, "order = 'i': expected an order of i, i1.tile"),
        ({"order": "i j"}, "order = 'i j': expected an order of i, i1.tile"),
        ({"reduce": "k"}, "reduce = 'k': expected an order of r1.tile"),
    ],
)
def test_what_does_not_fit_the_nest_is_refused(values: dict[str, int | str], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Schedule.of(values).batch(STRUCTURE)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"colour": 1}, "colour = 1: unknown variable 'colour'; expected tile, order, reduce, "),
        ({"tile": 1}, "tile = 1: unknown variable 'tile'"),
        ({"unroll.i": 1}, "unroll.i = 1: unknown variable 'unroll.i'"),
        ({"tile.i": 0}, "tile.i = 0: expected a whole number, 1 or more"),
        ({"tile.i": "x"}, "tile.i = 'x': expected a whole number, 1 or more"),
        ({"tile.i": True}, "tile.i = True: expected a whole number, 1 or more"),
        ({"unroll": 10**30}, "unroll = 10+: expected a whole number, at most 2147483647"),
        ({"split": 1.5}, "split = 1.5: expected a whole number, 1 or more"),
        ({"parallel": -1}, "parallel = -1: expected a whole number, 1 or more"),
        ({"vector": 0}, r"copy_width \(vector\) = 0: expected a whole number, 1 or more"),
        ({"stage.A": "here"}, "stage.A = 'here': expected whole or tile or none"),
        ({"copy": 1}, "copy = 1: expected elements or vectors"),
        ({"order": 1}, "order = 1: expected names of loops"),
        ({"bind": "threads"}, "bind = 'threads': expected warps"),
        ({"align.A": -2}, r"padding.A \(align.A\) = -2: expected a whole number, -1 or more"),
        ({"pipeline": 0}, r"stages \(pipeline\) = 0: expected a whole number, 1 or more"),
        ({"bind": "warps", "order": "p q", "parallel": 1}, "parallel = 1: expected 2, all loops"),
        ({"bind": "warps", "copy": "vectors"}, "unknown variable 'copy'"),
    ],
)
def test_what_no_schedule_has_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Schedule.of(values)


def test_a_reduction_that_is_no_loop_is_not_divided() -> None:
    short = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=32, k=4))
    (mapping, *_) = amos.enumerate_mappings(short, VNNI)
    for use in (amos.plan, amos.predict):
        with pytest.raises(ScheduleError, match="split = 2: expected 1, no reduction is a loop"):
            use(amos.Candidate(mapping, CpuSchedule(split=2)), "xeon_6240")


def test_fields_are_checked_by_their_own_names() -> None:
    with pytest.raises(ScheduleError, match=r"copy_bytes = 0"):
        GpuSchedule(copy_bytes=0)
    with pytest.raises(ScheduleError, match="tile = 3: expected a value for each name"):
        CpuSchedule(tile=3)  # type: ignore[arg-type]
