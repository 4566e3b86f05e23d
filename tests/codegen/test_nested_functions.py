"""Functions of functions: names that follow from one another do not multiply."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

import amos
from amos.codegen.scheduling import schedule_candidate
from amos.codegen.tir.lowering import lower
from amos.machine.limits import CpuLimits
from amos.plan import Candidate
from amos.schedule import ScheduleSpace

OP = amos.Operator.parse(
    "out[i,j] += a[i,k] * weight[k,j]",
    extents=dict(i=3, j=20, k=4),
    dtypes=dict(a="f32", weight="f32", out="f32"),
)
UNIT = "avx2_fmadd_m8_f32_f32"
DEEP = [
    "silu(silu(silu(silu(silu(acc)))))",
    "gelu(silu(gelu(silu(acc) + t[j]))) * silu(acc)",
    "f16(tanh(sigmoid(erf(exp(gelu_tanh(acc * 0.125))))))",
    # None of these functions binds a name itself; those that they call do.
    "sigmoid(sigmoid(sigmoid(sigmoid(sigmoid(sigmoid(acc))))))",
]


def _arrays(op: amos.Operator) -> dict[str, np.ndarray]:
    """Small whole numbers, whose sums are exact in any order."""
    rng = np.random.default_rng(3)
    draw = rng.integers
    return {x.name: draw(-4, 5, x.shape).astype(np.float32) for x in op.inputs}


@pytest.mark.parametrize("text", DEEP)
def test_deep_expressions_are_exact_and_quick(text: str) -> None:
    op = OP.with_epilogue(text)
    (mapping, *_) = amos.enumerate_mappings(op, UNIT)
    arrays = _arrays(op)
    expected = amos.simulate(mapping, arrays)
    for schedule in ScheduleSpace(mapping).draw(2, np.random.default_rng(0)):
        start = time.process_time()
        kernel = amos.build(mapping, schedule)
        # Each level would take some thirty times as long as the one before.
        assert time.process_time() - start < 20
        np.testing.assert_array_equal(kernel(**arrays), expected)


def test_a_deep_prologue() -> None:
    op = OP.with_prologue("a", "silu(silu(silu(x[i,k] * 0.5)))")
    (mapping, *_) = amos.enumerate_mappings(op, UNIT)
    arrays = _arrays(op) | {"weight": np.eye(4, 20, dtype=np.float32)}
    expected = amos.simulate(mapping, arrays)
    np.testing.assert_array_equal(amos.build(mapping)(**arrays), expected)


def test_what_is_printed_as_c_has_values_themselves() -> None:
    (mapping, *_) = amos.enumerate_mappings(OP.with_epilogue(DEEP[0]), UNIT)
    candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
    _, module = schedule_candidate(candidate, "generic", CpuLimits.here())
    assert "amos_settled" in str(module)
    assert not re.search("amos_settled", str(lower(module)))
