"""Sources that are padded and replicated: LLVM takes ``i & 3`` for ``i`` if it is let."""

from __future__ import annotations

import numpy as np

import amos
from amos.ir import Operator
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs


def test_every_lane_gets_the_same_elements() -> None:
    op = Operator.parse(
        "out[s] += pad(b[r - 2]) * right[r*2, s]",
        extents=dict(s=16, r=273),
        dtypes=dict(b="uint8", right="int8", out="int32"),
    )
    unit = amos.intrinsics.get("vnni_dpbusd_lanes_m8k4_u8_s8_s32")
    (mapping,) = amos.enumerate_mappings(op, unit, rule="gather")
    rng = np.random.default_rng(0)
    wanted: dict[str, int | str] = {"copy": "elements", "vector": 32, "stage.Src1": "whole"}
    kernel = amos.build(mapping, ScheduleSpace(mapping).repair(wanted, rng))
    inputs = random_inputs(mapping.operator, rng)
    np.testing.assert_array_equal(kernel(**inputs), evaluate(mapping.operator, inputs))
