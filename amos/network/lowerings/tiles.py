"""Convolutions by :mod:`amos.operators.winograd` as loops that enclose the kernel of their product.

A step of a transform computes one tile of 16 or 8 channels, the lanes of a vector; steps run in
parallel. The epilogue is computed with the inverse transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from amos._toolchain import load_tvm
from amos.codegen.tir.arrays import container_dtype
from amos.codegen.tir.epilogue import finish
from amos.codegen.tir.lane_steps import LaneSteps
from amos.codegen.tir.statements import serialize
from amos.ir import Operator
from amos.network.lowerings.base import ScheduledProduct
from amos.operators.winograd import (
    DIVISORS,
    ELEMENTS,
    INTO_TILES,
    OUT_OF_TILES,
    RESULTS,
    Winograd,
)
from amos.runtime.compiling import compact_buffers

#: Channels of a step, if they divide a tensor's, and the least.
_LANES, LEAST_LANES = 16, 8


def write_tiles(form: Winograd, operator: Operator, product: ScheduledProduct) -> Any:
    """Write the function of a convolution by tiles: transforms, with the product between them.

    Args:
        form: of the convolution.
        operator: the convolution, with its epilogue.
        product: of a band of tiles.

    Returns:
        A function of the image, the product's weights, what the epilogue reads, and the result.
    """
    load_tvm()
    from tvm import tirx

    x, weight, sums = map(product.parameters.__getitem__, ("x", "weight", "out"))
    image = tirx.decl_buffer(form.image, form.dtype, "image")
    tensors = {
        each.name: tirx.decl_buffer(each.shape, container_dtype(str(each.dtype)), each.name)
        for each in list_epilogue_tensors(operator)
    }
    result = tirx.decl_buffer(form.result, container_dtype(str(operator.result.dtype)), "result")
    core, number = tirx.Var("core", "int32"), tirx.Var("band", "int32")
    first, end = (each * form.count // form.cores for each in (core, core + 1))
    alone = form.cores > 1
    band = first + number if alone else number
    into = _write_transform(form, band, image, _Flat(x, form.factor))
    out_of = _write_inverse(form, operator, band, _Flat(sums, form.sums), tensors, result)
    steps = tirx.SeqStmt([into, compact_buffers(product.function).body, out_of])
    loop = tirx.For(number, 0, end - first if alone else form.count, tirx.ForKind.SERIAL, steps)
    body = tirx.SeqStmt([tirx.AllocBuffer(x), tirx.AllocBuffer(sums), loop])
    if alone:
        body = tirx.For(core, 0, form.cores, tirx.ForKind.PARALLEL, serialize(body))
    function = tirx.PrimFunc([image, weight, *tensors.values(), result], body)
    return function.with_attr({"tirx.noalias": True, "s_tir": True})


def _write_transform(form: Winograd, band: Any, image: Any, tiles: _Flat) -> Any:
    """Write the loop that transforms a band of an image into tiles."""
    from tvm import tirx

    step = tirx.Var("step", "int32")
    tile, channel, lead, row, column = _locate_tile(form, band, step, form.image)
    y_begin, x_begin = (
        at * RESULTS - before for at, before in zip((row, column), form.padding[-2:], strict=True)
    )
    height, width = form.image[-3:-1]

    def transform(padded: bool) -> Any:
        steps = LaneSteps(_count_lanes(form.channels))

        def element(i: int, j: int) -> Any:
            y, x = y_begin + i, x_begin + j
            value = tirx.BufferLoad(image, [*lead, y, x, channel + steps.lane])
            if padded:
                is_pixel = tirx.all(y >= 0, y < height, x >= 0, x < width)
                value = tirx.if_then_else(is_pixel, value, tirx.const(0, form.dtype))
            return steps.value(value.astype(form.kinds[0]))

        for i, j, value in _transform_tile(INTO_TILES[form.integer], element, steps):
            at = tiles.index(i * ELEMENTS + j, tile, channel + steps.lane)
            steps.statements.append(tirx.BufferStore(tiles.buffer, value, at))
        return steps.loop

    rows_fit = y_begin >= 0, y_begin <= height - ELEMENTS
    columns_fit = x_begin >= 0, x_begin <= width - ELEMENTS
    is_interior = tirx.all(*rows_fit, *columns_fit)
    body = tirx.IfThenElse(is_interior, transform(padded=False), transform(padded=True))
    return _parallel(step, form.factor, body)


def _write_inverse(
    form: Winograd,
    operator: Operator,
    band: Any,
    tiles: _Flat,
    tensors: Mapping[str, Any],
    result: Any,
) -> Any:
    """Write the loop that computes a band of results from tiles, with the epilogue."""
    from tvm import tirx

    step, steps = tirx.Var("step", "int32"), LaneSteps(_count_lanes(form.features))
    tile, channel, lead, row, column = _locate_tile(form, band, step, form.result)
    names = [index.names[0] for index in operator.output.indices]

    def element(i: int, j: int) -> Any:
        at = tiles.index(i * ELEMENTS + j, tile, channel + steps.lane)
        return steps.value(tirx.BufferLoad(tiles.buffer, at))

    for i, j, value in _transform_tile(OUT_OF_TILES[form.integer], element, steps):
        y, x = row * RESULTS + i, column * RESULTS + j
        if form.integer:
            value = steps.value(_divide_exactly(value, DIVISORS[i] * DIVISORS[j]))
        place = [*lead, y, x, channel + steps.lane]
        value = finish(operator, value, dict(zip(names, place, strict=True)), tensors)
        store: Any = tirx.BufferStore(result, value, place)
        beyond = [
            at < extent
            for at, extent in zip((y, x), form.result[-3:-1], strict=True)
            if extent % RESULTS
        ]
        steps.statements.append(
            tirx.IfThenElse(tirx.all(*beyond), store, None) if beyond else store
        )
    return _parallel(step, form.sums, steps.loop)


@dataclass(frozen=True)
class _Flat:
    """A buffer that holds a tensor of some extents, whatever its own are."""

    buffer: Any
    extents: tuple[int, int, int]

    def index(self, position: Any, tile: Any, channel: Any) -> list[Any]:
        """Return the buffer's index of an element of the tensor."""
        shape = tuple(map(int, self.buffer.shape))
        if shape == self.extents:
            return [position, tile, channel]
        _, tiles, channels = self.extents
        at, index = (position * tiles + tile) * channels + channel, list[Any]()
        for extent in reversed(shape[1:]):
            index.insert(0, at % extent)
            at = at // extent
        return [at, *index]


