"""Constants of a network in memory of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amos._toolchain import load_tvm
from amos.network.program import Shared, const
from amos.network.weights import LargePages


def test_copies_hold_the_same_values_where_vectors_may_be_read() -> None:
    load_tvm()
    rng = np.random.default_rng(0)
    arrays: list[np.ndarray] = [
        rng.standard_normal((3, 5)).astype(np.float32),
        np.array(7, np.int64),
        np.array([True, False]),
        rng.integers(0, 99, 1 << 25).astype(np.uint8),  # as large as a block
        rng.standard_normal(11).astype(np.float16),
    ]
    pages = LargePages()
    placed = [pages(const(array)).value for array in arrays]
    for tensor, array in zip(placed, arrays, strict=True):
        np.testing.assert_array_equal(np.from_dlpack(tensor), array)
        assert str(tensor.dtype) == str(array.dtype)
        assert tensor.data_ptr() % 64 == 0


def test_equal_constants_of_a_module_are_placed_once() -> None:
    load_tvm()
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    values = np.arange(4, dtype=np.float32)
    with builder.function("batch4", [x]):
        total = builder.emit(relax.op.add(relax.op.multiply(x, const(values)), const(values)))
        builder.emit_func_output(total)
    module = Shared(LargePages())(builder.get())
    (first,), (second,) = (
        [each for each in binding.value.args if hasattr(each, "value")]
        for binding in module["batch4"].body.blocks[0].bindings
    )
    assert first.value.data_ptr() == second.value.data_ptr()
    np.testing.assert_array_equal(np.from_dlpack(first.value), values)


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no large pages"
)
def test_the_system_is_asked_for_large_pages() -> None:
    load_tvm()
    placed = LargePages()(const(np.ones(9, np.float32)))
    address, inside = placed.value.data_ptr(), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        field, *rest = line.split()
        if "-" in field and not field.endswith(":"):
            first, last = (int(each, 16) for each in field.split("-"))
            inside = first <= address < last
        elif inside and field == "VmFlags:":
            assert "hg" in rest
            return
    pytest.fail("the constant is nowhere")
