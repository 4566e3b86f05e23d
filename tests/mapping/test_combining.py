"""Statements that do not sum products: enumerated, proven, simulated, and refused with a reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amos import intrinsics
from amos.cuda.plan import GpuPlan
from amos.errors import AmosError, BuildError, IntrinsicError
from amos.intrinsics.virtual import unit
from amos.ir import Operator
from amos.machines import get as get_machine
from amos.mapping import enumerate_mappings, simulate
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, execute_matching, random_inputs
from tests.support.statements import STATEMENTS


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_mapping_computes_what_numpy_does(name: str) -> None:
    statement = STATEMENTS[name]
    op, chip = statement.operator, statement.unit
    inputs = random_inputs(op, np.random.default_rng(1))
    expected = statement.expected(*inputs.values())
    np.testing.assert_array_equal(evaluate(op, inputs), expected)
    space = enumerate_mappings(op, chip, "gather")
    assert len(space)
    for mapping in list(space)[:: max(1, len(space) // 8)]:
        np.testing.assert_array_equal(simulate(mapping, inputs), expected)
        run = execute_matching(op, chip, mapping.matching, inputs)
        np.testing.assert_array_equal(run, expected)


def test_the_order_of_a_difference_counts() -> None:
    statement = STATEMENTS["difference"]
    op = statement.operator
    assert len(enumerate_mappings(op, statement.unit, commute=True)) == len(
        enumerate_mappings(op, statement.unit)
    )
    matching = enumerate_mappings(op, statement.unit)[0].matching
    with pytest.raises(AmosError, match="its sources are subtracted, so that their order counts"):
        execute_matching(op, statement.unit, matching, {}, order=(1, 0))


@pytest.mark.parametrize(
    ("text", "meaning", "reason"),
    [
        (
            "o[i] = a[i] + b[i]",
            "D[i1] = A[i1] * B[i1]",
            "is = a \\+ b, the intrinsic's is multiply",
        ),
        ("o[i] = a[i] + b[i]", "D[i1] += A[i1] + B[i1]", "the intrinsic's is \\+= a \\+ b"),
        ("o[i] max= a[i,k]", "D[i1] += A[i1, r1]", "is max= a, the intrinsic's is add"),
        ("o[i] max= a[i,k]", "D[i1] min= A[i1, r1]", "is max= a, the intrinsic's is min= a"),
        ("o[i] = max(a[i], b[i])", "D[i1] = min(A[i1], B[i1])", "intrinsic's is = min\\(a, b\\)"),
    ],
)
def test_another_function_is_refused(text: str, meaning: str, reason: str) -> None:
    op = Operator.parse(text, {"i": 4} | ({"k": 3} if "k" in text else {}))
    sizes = {"i1": 4} | ({"r1": 2} if "r1" in meaning else {})
    with pytest.raises(AmosError, match=reason):
        enumerate_mappings(op, unit(meaning, sizes))


@pytest.mark.parametrize(
    ("meaning", "kind", "reason"),
    [
        ("D[i1] max= A[i1,r1] * B[i1,r1]", "f32", "no value of float32 in lanes beyond"),
        ("D[i1] max= A[i1,r1] + B[i1,r1]", "s32", "no value of int32 in lanes beyond"),
        ("D[i1] += A[i1,r1] + B[i1]", "s32", "B\\[i1\\] would count again in lanes beyond"),
    ],
)
def test_an_instruction_whose_empty_lanes_count_is_refused(
    meaning: str, kind: str, reason: str
) -> None:
    with pytest.raises(IntrinsicError, match=reason):
        unit(meaning, {"i1": 4, "r1": 4}, kind)


def test_registers_of_tiles_and_cuda_kernels_hold_sums_of_products() -> None:
    amx = intrinsics.get("amx_tdpbusd_m16n16k64_u8_s8_s32")
    with pytest.raises(IntrinsicError, match="tile registers hold sums of products"):
        replace(amx, compute=replace(amx.compute, join="+"))
    wmma = intrinsics.get("wmma_m16n16k16_f16_f32")
    chip = replace(wmma, name="odd", compute=replace(wmma.compute, join="max"))
    op = Operator.parse("o[i,j] += max(a[i,k], b[k,j])", dict(i=16, j=16, k=16))
    machine = get_machine("a100")
    odd = replace(machine, peaks=dict(machine.peaks) | {"odd": machine.peaks[wmma.name]})
    mapping = enumerate_mappings(op, chip)[0]
    schedule = ScheduleSpace(mapping, odd).smallest()
    with pytest.raises(BuildError, match="CUDA kernels add up products, its arithmetic is"):
        GpuPlan.of(mapping, schedule, "sm_80")
