"""The transforms of :mod:`amos.operators.winograd` as loops: an image into tiles, and out of them.

A step computes one tile of as many channels as a vector has lanes, in registers; steps run in
parallel. What follows a convolution element by element is computed where results leave tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from amos._toolchain import load_tvm
from amos.codegen.tir.epilogue import finished
from amos.ir import Operator
from amos.operators.winograd import (
    DIVISORS,
    ELEMENTS,
    INTO_TILES,
    OUT_OF_TILES,
    RESULTS,
    Winograd,
)

#: Channels of a step.
LANES = 16


def into_tiles(form: Winograd, symbol: str) -> Any:
    """The function of an image that stores its transformed tiles, ``form.factor``."""
    load_tvm()
    from tvm import tirx

    image = tirx.decl_buffer(form.image, form.dtype, "image")
    tiles = tirx.decl_buffer(form.factor, form.kinds[0], "tiles")
    step = tirx.Var("step", "int32")
    tile, channel, lead, (row, column) = _placed(form, step, form.image)
    top, left = (
        at * RESULTS - before for at, before in zip((row, column), form.padding[-2:], strict=True)
    )
    height, width = form.image[-3:-1]

    def transformed(everywhere: bool) -> Any:
        steps = _Steps()

        def element(i: int, j: int) -> Any:
            y, x = top + i, left + j
            value = tirx.BufferLoad(image, [*lead, y, x, channel + steps.lane])
            if not everywhere:
                inside = tirx.all(y >= 0, y < height, x >= 0, x < width)
                value = tirx.if_then_else(inside, value, tirx.const(0, form.dtype))
            return steps.value(value.astype(form.kinds[0]))

        for i, j, value in _transformed(INTO_TILES, element, steps):
            at = [i * ELEMENTS + j, tile, channel + steps.lane]
            steps.statements.append(tirx.BufferStore(tiles, value, at))
        return steps.loop

    inside = tirx.all(*(top >= 0, top <= height - ELEMENTS), *(left >= 0, left <= width - ELEMENTS))
    body = tirx.IfThenElse(inside, transformed(True), transformed(False))
    return _function([image, tiles], step, form.factor, body, symbol)


def out_of_tiles(form: Winograd, operator: Operator, symbol: str) -> Any:
    """The function of the product's sums, and of what the epilogue reads, that stores results.

    Args:
        form: of the convolution.
        operator: the convolution, with its epilogue.
        symbol: name of the function.
    """
    load_tvm()
    from tvm import tirx

    tiles = tirx.decl_buffer(form.sums, form.kinds[1], "tiles")
    tensors = {
        each.name: tirx.decl_buffer(each.shape, str(each.dtype), each.name)
        for each in read_behind(operator)
    }
    result = tirx.decl_buffer(form.result, str(operator.result.dtype), "result")
    step, steps = tirx.Var("step", "int32"), _Steps()
    tile, channel, lead, (row, column) = _placed(form, step, form.result)
    names = [index.names[0] for index in operator.output.indices]

    def element(i: int, j: int) -> Any:
        at = [i * ELEMENTS + j, tile, channel + steps.lane]
        return steps.value(tirx.BufferLoad(tiles, at))

    for i, j, value in _transformed(OUT_OF_TILES[form.integer], element, steps):
        y, x = row * RESULTS + i, column * RESULTS + j
        if form.integer:
            value = steps.value(_divided(value, DIVISORS[i] * DIVISORS[j]))
        place = [*lead, y, x, channel + steps.lane]
        value = finished(operator, value, dict(zip(names, place, strict=True)), tensors)
        store: Any = tirx.BufferStore(result, value, place)
        beyond = [
            at < extent
            for at, extent in zip((y, x), form.result[-3:-1], strict=True)
            if extent % RESULTS
        ]
        steps.statements.append(
            tirx.IfThenElse(tirx.all(*beyond), store, None) if beyond else store
        )
    arguments = [tiles, *tensors.values(), result]
    return _function(arguments, step, form.sums, steps.loop, symbol)


def read_behind(operator: Operator) -> list[Any]:
    """The tensors that an epilogue reads."""
    sources = {load.tensor.name for load in operator.sources}
    return [each for each in operator.inputs if each.name not in sources]


class _Steps:
    """Statements of one vector's lanes, each with a value of its own."""

    def __init__(self) -> None:
        from tvm import tirx

        self.lane = tirx.Var("lane", "int32")
        self.statements: list[Any] = []
        self._values: list[Any] = []

    def value(self, value: Any) -> Any:
        """The value of an expression, computed here and once."""
        from tvm import tirx

        name = f"value{len(self._values)}"
        vector = tirx.decl_buffer((LANES,), str(value.ty.dtype), name, scope="local")
        self._values.append(vector)
        self.statements.append(tirx.BufferStore(vector, value, [self.lane]))
        return tirx.BufferLoad(vector, [self.lane])

    @property
    def loop(self) -> Any:
        """All of them, for all lanes."""
        from tvm import tirx

        vectors = tirx.ForKind.VECTORIZED
        loop = tirx.For(self.lane, 0, LANES, vectors, tirx.SeqStmt(self.statements))
        return tirx.SeqStmt([*map(tirx.AllocBuffer, self._values), loop])


