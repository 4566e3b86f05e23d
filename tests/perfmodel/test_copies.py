"""What stands around the nest of calls: parallel regions."""

from __future__ import annotations

import amos
from amos.ir import Operator
from amos.perfmodel import predict
from amos.schedule import Schedule

XEON = amos.machines.get("xeon_6240")
OPERATOR = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=8, j=16, k=4096))
VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
MAPPING = amos.enumerate_mappings(OPERATOR, VNNI)[0]


def _launch(**schedule: int) -> float:
    whole: dict[str, int | str] = {"order": "i", "parallel": 1, **schedule}
    return predict(MAPPING, XEON, Schedule.of(whole)).launch


def test_a_loop_of_one_step_starts_no_parallel_region() -> None:
    assert XEON.launch > 0
    assert _launch(**{"tile.i": 8}) == 0.0
    assert _launch(**{"tile.i": 4}) == XEON.launch


def test_the_parts_of_a_reduction_are_one_region() -> None:
    """Whether the nest itself has anything to share out or not."""
    assert _launch(**{"tile.i": 8, "split": 2}) == XEON.launch
    assert _launch(**{"tile.i": 4, "split": 2}) == XEON.launch