def list_epilogue_tensors(operator: Operator) -> list[Any]:
    """Return the tensors that an epilogue reads."""
    sources = {load.tensor.name for load in operator.sources}
    return [each for each in operator.inputs if each.name not in sources]


def _count_lanes(channels: int) -> int:
    """Return the channels of a step of a transform."""
    return LEAST_LANES if channels % _LANES else _LANES


def _locate_tile(form: Winograd, band: Any, step: Any, extents: Sequence[int]) -> tuple[Any, ...]:
    """Return a step's tile, first channel and image, and the tile's row and column in the image."""
    from tvm import tirx

    lanes = _count_lanes(extents[-1])
    blocks = extents[-1] // lanes
    tile, (rows, columns) = step // blocks, form.grid
    image, lead = tile // (rows * columns), list[Any]()
    for extent in reversed(extents[1:-3]):
        lead.insert(0, image % extent)
        image //= extent
    image = image + band // form.bands * form.images
    first = band % form.bands * rows
    if form.rows % rows:
        first = tirx.min(first, form.rows - rows)
    row = first + tile // columns % rows
    return tile, step % blocks * lanes, [image, *lead], row, tile % columns


def _transform_tile(
    matrices: Sequence[np.ndarray], element: Callable[[int, int], Any], steps: LaneSteps
) -> Iterator[tuple[int, int, Any]]:
    """Yield row, column and value of ``M x Mᵀ`` of a tile, where M is a product of matrices.

    Args:
        matrices: factors of M, in the order in which they are applied.
        element: of the tile, by its row and column.
        steps: that values are computed in.
    """
    columns = [
        _multiply(matrices, [element(i, j) for i in range(ELEMENTS)], steps)
        for j in range(ELEMENTS)
    ]
    for i, row in enumerate(zip(*columns, strict=True)):
        for j, value in enumerate(_multiply(matrices, row, steps)):
            yield i, j, value


def _multiply(matrices: Sequence[np.ndarray], values: Sequence[Any], steps: LaneSteps) -> list[Any]:
    """Multiply a vector of values by matrices."""
    for matrix in matrices:
        values = [
            values[int(row.argmax())] if _is_copy(row) else steps.value(_sum(row, values))
            for row in matrix
        ]
    return list(values)


def _is_copy(row: np.ndarray) -> bool:
    """Return whether a row of a matrix selects one value."""
    return bool(row.max() == np.abs(row).sum() == 1)


def _sum(factors: np.ndarray, values: Sequence[Any]) -> Any:
    """Sum values times factors, modulo 2**32 where these have 32 bits."""
    from tvm import tirx

    kind = str(values[0].ty.dtype)
    # TVM tells LLVM that integers of 32 bits never overflow.
    wide = "int64" if kind == "int32" else kind
    terms = sorted(zip(factors.tolist(), values, strict=True), key=lambda term: -term[0])
    total: Any = None
    for factor, value in terms:
        if factor:
            term = value.astype(wide)
            size = abs(factor) if wide == "float32" else round(abs(factor))
            term = term if size == 1 else term * tirx.const(size, wide)
            # The largest factor of each row is positive.
            total = term if total is None else total + term if factor > 0 else total - term
    return _narrow(total) if wide == "int64" else total


def _divide_exactly(value: Any, divisor: int) -> Any:
    """Divide an integer by a divisor of it, both modulo 2**32."""
    from tvm import tirx

    shift = (divisor & -divisor).bit_length() - 1
    inverse = pow(divisor >> shift, -1, 2**32)
    product = value.astype("int64") * tirx.const(inverse, "int64")
    return tirx.shift_right(_narrow(product), tirx.const(shift, "int32"))


def _narrow(value: Any) -> Any:
    """Return the lower 32 bits of an integer."""
    from tvm import tirx

    return tirx.reinterpret("int32", value.astype("uint32"))


def _parallel(step: Any, extents: tuple[int, int, int], body: Any) -> Any:
    """Write the loop over all tiles and the vectors of their channels."""
    from tvm import tirx

    return tirx.For(step, 0, count_steps(extents), tirx.ForKind.PARALLEL, body)


def count_steps(extents: tuple[int, int, int]) -> int:
    """Return the steps of a transform of positions, tiles and channels."""
    return prod(extents[1:]) // _count_lanes(extents[-1])


def count_operations(matrices: Sequence[np.ndarray]) -> int:
    """Return the vector operations of a step of the transform by a product of matrices.

    Args:
        matrices: its factors, in the order in which they are applied.
    """
    terms = sum(np.count_nonzero(row) for each in matrices for row in each if not _is_copy(row))
    results = len(matrices[-1])
    return int(terms * (ELEMENTS + results) + ELEMENTS**2 + results**2)
