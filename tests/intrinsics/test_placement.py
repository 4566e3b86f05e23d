"""Where memory statements put the elements of fragments, and statements that cannot be."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import amos
from amos.errors import IntrinsicError
from amos.intrinsics import Intrinsic, Memory
from amos.intrinsics.placement import placement
from amos.ir import Tensor

LOAD, OTHER = "Src1[i1, r1]", "reg.Src2[r1, i2] = memory.Src2[addr_b + r1 * stride_b + i2]"
STORE = "memory.Dst[addr_c + i1 * stride_c + i2] = reg.Dst[i1, i2]"


def unit(address: str = "addr_a + i1 * stride_a + r1", **fields: object) -> Intrinsic:
    """A product of 4 x 2 and 2 x 8 elements whose first source lies as an address says."""
    scope = fields.pop("scope", "reg")
    return Intrinsic.define(
        "acme_dot_m4n8k2_s8_s32",
        "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
        {"i1": 4, "i2": 8, "r1": 2},
        {"Src1": "s8", "Src2": "s8", "Dst": "s32"},
        [Memory.parse(f"{scope}.{LOAD} = memory.Src1[{address}]", **fields), OTHER, STORE],
        family="acme",
        source="test",
    )


@pytest.mark.parametrize(
    ("address", "strides", "step"),
    [
        ("addr_a + i1 * stride_a + r1", (2, 1), 8),
        ("addr_a + i1 + r1 * stride_a", (1, 4), 8),
        ("addr_a + i1 * row + r1 * column", (2, 1), 8),
        ("addr_a + i1 * 5 + r1", (5, 1), 17),
        ("addr_a + i1 * row + r1 * 3", (6, 3), 22),
        ("addr_a + i1 * 3 + r1 * 16", (3, 16), 26),
    ],
)
def test_numbers_hold_and_symbols_step_over_what_is_there(
    address: str, strides: tuple[int, int], step: int
) -> None:
    own = unit(address).placements["Src1"]
    assert (own.strides, own.step) == (strides, step)
    assert len(np.unique(own.offsets)) == 8
    assert own.offsets.max() + 1 == step


def test_a_statement_is_the_node_of_table_4() -> None:
    """A tensor that is written, a scope, and what is loaded; it prints as it is read."""
    load, _, store = unit("addr_a + i1 + r1 * column").memory
    assert load.tensor == Tensor("reg.Src1", (4, 2), "int8")
    assert (load.scope, str(load.load)) == ("memory", "memory.Src1[addr_a + i1 + r1*4]")
    assert store.tensor == Tensor("memory.Dst", (32,), "int32")
    assert str(store.load) == "reg.Dst[i1, i2]"
    assert str(store.store) == "memory.Dst[addr_c + i1*8 + i2]"
    with pytest.raises(IntrinsicError, match="'Src1': expected one of an intrinsic's memory"):
        _ = Memory.parse(f"reg.{LOAD} = memory.Src1[addr_a + i1 * 2 + r1]").load


def test_every_statement_is_read_back_from_what_it_prints() -> None:
    for name in amos.intrinsics.names():
        unit = amos.intrinsics.get(name)
        again = [Memory.parse(m.statement) for m in unit.memory]
        fields = (
            "operand",
            "direction",
            "scope",
            "register_scope",
            "indices",
            "address",
            "strides",
        )
        for old, new in zip(unit.memory, again, strict=True):
            assert [getattr(old, x) for x in fields] == [getattr(new, x) for x in fields]
        literal = [
            replace(m, strides=Memory.parse(f"{m.store} = {m.load}").strides) for m in unit.memory
        ]
        numbers = replace(unit, memory=tuple(literal))
        assert numbers.placements == unit.placements
        assert [(m.store, m.load) for m in numbers.memory] == [
            (m.store, m.load) for m in unit.memory
        ]


def test_fragments_begin_at_multiples_of_the_alignment() -> None:
    assert unit("addr_a + i1 * 5 + r1", alignment=16).placements["Src1"].step == 32
    assert placement((3,), ("1",), 16, 64).step == 4
    assert placement((3,), ("1",), 1, 4).step == 3


def test_every_choice_of_strides_is_judged_as_by_counting() -> None:
    shapes, steps = [(2, 3), (1, 4), (3, 2)], itertools.product(range(5), repeat=2)
    for shape, strides in itertools.product(shapes, steps):
        grid = itertools.product(range(shape[0]), range(shape[1]))
        addresses = {i * strides[0] + j * strides[1] for i, j in grid}
        distinct = len(addresses) == shape[0] * shape[1]
        texts = tuple(map(str, strides))
        if distinct:
            assert placement(shape, texts, 1, 8).strides == strides
            continue
        with pytest.raises(IntrinsicError, match="two elements one address"):
            placement(shape, texts, 1, 8)


def test_the_order_of_memory_changes_indices_and_not_the_meaning() -> None:
    there, turned = unit(), unit("addr_a + i1 + r1 * stride_a")
    assert there.ordered is there
    assert str(turned.ordered.compute) == "Dst[i1, i2] += Src1[r1, i1] * Src2[r1, i2]"
    assert turned.ordered.ordered is turned.ordered


def test_no_built_in_statement_changes_what_is_staged() -> None:
    for name in amos.intrinsics.names():
        unit = amos.intrinsics.get(name)
        assert unit.ordered is unit
        assert all(own.dense for own in unit.placements.values())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(address="addr_a + i1 + r1 * 2"),
         "'Src1': strides 1 and 2 of a fragment of 4 x 2 give two elements one address"),
        (dict(address="addr_a + i1 * 0 + r1"), "strides 0 and 1 .* give two elements one address"),
        (dict(address="addr_a + i1 * s + r1 * s"), "stride s is 1 elements here and 2|one address"),
        (dict(address="addr_a + i1 * 999999 + r1"), "at most 1048576 addresses, got 2999999"),
        (dict(address="addr_a + i1 * 4x + r1"), "stride: expected a number or a name, got '4x'"),
        (dict(address="addr_b + i1 * stride_a + r1"), "address of its own, got addr_b of 'Src1'"),
        (dict(address="addr_a + i1 * stride_b + r1"), "stride_b is 8 elements here and 2 in"),
        (dict(scope="rag"), "scope 'rag' is declared nowhere: expected acc, reg, tile, vector"),
        (dict(scope="pad", capacity=7), "expected at least one fragment, 8 bytes, got 7"),
        (dict(scope="pad", capacity=64, banks=0), "banks: expected 1 or more, got 0"),
    ],
)  # fmt: skip
def test_statements_that_cannot_be_are_refused_in_a_line(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(IntrinsicError, match=message) as caught:
        unit(**fields)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def _shared(first: dict[str, int], second: dict[str, int]) -> Intrinsic:
    return Intrinsic.define(
        "acme_dot_m4n8k2_s8_s32",
        "Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
        {"i1": 4, "i2": 8, "r1": 2},
        {"Src1": "s8", "Src2": "s8", "Dst": "s32"},
        [
            Memory.parse("pad.Src1[] = global.Src1[addr_a]", **first),
            Memory.parse("pad.Src2[] = global.Src2[addr_b]", **second),
            STORE,
        ],
        family="acme",
        source="test",
    )


def test_operands_share_the_buffer_that_one_of_them_declares() -> None:
    (pad,) = _shared({}, {"capacity": 24, "banks": 2}).scratchpads
    assert (pad.name, pad.capacity, pad.banks, pad.operands) == ("pad", 24, 2, ("Src1", "Src2"))
    with pytest.raises(IntrinsicError, match="fragment of each of Src1, Src2, 24 bytes, got 20"):
        _shared({"capacity": 20}, {})
    with pytest.raises(IntrinsicError, match="buffer 'pad' has .* let one statement say it"):
        _shared({"capacity": 64}, {"capacity": 32})
