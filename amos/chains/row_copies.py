"""Rows of a tile that are moved or filled, as TensorIR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from amos.chains.rolling import RollingRows
from amos.ir import dtype

#: Bytes of the longest vector.
_VECTOR_BYTES = 64


def declare_flat(memory: Any) -> Any:
    """Return a buffer of one dimension for the elements of another one."""
    from tvm import tirx

    count = prod(map(int, memory.shape))
    return tirx.decl_buffer((count,), str(memory.dtype), f"{memory.name}_flat")


def move_rows(flat: Any, rows: RollingRows) -> Iterator[Any]:
    """Move the rows that a tile keeps to the front.

    Args:
        flat: the memory of a tile; dimensions before that of rows are one.
        rows: how they roll.
    """
    from tvm import tirx

    width = int(flat.shape[0]) // (rows.halo + rows.fresh)

    def move(place: Any) -> Any:
        return tirx.BufferStore(flat, tirx.BufferLoad(flat, [place + rows.fresh * width]), [place])

    return _in_vectors(rows.halo * width, str(flat.dtype), move)


def fill_rows(flat: Any, rows: RollingRows, first: Any, value: Any) -> Iterator[Any]:
    """Fill the rows of a unit.

    Args:
        flat: the memory of a tile.
        rows: how they roll.
        first: the number of the first row.
        value: what they are filled with.
    """
    from tvm import tirx

    width = int(flat.shape[0]) // (rows.halo + rows.fresh)
    return _in_vectors(
        rows.unit * width,
        str(flat.dtype),
        lambda at: tirx.BufferStore(flat, value, [first * width + at]),
    )


def _in_vectors(count: int, kind: str, store: Callable[[Any], Any]) -> Iterator[Any]:
    """Loop over elements in vectors, the last ones shorter."""
    from tvm import tirx

    start, lanes = 0, _VECTOR_BYTES * 8 // dtype(kind).bits
    while start < count:
        if steps := (count - start) // lanes:
            step, lane = tirx.Var("step", "int32"), tirx.Var("lane", "int32")
            vector = store(start + step * lanes + lane)
            inner = tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, vector)
            yield tirx.For(step, 0, steps, tirx.ForKind.SERIAL, inner)
            start += steps * lanes
        lanes //= 2
