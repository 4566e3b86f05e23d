"""Calling a kernel: packing, binding, timing, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import amos
from amos.codegen import scheduling as module
from amos.errors import AmosError, BuildError, MappingError, ScheduleError
from amos.ir import Operator
from amos.machine.cpu import cpu
from amos.machine.limits import CpuLimits
from amos.perfmodel.batch import share_of_steps
from amos.plan import Candidate, Schedule, Structure
from amos.runtime import Kernel
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs
from tests.support.models import nest_of

pytestmark = pytest.mark.features

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
    built._open = dict.fromkeys(built.inputs)
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
    weight = np.roll(INPUTS["weight"], 1, axis=0)
    expected = evaluate(MAPPING.operator, INPUTS | {"weight": weight})
    np.testing.assert_array_equal(kernel(a=INPUTS["a"], weight=weight), expected)
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
        ((3,), MappingError, "expected a mapping, a candidate or a trial, got int"),
        ((OP,), MappingError, "got Operator"),
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


def _window(p: int) -> Any:
    """A mapping of a padded window whose image is gathered, channels on a lane."""
    op = Operator.parse(
        "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
        extents=dict(n=1, p=p, q=4, k=16, c=8, r=3, s=3),
        shapes=dict(image=(1, p, 4, 8)),
    )
    space = amos.enumerate_mappings(op, VNNI, rule="access")
    return next(m for m in space if m.groups["r1"] == ("c",))


@pytest.mark.parametrize("tile", [2, 5])
@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_copies_are_staged_where_they_fit(
    tile: int, cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where every step of the parallel loop is one core's whole part."""
    mapping = _window(10)
    schedule = ScheduleSpace(mapping).smallest().as_dict()
    schedule |= {"stage.Src1": "tile", "tile.p": tile, "order": "p q", "parallel": 1}
    limits = CpuLimits(cpu().cores, cache)
    monkeypatch.setattr(CpuLimits, "here", lambda: limits)
    kernel = amos.build(mapping, Schedule.of(schedule), implementation="generic")
    inputs = random_inputs(mapping.operator, np.random.default_rng(0))
    np.testing.assert_array_equal(kernel(**inputs), evaluate(mapping.operator, inputs))


@pytest.mark.parametrize("tile", [1, 2])
def test_a_copy_whose_range_begins_within_a_loop(
    tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three cores share two blocks of columns: one of them copies parts of both."""
    op = amos.operators.get("gemm", dtype="u8s8", m=6, n=24, k=64)
    unit = amos.intrinsics.get("avx2_pmaddwd_m8k2_u8_s8_s32")
    space = amos.enumerate_mappings(op, unit, rule="access", commute=True)
    mapping = next(m for m in space if m.groups["i1"] == ("n",))
    schedule = ScheduleSpace(mapping).smallest().as_dict()
    schedule |= {"block.i1.tile": 2, "tile.m": tile, "order": "i1.tile m", "parallel": 2}
    schedule |= {"stage.Src2": "tile", "vector": 16}
    monkeypatch.setattr(CpuLimits, "here", lambda: CpuLimits(3, 1 << 18))
    kernel = amos.build(mapping, Schedule.of(schedule))
    inputs = random_inputs(op, np.random.default_rng(0))
    np.testing.assert_array_equal(kernel(**inputs), evaluate(op, inputs))


@pytest.mark.parametrize("tile", [1, 2])
def test_what_is_skipped_is_what_the_model_leaves_out(tile: int) -> None:
    """One condition in the code for each border that the model takes off the steps."""
    mapping = _window(4)
    structure, space = Structure(mapping), ScheduleSpace(mapping)
    for order in space.variables["reduce"]:
        values = space.smallest().as_dict() | {"reduce": order, "tile.p": tile}
        schedule = Schedule.of(values)
        _, schedule_text = module.schedule_candidate(
            Candidate(mapping, schedule), "generic", CpuLimits.here()
        )
        conditions = len(re.findall(r"^ *if .*:$", schedule_text.script(), re.MULTILINE))
        share = share_of_steps(nest_of(structure, schedule.batch(structure)))
        rows, columns = (border.live for border in structure.borders)
        counts = {1.0: 0, rows: 1, columns: 1, rows * columns: 2}
        assert counts[float(share[0])] == conditions


@pytest.mark.parametrize("unit", ["vnni_dpbusd_m16k4_u8_s8_s32", "avx2_fmadd_m8_f32_f32"])
def test_more_elements_than_can_be_counted_are_refused(unit: str) -> None:
    op = Operator.parse("out[p,q] += a[p,k] * b[k,q]", extents=dict(p=100_000, q=100_000, k=64))
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get(unit))[0]
    with pytest.raises(BuildError, match=r"tensor 'out' has 10,000,000,000 elements.*2,147,483,6"):
        amos.build(mapping)
