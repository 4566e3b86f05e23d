"""One schedule: a value that survives being written down."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import amos
from amos.errors import ScheduleError
from amos.ir import Operator
from amos.plan import Schedule, Structure, batch_of
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
    assert Schedule((("b", 1), ("a", 2))) == Schedule.of({"a": 2, "b": 1})
    assert str(Schedule.of({"b": 1, "a": "x y"})) == "a=x y, b=1"


def test_what_is_left_out_has_a_default() -> None:
    empty = Schedule.of({})
    assert empty.tile("i") == 1
    assert [loop.name for loop in empty.order(NEST)] == ["i", "i1.tile"]
    assert [loop.name for loop in empty.reduce_order(NEST)] == ["r1.tile"]


def test_loops_are_padded_to_what_their_tiles_span() -> None:
    assert Schedule.of({"tile.i": 3}).padded(NEST) == {}
    assert Schedule.of({"tile.i": 4}).padded(NEST) == {"i": 8}
    assert Schedule.of({"tile.i": 2, "block.i": 2}).padded(NEST) == {"i": 8}
    assert Schedule.of({"tile.i": 2, "block.i": 3}).padded(NEST) == {}


def test_the_model_takes_it_as_a_batch_of_one() -> None:
    space, rng = ScheduleSpace(MAPPING), np.random.default_rng(1)
    drawn = [space.sample(rng) for _ in range(20)]
    together = batch_of(STRUCTURE, drawn)
    assert len(together) == 20
    for number, schedule in enumerate(drawn):
        row = schedule.batch(STRUCTURE)
        assert len(row) == 1
        tiles = [schedule.tile(loop.name) for loop in STRUCTURE.spatial]
        assert row.tile.tolist() == [tiles]
        names = [STRUCTURE.spatial[n].name for n in row.order[0]]
        assert " ".join(names) == schedule.get("order")
        for field in ("tile", "order", "reduce", "parallel", "unroll", "ahead"):
            assert getattr(row, field)[0].tolist() == getattr(together, field)[number].tolist()
        assert row.span[0].tolist() == together.span[number].tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tile.i": 7}, "tile.i = 7 is not between 1 and the extent 6"),
        ({"tile.i": 0}, "tile.i = 0 is not between 1 and the extent 6"),
        ({"tile.i": -1}, "tile.i = -1 is not between 1 and the extent 6"),
        ({"block.i": 8}, "block.i = 8 is not between 1 and the extent 6"),
        ({"tile.i": "x"}, "tile.i = 'x': expected a whole number"),
        ({"parallel": "x"}, "parallel = 'x': expected a whole number"),
        ({"order": "i"}, "order = 'i': expected an order of i, i1.tile"),
        ({"order": "i j"}, "order = 'i j': expected an order of i, i1.tile"),
        ({"reduce": "k"}, "reduce = 'k': expected an order of r1.tile"),
    ],
)
def test_what_does_not_fit_the_nest_is_refused(values: dict[str, int | str], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Schedule.of(values).batch(STRUCTURE)
