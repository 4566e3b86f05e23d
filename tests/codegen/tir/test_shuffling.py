"""Kernels that stage whole fragments by vector loads and permutations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import amos
from amos.ir import Operator
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from amos.schedule.constraints import In
from amos.validate import evaluate, random_inputs

UNITS = [f"vnni_dpbusd_{side}m16k4_u8_s8_s32" for side in ("", "lhs_", "lanes_")]


def _check(op: Operator, unit: str, rng: np.random.Generator) -> None:
    """Build one mapping that can copy vectors, under one schedule, and compare."""
    space = amos.enumerate_mappings(op, amos.intrinsics.get(unit), rule="gather", commute=True)
    for number in rng.permutation(len(space)):
        schedules = ScheduleSpace(space[int(number)])
        if "copy" in schedules.variables:
            schedule = schedules.fix([In("copy", ("vectors",))]).sample(rng)
            kernel = amos.build(Candidate(space[int(number)], schedule), implementation="generic")
            inputs = random_inputs(op, rng)
            np.testing.assert_array_equal(kernel(**inputs), evaluate(op, inputs))
            return


DEPTHWISE = amos.operators.depthwise_conv2d
OPERATORS = {
    "channels last": DEPTHWISE(c=32, p=5, q=7, layout="NHWC", dtype="u8s8"),
    "channels first": DEPTHWISE(c=3, p=5, q=16, dtype="u8s8"),
    "padding": DEPTHWISE(c=16, p=7, q=7, padding=1, layout="NHWC", dtype="u8s8"),
    "stride, a row cut": DEPTHWISE(c=5, p=4, q=11, stride=2, padding=2, r=5, s=5, dtype="u8s8"),
    "prime channels": DEPTHWISE(c=17, p=3, q=5, layout="NHWC", dtype="u8s8"),
    "multiplier": DEPTHWISE(c=8, k=3, p=3, q=5, layout="NHWC", dtype="u8s8"),
    "one of all": DEPTHWISE(c=1, p=1, q=1, r=1, s=1, dtype="u8s8"),
    "three channels": amos.operators.conv2d(
        c=3, k=17, p=5, q=5, r=7, s=7, stride=2, padding=3, layout="NHWC", dtype="u8s8"
    ),
    "groups": amos.operators.grouped_conv2d(
        g=4, c=5, k=3, p=4, q=5, padding=1, layout="NHWGC", dtype="u8s8"
    ),
    "product": amos.operators.bmm(b=2, m=5, n=33, k=7, dtype="u8s8"),
    "rows": amos.operators.mean(i=33, k=41, dtype="u8s8"),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_equal_to_numpy(name: str) -> None:
    rng = np.random.default_rng(len(name))
    op = OPERATORS[name]
    if "weight" in {tensor.name for tensor in op.inputs}:
        op = replace(op, constants=("weight",))
    # Two of the three, in turns: which lanes move is another question than what the tensor is.
    skipped = list(OPERATORS).index(name) % len(UNITS)
    for unit in (*UNITS[:skipped], *UNITS[skipped + 1 :]):
        _check(op, unit, rng)


def test_a_permutation_where_elements_were_gathered() -> None:
    op = replace(OPERATORS["channels last"], constants=("weight",))
    space = amos.enumerate_mappings(op, amos.intrinsics.get(UNITS[2]))
    mapping = next(m for m in space if m.groups == {"i1": ("c",), "r1": ("s",)})
    schedules, rng = ScheduleSpace(mapping), np.random.default_rng(0)
    shuffles = {}
    for copy in ("elements", "vectors"):
        schedule = schedules.fix([In("copy", (copy,))]).sample(rng)
        shuffles[copy] = amos.build(Candidate(mapping, schedule), implementation="generic").source
    assert "T.Shuffle" in shuffles["vectors"]
    assert "T.Shuffle" not in shuffles["elements"]


def test_the_output_of_channels_last_is_written_in_place() -> None:
    op = replace(OPERATORS["channels last"], constants=("weight",))
    space = amos.enumerate_mappings(op, amos.intrinsics.get(UNITS[2]))
    mapping = next(m for m in space if m.groups == {"i1": ("c",), "r1": ("s",)})
    kernel = amos.build(mapping, implementation="generic")
    assert "unstage" not in kernel.source
