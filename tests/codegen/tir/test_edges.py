"""Tiles that do not divide their loop: a piece of code of their own, and no conditions in it."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.codegen.tir.tensor_intrin import implementation
from amos.ir import Operator
from amos.machine.cpu import cpu
from amos.mapping import Mapping
from amos.plan import Schedule
from amos.plan.variables import Value
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

pytestmark = pytest.mark.features

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
needs_vnni = pytest.mark.skipif(
    implementation(VNNI, cpu().features) != "native",
    reason="this CPU has no avx512_vnni, so the instruction itself cannot run",
)
KINDS = [pytest.param("native", marks=needs_vnni), "generic"]
CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    dict(n=1, p=7, q=5, k=48, c=8, r=3, s=3),
    dict(image="uint8", weight="int8", out="int32"),
    shapes=dict(image=(1, 7, 5, 8)),
)
#: Tiles of 2 divide none of the loops; 3 register tiles of output channels are one.
WHOLE = {"tile.p": 7, "tile.q": 1, "tile.i1.tile": 3}


def _mapping(op: Operator = CONV) -> Mapping:
    return amos.enumerate_mappings(op, VNNI).find("k-c")


def _schedule(mapping: Mapping, **values: Value) -> Schedule:
    settings = {name.replace("__", "."): value for name, value in values.items()}
    return Schedule.of(ScheduleSpace(mapping).smallest().as_dict() | settings)


def _source(mapping: Mapping, schedule: Schedule, kind: str) -> str:
    """The source of a kernel that computes what the operator says."""
    inputs = random_inputs(mapping.operator, np.random.default_rng(1))
    kernel = amos.build(mapping, schedule, implementation=kind)
    np.testing.assert_array_equal(kernel(**inputs), evaluate(mapping.operator, inputs))
    return kernel.source


#: Where the source is copied does not depend on who makes the call.
STAGES = [
    ("whole", "generic"),
    ("tile", "generic"),
    pytest.param("tile", "native", marks=needs_vnni),
]


@pytest.mark.parametrize(("stage", "kind"), STAGES)
@pytest.mark.parametrize("cut", [("p",), ("q", "i1.tile"), ("p", "q", "i1.tile")])
def test_each_cut_loop_doubles_the_code(cut: tuple[str, ...], stage: str, kind: str) -> None:
    mapping = _mapping()
    tiles = WHOLE | {f"tile.{name}": 2 for name in cut} | {"stage.Src1": stage}
    source = _source(mapping, Schedule.of(_schedule(mapping).as_dict() | tiles), kind)
    assert source.count('T.sblock("main_update_o")') == 2 ** len(cut)
    assert "T.where" not in source


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tile", "pieces"), [(2, 2), (1, 1)])
def test_tiles_beyond_the_end_are_left_out(tile: int, pieces: int, kind: str) -> None:
    """The second block of four steps reaches beyond a loop of 5 by whole tiles."""
    mapping = _mapping()
    source = _source(mapping, _schedule(mapping, tile__q=tile, block__q=4 // tile), kind)
    assert source.count('T.sblock("main_update_o")') == pieces
    assert "T.where" not in source
    assert f" <= {5 - tile}:" in source


@pytest.mark.parametrize("kind", KINDS)
def test_epilogues_of_cut_tiles(kind: str) -> None:
    """They read what belongs to a result, and nothing beyond."""
    op = CONV.with_epilogue("u8((acc + bias[k]) * scale[k] + skip[n,p,q,k])", {"skip": "uint8"})
    mapping = _mapping(op)
    source = _source(mapping, _schedule(mapping, tile__p=2, tile__q=3, tile__i1__tile=2), kind)
    assert "T.where" not in source


def test_accumulators_are_on_the_stack() -> None:
    """A pool at run time would keep what nobody reads of them."""
    mapping = _mapping()
    schedule = _schedule(mapping, tile__q=5, tile__p=3, tile__i1__tile=1, stage__Src1="tile")
    wide = _schedule(mapping, tile__q=5, tile__p=4, tile__i1__tile=1, stage__Src1="tile")
    few, many = (
        amos.build(mapping, each, implementation="generic").assembly for each in (schedule, wide)
    )
    name = "TVMBackendAllocWorkspace"
    # 15 accumulators are less than 1 KiB, 20 are more; what is staged is in the pool.
    assert many.count(name) == few.count(name)


def test_loops_that_share_a_parallel_one() -> None:
    """TVM took the condition of one end, as it is within the other, out of both."""
    op = Operator.parse(
        "out[s,i,l,j] += b[q,s,l + i] * right[q,j]",
        dict(s=3, i=3, l=3, j=3, q=187),
        dict(b="uint8", right="int8", out="int32"),
    )
    schedule = Schedule.of(
        {"block.j": 2, "block.l": 2, "block.s": 2, "copy": "vectors", "order": "s i j l",
         "parallel": 4, "reduce": "r1.tile", "stage.Src1": "tile", "stage.Src2": "whole",
         "tile.i": 2, "tile.j": 1, "tile.l": 2, "tile.s": 1, "unroll": 2, "vector": 32}
    )  # fmt: skip
    mapping = amos.enumerate_mappings(op, "vnni_dpbusd_dot_m1k32_u8_s8_s32")[0]
    inputs = random_inputs(op, np.random.default_rng(0))
    kernel = amos.build(mapping, schedule, implementation="generic")
    np.testing.assert_array_equal(kernel(**inputs), evaluate(op, inputs))
