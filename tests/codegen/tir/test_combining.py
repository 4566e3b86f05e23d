"""Kernels of statements that do not sum products, under drawn schedules."""

from __future__ import annotations

import math

import numpy as np
import pytest

import amos
from amos.codegen.tir.combining import reduce_axes, statement_text
from amos.ir import Operator
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs
from tests.support.statements import STATEMENTS


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_kernel_computes_what_numpy_does(name: str) -> None:
    statement, rng = STATEMENTS[name], np.random.default_rng(len(name))
    op = statement.operator
    inputs = random_inputs(op, rng)
    expected = statement.expected(*inputs.values())
    space = amos.enumerate_mappings(op, statement.unit, "gather")
    for number in rng.integers(0, len(space), 2):
        mapping = space[int(number)]
        schedule = ScheduleSpace(mapping).sample(rng)
        got = amos.build(mapping, schedule)(*inputs.values())
        np.testing.assert_array_equal(got, expected, err_msg=f"{mapping.name} {schedule}")


@pytest.mark.parametrize("name", ["longest paths", "pooling", "pooling over zeros"])
def test_nan_is_the_maximum(name: str) -> None:
    statement, rng = STATEMENTS[name], np.random.default_rng(len(name))
    op = statement.operator
    inputs = random_inputs(op, rng)
    for array in inputs.values():
        array[rng.random(array.shape) < 0.02] = np.nan
    expected = evaluate(op, inputs)
    assert 0 < np.isnan(expected).sum() < expected.size
    space = amos.enumerate_mappings(op, statement.unit, "gather")
    for number in rng.integers(0, len(space), 2):
        mapping = space[int(number)]
        schedule = ScheduleSpace(mapping).sample(rng)
        got = amos.build(mapping, schedule)(*inputs.values())
        np.testing.assert_array_equal(got, expected, err_msg=f"{mapping.name} {schedule}")


def test_parts_of_a_reduction_are_combined_by_its_own_function() -> None:
    op = Operator.parse("o[j] min= a[k,j]", {"j": 3, "k": 1031}, {"a": "s32", "o": "s32"})
    mapping = amos.enumerate_mappings(op, STATEMENTS["column minima"].unit_of("s32"))[0]
    space, rng = ScheduleSpace(mapping), np.random.default_rng(0)
    pinned = {"split": space.variables["split"][1]}
    schedule = space.repair(space.sample(rng).as_dict() | pinned, rng)
    assert schedule.as_dict()["split"] != 1
    a = np.abs(random_inputs(op, rng)["a"] // 2)
    np.testing.assert_array_equal(amos.build(mapping, schedule)(a), a.min(0))


def test_a_maximum_starts_below_every_number() -> None:
    te = pytest.importorskip("tvm.te", reason="apache-tvm is not installed")
    a, k = te.placeholder((4, 8), name="a"), te.reduce_axis((0, 8), "k")
    body = te.compute((4,), lambda i: reduce_axes("max", a[i, k], [k])).op.body[0]
    assert body.combiner.identity_element[0].value == -math.inf


def test_a_sum_of_products_is_written_without_parentheses() -> None:
    """Names of registered intrinsics, and so of kernels, depend on it."""

    def text(statement: str) -> str:
        compute = Operator.parse(statement, {"i": 4, "k": 3}).compute
        return statement_text(compute, "c", ["a", "b"])

    assert text("o[i] += a[i,k] * b[k]") == "c + a * b"
    assert text("o[i] += a[i,k] + b[k]") == "c + (a + b)"
    assert text("o[i] max= max(a[i,k], b[k])") == "T.max(c, (T.max(a, b)))"