def _placed(form: Winograd, step: Any, extents: Sequence[int]) -> tuple[Any, Any, list[Any], Any]:
    """Of a step the tile, the first channel, the image, and the row and column in it."""
    blocks = extents[-1] // LANES
    tile, (rows, columns) = step // blocks, form.grid
    left, lead = tile // (rows * columns), list[Any]()
    for extent in reversed(extents[1:-3]):
        lead.insert(0, left % extent)
        left //= extent
    channel = step % blocks * LANES
    return tile, channel, [left, *lead], (tile // columns % rows, tile % columns)


def _transformed(
    matrices: Sequence[np.ndarray], element: Callable[[int, int], Any], steps: _Steps
) -> Iterator[tuple[int, int, Any]]:
    """``M x Mᵀ`` of a tile, where M is the product of some matrices, element by element.

    Args:
        matrices: the one that is applied first in front.
        element: of the tile, by its row and column.
        steps: where it is computed.
    """
    columns = [
        _applied(matrices, [element(i, j) for i in range(ELEMENTS)], steps) for j in range(ELEMENTS)
    ]
    for i, row in enumerate(zip(*columns, strict=True)):
        for j, value in enumerate(_applied(matrices, row, steps)):
            yield i, j, value


def _applied(matrices: Sequence[np.ndarray], values: Sequence[Any], steps: _Steps) -> list[Any]:
    """Some values times matrices."""
    for matrix in matrices:
        values = [
            values[int(row.argmax())]
            if np.abs(row).sum() == row.max() == 1
            else steps.value(_sum(row, values))
            for row in matrix
        ]
    return list(values)


def _sum(factors: np.ndarray, values: Sequence[Any]) -> Any:
    """The sum of values times factors, modulo 2**32 where these have 32 bits."""
    from tvm import tirx

    kind = str(values[0].ty.dtype)
    # TVM tells LLVM that integers of 32 bits never overflow.
    wide = "int64" if kind == "int32" else kind
    terms = sorted(zip(factors.tolist(), values, strict=True), key=lambda term: -term[0])
    total: Any = None
    for factor, value in terms:
        if factor:
            term = value.astype(wide)
            term = term if abs(factor) == 1 else term * tirx.const(abs(factor), wide)
            # The largest factor of each row is positive.
            total = term if total is None else total + term if factor > 0 else total - term
    return _narrowed(total) if wide == "int64" else total


def _divided(value: Any, divisor: int) -> Any:
    """An integer over one that divides it, both modulo 2**32."""
    from tvm import tirx

    shift = (divisor & -divisor).bit_length() - 1
    inverse = pow(divisor >> shift, -1, 2**32)
    product = value.astype("int64") * tirx.const(inverse, "int64")
    return tirx.shift_right(_narrowed(product), tirx.const(shift, "int32"))


def _narrowed(value: Any) -> Any:
    """The lower 32 bits of an integer."""
    from tvm import tirx

    return tirx.reinterpret("int32", value.astype("uint32"))


def _function(
    arguments: list[Any], step: Any, extents: tuple[int, int, int], body: Any, symbol: str
) -> Any:
    """A function that runs a body for each step of as many tiles and channels."""
    from tvm import tirx

    count = prod(extents[1:]) // LANES
    loop = tirx.For(step, 0, count, tirx.ForKind.PARALLEL, body)
    function = tirx.PrimFunc(arguments, loop)
    return function.with_attr({"global_symbol": symbol, "tirx.noalias": True, "s_tir": True})
