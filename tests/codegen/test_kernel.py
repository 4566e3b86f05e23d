"""Calling a kernel: packing, binding, timing, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import amos
from amos.codegen import Kernel
from amos.codegen import kernel as module
from amos.errors import AmosError, BuildError, ScheduleError
from amos.ir import Operator
from amos.schedule import Candidate, Schedule, ScheduleSpace
from amos.validate import evaluate, random_inputs

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
OP = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=6, j=19, k=12))
MAPPING = amos.enumerate_mappings(OP, VNNI)[0]
INPUTS = random_inputs(MAPPING.operator, np.random.default_rng(0))
EXPECTED = evaluate(MAPPING.operator, INPUTS)


@pytest.fixture(scope="module")
def built() -> Kernel:
    return amos.build(MAPPING, implementation="generic")


@pytest.fixture
def kernel(built: Kernel) -> Kernel:
    """One compilation for all tests, with nothing packed."""
    built._packed.clear()
    return built


def test_by_name_and_in_order(kernel: Kernel) -> None:
    a, weight = INPUTS["a"], INPUTS["weight"]
    assert kernel.inputs == ("a", "weight")
    for got in (kernel(a, weight), kernel(a=a, weight=weight), kernel(a, weight=weight)):
        np.testing.assert_array_equal(got, EXPECTED)


def test_packed_constants_are_left_out(kernel: Kernel) -> None:
    assert kernel.pack(weight=INPUTS["weight"]) is kernel
    np.testing.assert_array_equal(kernel(INPUTS["a"]), EXPECTED)
    np.testing.assert_array_equal(kernel(a=INPUTS["a"]), EXPECTED)


def test_a_constant_given_again_is_used(kernel: Kernel) -> None:
    kernel.pack(weight=INPUTS["weight"])
    other = np.roll(INPUTS["weight"], 1, axis=0)
    expected = evaluate(MAPPING.operator, INPUTS | {"weight": other})
    np.testing.assert_array_equal(kernel(a=INPUTS["a"], weight=other), expected)
    np.testing.assert_array_equal(kernel(INPUTS["a"]), EXPECTED)


def test_constants_need_not_be_contiguous(kernel: Kernel) -> None:
    weight = np.repeat(INPUTS["weight"], 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(kernel(INPUTS["a"], weight), EXPECTED)


def test_a_call_does_not_touch_its_inputs_or_earlier_results(kernel: Kernel) -> None:
    before = {name: array.copy() for name, array in INPUTS.items()}
    first = kernel(**INPUTS)
    kernel(a=np.zeros_like(INPUTS["a"]), weight=INPUTS["weight"])
    np.testing.assert_array_equal(first, EXPECTED)
    for name, array in before.items():
        np.testing.assert_array_equal(INPUTS[name], array)


A, W = INPUTS["a"], INPUTS["weight"]


@pytest.mark.parametrize(
    ("arrays", "named", "message"),
    [
        ((), {}, "missing input a, weight"),
        ((A,), {}, "missing input weight"),
        ((A, W, A), {}, "expected 2 arrays (a, weight), got 3"),
        ((A,), {"a": A, "weight": W}, "input 'a' is given twice"),
        ((A, W), {"image": A}, "unknown input 'image'; inputs are a, weight"),
        ((A.T, W), {}, "input 'a': expected uint8 of shape (6, 12), got uint8 of shape (12, 6)"),
        ((A.astype(np.int8), W), {}, "expected uint8 of shape (6, 12), got int8 of shape (6, 12)"),
        ((A, W[0]), {}, "input 'weight': expected int8 of shape (19, 12), got int8 of shape (12,)"),
    ],
)
def test_wrong_inputs(
    kernel: Kernel, arrays: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(BuildError, match=re.escape(message)):
        kernel(*arrays, **named)


def test_only_constants_are_packed(kernel: Kernel) -> None:
    with pytest.raises(BuildError, match="'a' is not a constant input; constants are weight"):
        kernel.pack(a=A)
    with pytest.raises(BuildError, match="input 'weight': expected int8"):
        kernel.pack(weight=A)


def test_source_and_times(kernel: Kernel) -> None:
    assert "T.prim_func" in kernel.source
    assert kernel.assembly
    assert kernel.time(repeat=2) > 0
    assert len(kernel.times(INPUTS, repeat=3)) == 3
    kernel.pack(weight=W)
    assert kernel.time({"a": A}, repeat=1) > 0
    with pytest.raises(BuildError, match="missing input a"):
        kernel.time({}, repeat=1)


def test_what_can_be_built() -> None:
    schedule = ScheduleSpace(MAPPING).sample(np.random.default_rng(3))
    candidate = Candidate(MAPPING, schedule)
    for kernel in (amos.build(candidate), amos.build(MAPPING, schedule)):
        assert kernel.candidate == candidate
        np.testing.assert_array_equal(kernel(**INPUTS), EXPECTED)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3,), BuildError, "cannot build a int; give a mapping or a trial"),
        ((OP,), BuildError, "cannot build a Operator"),
        ((MAPPING, Schedule.of({"tile.i": 2})), ScheduleError, "schedule of j-k: "),
    ],
)
def test_what_cannot_be_built(
    arguments: tuple[Any, ...], error: type[AmosError], message: str
) -> None:
    with pytest.raises(error, match=message):
        amos.build(*arguments)


def test_implementations_are_named() -> None:
    with pytest.raises(BuildError, match="implementation 'fast': expected 'native' or 'generic'"):
        amos.build(MAPPING, implementation="fast")
    wmma = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    op = Operator.parse("out[i,j] += a[i,k] * b[k,j]", extents=dict(i=16, j=16, k=16))
    with pytest.raises(BuildError, match="wmma_m16n16k16_f16_f32: no native implementation here"):
        amos.build(amos.enumerate_mappings(op, wmma)[0], implementation="native")


def test_what_tvm_refuses_is_a_build_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("first line\nTVM says no")

    monkeypatch.setattr(module, "schedule_cpu", refuse)
    with pytest.raises(BuildError, match="TVM says no"):
        amos.build(MAPPING)
