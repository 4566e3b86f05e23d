"""Banks of shared memory: some padding that the space offers keeps every kernel's reads apart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import amos
from amos import machines
from amos.cuda import GpuSchedule
from amos.cuda.banks import (
    BANK_BYTES,
    WORD,
    matrix_cycles,
    store_cycles,
    swizzle_column,
    wavefronts,
)
from amos.cuda.plan import GpuPlan
from amos.cuda.shared_operand import SharedOperand
from amos.intrinsics.expression import evaluate
from amos.machine.gpu_costs import WARP
from amos.mapping import Mapping
from amos.schedule import ScheduleSpace

NAMES = [name for name in amos.intrinsics.names() if name.startswith(("mma_sync", "wmma"))]
#: Intrinsics whose sources have 16 bits: read by ldmatrix.
HALF = [n for n in NAMES if "f16" in n.split("_")[2]]
WORDS = [n for n in NAMES if n.startswith("mma_sync") and n not in HALF]
#: Both sources stored along and across the reduction.
TEXTS = [f"out[m,n] += a[{a}] * b[{b}]" for a in ("m,k", "k,m") for b in ("k,n", "n,k")]


def mapped(unit: str, text: str) -> Mapping:
    intrinsic = amos.intrinsics.get(unit)
    kinds = dict(zip(("a", "b", "out"), intrinsic.dtypes, strict=True))
    sizes = dict(m=64, n=64, k=64)
    op = amos.Operator.parse(text, extents=sizes, dtypes=kinds, name="gemm")
    return amos.enumerate_mappings(op, intrinsic)[0]


def offered(mapping: Mapping) -> Iterator[tuple[SharedOperand, ...]]:
    """The sources under each padding that the space has."""
    variables = ScheduleSpace(mapping, machines.get("h200")).variables
    names = [operand.tensor.name for operand in mapping.intrinsic.sources]
    for n in range(3):
        padding = {name: int(variables[f"align.{name}"][n]) for name in names}
        yield GpuPlan(mapping, GpuSchedule(padding=padding), "sm_90").sources


def bank_conflicts(source: SharedOperand) -> int:
    """Cycles beyond the fewest possible that a warp needs to load one fragment.

    Sources of 16 bits come by ``ldmatrix``, others with ``mma.sync`` as their lanes hold
    them. WMMA hides how it loads; compilers take ``ldmatrix`` for 16 bits from sm_75 on,
    and rows of 16 bytes are assumed for the rest.
    """
    tile, size = source.tile, source.size
    rows, width, stride = tile.rows.lanes, tile.columns.lanes * size, source.row * size
    swizzle = source.padding < 0
    memory = tile.nest.mapping.intrinsic.memory
    layout = next(m.layout for m in memory if m.operand == source.name)
    if size == 2 or layout is None:
        cycles = matrix_cycles(rows, width, stride, swizzle=swizzle)
        return cycles - matrix_cycles(rows, width, 16)
    along = tile.columns.target == "r1"
    wide = max(size, WORD) if along else size
    total = 0
    for e in range(0, layout.elements, wide // size):
        places = []
        for lane in range(WARP):
            at = {index: evaluate(text, {"lane": lane, "e": e}) for index, text in layout.where}
            row, column = at[tile.rows.target], at[tile.columns.target] * size
            if swizzle:
                column = int(swizzle_column(np.array(row), np.array(column), width))
            places.append(row * stride + column)
        total += wavefronts(np.array([places]), wide) - max(1, WARP * wide // BANK_BYTES)
    return total


@pytest.mark.parametrize("unit", HALF)
def test_ldmatrix_reads_without_conflict(unit: str) -> None:
    """However the sources lie."""
    for text in TEXTS:
        mapping = mapped(unit, text)
        conflicts = [[bank_conflicts(s) for s in sources] for sources in offered(mapping)]
        assert [min(each) for each in zip(*conflicts, strict=True)] == [0, 0], text
        assert any(max(each) > 0 for each in zip(*conflicts, strict=True))


@pytest.mark.parametrize("unit", [n for n in NAMES if n.startswith("mma_sync")])
def test_swizzled_rows_read_without_conflict(unit: str) -> None:
    """Where the space offers it, as well as the best padding, and in less shared memory."""
    for text in TEXTS if unit in HALF else TEXTS[1:2]:
        mapping = mapped(unit, text)
        variables = ScheduleSpace(mapping, machines.get("h200")).variables
        names = [operand.tensor.name for operand in mapping.intrinsic.sources]
        able = [name for name in names if -1 in variables[f"align.{name}"]]
        assert able, text
        plain = GpuPlan(mapping, GpuSchedule(), "sm_90").sources
        # Rows of an odd number of pieces of 16 bytes begin in different banks.
        longer = {s.name: 16 // s.size for s in plain if s.row * s.size % 32 == 0}
        padded = GpuPlan(mapping, GpuSchedule(padding=longer), "sm_90").sources
        schedule = GpuSchedule(padding=dict.fromkeys(able, -1))
        swizzled = GpuPlan(mapping, schedule, "sm_90").sources
        for swizzled_copy, padded_copy in zip(swizzled, padded, strict=True):
            assert bank_conflicts(swizzled_copy) <= bank_conflicts(padded_copy)
            assert swizzled_copy.bytes <= padded_copy.bytes
            if swizzled_copy.period:
                assert swizzled_copy.bytes < padded_copy.bytes
                assert bank_conflicts(swizzled_copy) == 0


def test_what_a_swizzle_spares() -> None:
    """Sixteen rows of 32 bytes: reads as with padding, and stores as without."""
    read = matrix_cycles(16, 32, 32, swizzle=True)
    assert (read, store_cycles(16, 16, 32, 2, 16, swizzle=True)) == (4, 4)


@pytest.mark.parametrize("unit", WORDS)
def test_words_along_the_reduction_without_conflict(unit: str) -> None:
    """Types of other sizes, by the lanes of their layout."""
    mapping = mapped(unit, "out[m,n] += a[m,k] * b[n,k]")
    conflicts = [[bank_conflicts(s) for s in sources] for sources in offered(mapping)]
    assert [min(each) for each in zip(*conflicts, strict=True)] == [0, 0]


def test_what_padding_costs_the_copies() -> None:
    """Rows of 16 halves: padding frees the reads, and a store of 16 bytes a lane waits.

    Four rows of two pieces that a quarter of a warp writes fall apart without padding only;
    each fragment is stored once and read by several warps, so that reads count for more.
    """
    rows = {row: (matrix_cycles(16, 32, row), store_cycles(16, 16, row, 2, 16)) for row in (32, 48)}
    assert rows == {32: (8, 4), 48: (4, 8)}
