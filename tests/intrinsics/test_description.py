"""What a description says, and what it may not say."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from amos import intrinsics
from amos.errors import IntrinsicError
from amos.intrinsics import Arithmetic, FragmentLayout, Intrinsic, Memory, ShapeFamily, Timing
from amos.intrinsics.expression import evaluate, to_c

MEMORY = (
    "reg.Src1[i1, r1] = shared.Src1[addr_a + i1 * stride_a + r1]",
    "reg.Src2[r1, i2] = shared.Src2[addr_b + r1 * stride_b + i2]",
    "global.Dst[addr_c + i1 * stride_c + i2] = reg.Dst[i1, i2]",
)


def define(**changes: Any) -> Intrinsic:
    parts: dict[str, Any] = {
        "name": "acme_m4n4k2_s8_s32",
        "compute": "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
        "extents": {"i1": 4, "i2": 4, "r1": 2},
        "dtypes": {"Src1": "s8", "Src2": "s8", "Dst": "s32"},
        "memory": MEMORY,
        "family": "acme",
        "source": "manual, section 1",
    }
    return Intrinsic.define(**(parts | changes))


def test_the_ranges_of_wmma_are_equation_1() -> None:
    system = intrinsics.get("wmma_m32n8k16_f16_f32").affine_system
    assert system.A.tolist() == [[1, 0], [0, 1], [0, 0]]
    # The paper writes the column of r1 only; i1 and i2 are bounded by A.
    assert system.B[0].tolist() == [[0, 0], [0, 0], [0, 1]]
    assert system.B[1].tolist() == [[0, 0], [0, 0], [0, 0]]
    assert system.C.tolist() == [-32, -8, -16]


def test_the_affine_system_holds_exactly_in_the_ranges() -> None:
    unit = define()
    for i1, i2, r1 in product(range(-1, 6), range(-1, 6), range(-1, 4)):
        in_bounds = 0 <= i1 < 4 and 0 <= i2 < 4 and 0 <= r1 < 2
        assert unit.affine_system.holds((i1, i2), ((i1, r1), (r1, i2))) == in_bounds


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(extents={"i1": 0, "i2": 4, "r1": 2}), "extent of iteration 'i1'.*positive.*got 0"),
        (dict(extents={}), "no extent given for i1, i2, r1; given are none"),
        (dict(compute="Dst[i1, i3] += Src1[i1, r1] * Src2[r1, i2]"), "no extent given for i3"),
        (dict(compute="Dst[i1+i2] += Src1[r1] * Src2[i2]"), "as each index, got .i1 . i2."),
        (dict(dtypes={"Src1": "s8", "Src2": "s8"}), "operand 'Dst' has no dtype"),
        (dict(dtypes={"Src1": "s9", "Src2": "s8", "Dst": "s32"}), "unknown dtype 's9'"),
        (dict(memory=MEMORY[:2]), "no memory statement covers operand Dst"),
        (dict(memory=[*MEMORY, "reg.Src3[i1] = shared.Src3[addr_d + i1]"]),
         "unknown operand 'Src3'"),
        (dict(memory=[MEMORY[0], MEMORY[1], "global.Dst[addr_c + i2 * s + i1] = reg.Dst[i2, i1]"]),
         "expected the fragment's indices i1, i2, got i2, i1"),
        (dict(memory=[Memory.parse(MEMORY[0], capacity=7), *MEMORY[1:]]),
         "capacity: expected at least one fragment, 8 bytes, got 7"),
        (dict(memory=[Memory.parse(MEMORY[0], broadcast=("x",)), *MEMORY[1:]]),
         "broadcast along 'x'"),
        (dict(name="two words"), "expected letters, digits and underscores"),
        (dict(source=" "), "source: expected a text"),
        (dict(registers=-1), "registers: expected zero or more, got -1"),
        (dict(arithmetic=Arithmetic(rounding="fused")),
         "expected a float32 destination, got int32"),
        (dict(dtypes=dict.fromkeys(["Src1", "Src2", "Dst"], "f32"),
              arithmetic=Arithmetic(saturate=True)),
         "saturate: expected an integer destination, got float32"),
        (dict(shapes=ShapeFamily((4,), (4,), (4,))), "shapes: expected one of 4x4x4, got 4x4x2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(IntrinsicError, match=message):
        define(**changes)


def test_a_statement_without_indices_moves_the_whole_fragment() -> None:
    unit = define(memory=["reg.Src1[] = shared.Src1[addr_a]", *MEMORY[1:]])
    assert str(unit.memory[0]) == "reg.Src1[i1, r1] = shared.Src1[addr_a + i1 * 2 + r1]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "0 signs '='"),
        ("reg.A[i] = shared.B[addr_b + i]", "two operands, 'A' and 'B'"),
        ("reg.A[i] = shared.A[i]", "0 sides with a base address"),
        ("reg.A[addr_x] = shared.A[addr_a]", "2 sides with a base address"),
        ("reg.A[i, j] = shared.A[addr_a + i]", "an address without j"),
        ("reg.A[i] = shared.A[addr_a + i + k]", "term 'k'"),
        ("reg.A[i + 1] = shared.A[addr_a + i]", "index 'i [+] 1' of a fragment"),
        ("reg.A[i] = shared.A[addr_a * 2 + i]", "base address 'addr_a [*] 2'"),
        ("A[i] = shared.A[addr_a + i]", "found 'A.i.'"),
        (3, "found int"),
    ],
)
def test_what_is_no_memory_statement_is_refused(text: Any, message: str) -> None:
    with pytest.raises(IntrinsicError, match=message):
        Memory.parse(text)


def test_layouts_cover_their_fragment() -> None:
    where = (("i1", "lane // 4"), ("i2", "lane % 4 * 2 + e"))
    FragmentLayout(32, 2, where).check("Dst", ("i1", "i2"), (8, 8))
    FragmentLayout(64, 2, (("i1", "lane // 4 % 8"), where[1])).check("A", ("i1", "i2"), (8, 8))
    with pytest.raises(IntrinsicError, match="leaves the fragment of shape"):
        FragmentLayout(32, 2, where).check("Dst", ("i1", "i2"), (8, 4))
    with pytest.raises(IntrinsicError, match="held equally often, got from 0 to 2 times"):
        FragmentLayout(32, 2, (("i1", "lane // 8"), where[1])).check("A", ("i1", "i2"), (8, 8))
    with pytest.raises(IntrinsicError, match="expected a formula for i2, i1"):
        FragmentLayout(32, 2, where).check("Dst", ("i2", "i1"), (8, 8))
    with pytest.raises(IntrinsicError, match="'lane [+] x': unknown name 'x'; known are lane, e"):
        FragmentLayout(32, 2, (("i1", "lane + x"),))
    with pytest.raises(IntrinsicError, match="lanes: expected a positive integer, got 0"):
        FragmentLayout(0, 2, where)


def test_formulas() -> None:
    values = {"lane": np.arange(3), "e": 2}
    assert evaluate("lane // 2 + 8 * (e % 2) - 1", values).tolist() == [-1, -1, 0]
    assert to_c("lane // 4 + 8*(e // 2 % 2)") == "lane / 4 + 8 * (e / 2 % 2)"
    for text in ("__import__('os')", "lane ** 2", "lane if e else 1", "1.5", "lane +", "(lane).x"):
        with pytest.raises(IntrinsicError, match="formula"):
            evaluate(text, values)
    with pytest.raises(IntrinsicError, match="unknown name 'x'; known are lane, e"):
        evaluate("x", values)
    with pytest.raises(IntrinsicError, match="division by zero"):
        evaluate("e // 0", values)


def test_small_parts_check_themselves() -> None:
    with pytest.raises(IntrinsicError, match="latency: expected cycles above zero, below"):
        Timing(1, "manual", 0)
    with pytest.raises(IntrinsicError, match="expected where the figures come from"):
        Timing(1, "")
    with pytest.raises(IntrinsicError, match="no shape fulfils"):
        ShapeFamily((8,), (8,), (8,), "m * n * k == 1")
    with pytest.raises(IntrinsicError, match="rounding: expected 'once' or"):
        Arithmetic(rounding="up")  # type: ignore[arg-type]
    with pytest.raises(IntrinsicError, match="alignment: expected a power of two, got 3"):
        Memory.parse(MEMORY[0], alignment=3)
