"""What checking a kernel takes: refused, said and allowed for before anything runs."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import amos
from amos.errors import MeasureError
from amos.ir import Operator
from amos.measure import Runner
from amos.measure.limits import address_space, limit_memory
from amos.measure.reference import Demand, References, compare_arrays, tolerance
from amos.measure.task import Task
from amos.plan import Candidate
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs
from tests.support.fake import INTRINSIC, OPERATOR, FakeExecutor

FMA = "avx2_fmadd_m8_f32_f32"
CONV = "out[p,q,k] += x[p+r,q+s,c] * w[k,r,s,c]"


def product(size: int, inner: int = 64) -> Operator:
    text = "out[p,q] += a[p,k] * b[k,q]"
    return Operator.parse(text, extents=dict(p=size, q=size, k=inner))


def test_more_memory_than_there_is_is_refused_up_front() -> None:
    with pytest.raises(MeasureError, match=r"at least 74\.6 GiB, and .* 4\.0 GiB of mem") as error:
        amos.explore(product(100_000), FMA, trials=1, measure=amos.MeasureOptions(memory=4 << 30))
    assert len(str(error.value).splitlines()) == 1


def test_a_demand_is_no_more_than_what_is_taken() -> None:
    op = Operator.parse(
        CONV, dict(p=64, q=64, k=64, r=3, s=3, c=16), dtypes=dict(x="uint8", w="int8", out="int32")
    )
    tracemalloc.start()
    try:
        inputs = random_inputs(op, np.random.default_rng(0))
        expected = evaluate(op, inputs)
        assert compare_arrays(expected.copy(), expected) == (0.0, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    needed = Demand.of(op).bytes
    assert needed <= peak


def test_comparing_takes_no_copy_of_the_whole() -> None:
    expected = np.zeros((3000, 3000), np.int32)
    got = expected.copy()
    got[-1, -1] = 7
    tracemalloc.start()
    try:
        assert compare_arrays(got, expected) == (7.0, 0)
        assert tracemalloc.get_traced_memory()[1] < expected.nbytes * 1.5
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not address_space(), reason="the system does not say how much is allocated")
def test_what_the_guard_computes_is_within_the_limit() -> None:
    with pytest.raises(MemoryError), limit_memory(64 << 20):
        np.ones(128 << 20, np.uint8)
    np.ones(128 << 20, np.uint8)
    op = product(6000, 1)
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get(FMA))[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
    with Runner(memory=256 << 20) as runner:
        assert runner.measure(Task(candidate, 1)).failure == "memory"


def test_references_know_their_size() -> None:
    op = product(8, 4)
    references = References()
    references.get(op)
    assert references.bytes == 4 * (2 * 8 * 4 + 8 * 8)
    assert references.operators == {op}


class _Slow:
    """A kernel whose runs are told, not made."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.counts: list[int] = []

    def times(self, inputs: Any, repeat: int, flush: int) -> tuple[float, ...]:
        self.counts.append(repeat)
        return tuple(self.seconds * (1.0 + 0.5 * (n % 2)) for n in range(repeat))


@pytest.mark.parametrize(
    ("seconds", "counts"),
    [(1e-6, [10, 10, 10]), (0.05, [1, 2, 7]), (0.7, [1, 2]), (2.0, [1, 2]), (9.0, [1])],
)
def test_a_slow_kernel_is_timed_less_often(seconds: float, counts: list[int]) -> None:
    kernel = _Slow(seconds)
    mapping = amos.enumerate_mappings(OPERATOR, amos.intrinsics.get(INTRINSIC))[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
    Task(candidate)._times(kernel, {}, seconds, 30.0)
    assert kernel.counts == counts


def test_the_limit_allows_for_what_the_model_predicts() -> None:
    runner = Runner(timeout=30.0)
    assert runner.limit() == 30.0
    assert runner.limit(5.0) == 90.0
    assert runner.limit(float("inf")) == 30.0


def test_what_takes_long_is_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    how: dict[str, Any] = dict(trials=2, rule="gather", notify=messages.append)
    large = Operator.parse(
        CONV, dict(p=3000, q=3000, k=128, r=3, s=3, c=64),
        dtypes=dict(x="uint8", w="int8", out="int32"),
    )  # fmt: skip
    amos.explore(large, INTRINSIC, measure=amos.MeasureOptions(executor=FakeExecutor()), **how)
    assert len(messages) == 1
    assert "is large: a run takes about" in messages[0]
    assert "2 trials take about" in messages[0]
    amos.explore(OPERATOR, INTRINSIC, measure=amos.MeasureOptions(executor=FakeExecutor()), **how)
    assert len(messages) == 1


def test_infinities_are_equal_to_themselves() -> None:
    """As functions make them; what is finite is still held to what is near it."""
    expected = np.array([np.inf, -np.inf, np.nan, 2.0], np.float32)
    assert compare_arrays(expected.copy(), expected) == (0.0, 0)
    assert compare_arrays(-expected, expected)[0] == np.inf
    op = amos.operators.get("gemm", m=2, n=2, k=8, dtype="f32").with_epilogue("exp(acc)")
    assert tolerance(op, expected) < 1e-4


def test_results_of_few_bits_are_rounded_once_however_long_the_sum() -> None:
    """A kernel that returns zeros is wrong."""
    op = amos.operators.get("gemm", m=2, n=2, k=1024, dtype="f32")
    expected = np.full((2, 2), 50, np.float32)
    for text, step in (("bf16(acc)", 2.0**-8), ("f16(acc)", 2.0**-10)):
        assert step * 50 <= tolerance(op.with_epilogue(text), expected) < 0.04 * 50


def test_finished_sums_of_floats_round_once() -> None:
    """What the end of a sum rounds is one integer; integers that are added up are as many."""
    op = amos.operators.get("gemm", m=4, n=16, k=8, dtype="f32")
    expected = np.zeros(4, np.uint8)
    assert tolerance(op.with_result("mean[m] += acc then u8(acc)"), expected, 1) == 1
    assert tolerance(op.with_result("top[m] max= u8(acc)"), expected, 1) == 1
    assert tolerance(op.with_result("count[m] += u8(acc)"), expected.astype(np.int32), 1) == 16
    assert tolerance(op.with_epilogue("u8(acc)"), expected) == 1
