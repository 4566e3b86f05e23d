"""Integer arithmetic in place of quantized floats, element for element as ONNX defines it.

A quantized model states it as DequantizeLinear, a float operator and QuantizeLinear. Here these
become the integer operations that they represent, of which groups are formed as of any others:

* a product of integers is summed in ``int32``. With zero points, ``sum((x - z) * w)`` is
  ``sum(x * w) - z * sum(w)``; the second term is a constant for each channel and becomes part
  of the bias, where the image is padded with ``z``;
* what follows is a multiplication by ``scale_x * scale_w`` and a division by ``scale_y``, each
  rounded to float32, then rounding to nearest even, and a clamp to the result's range;
* a sum of two quantized tensors multiplies each by its scale, and is divided by the result's;
* what only moves or compares elements works on the integers, and what is joined is quantized
  part by part;
* what is computed of one quantized tensor, element by element, is looked up in a table.

So each step rounds as ONNX states it, node by node, and ties come out as there. onnxruntime
folds the scales into one factor instead. A model run node by node in floats differs by a quantum
where its sums of products are rounded; sums of integers are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amos.network.dynamic import emit_dequantize, emit_quantize
from amos.network.graph import (
    Constant,
    Graph,
    GraphBuilder,
    Node,
    Operand,
    Rewrite,
    rewrite_graph,
)
from amos.network.passes.levels import Levels, constant_floats, levels_of
from amos.network.passes.products import IntegerProduct, emit_sums, integer_product
from amos.network.passes.tables import rewrite_as_table
from amos.network.shapes import BYTES

#: Operators whose results are elements of their first operand.
_MOVES = ("Expand", "Gather", "GatherElements", "MaxPool", "Reshape", "Slice", "Tile", "Transpose")


def integer_arithmetic(graph: Graph) -> Graph:
    """Return the graph with integer operations for quantize, dequantize and what is between.

    Layouts are as frameworks write them, channels second.
    """
    graph = _with_unsigned_bytes(graph)
    rewrites: dict[int, Rewrite] = {}
    for node in graph.computing():
        if node.operation == "QuantizeLinear":
            rewrite = _of_quantize(graph, node)
        elif node.operation == "DequantizeLinear":
            rewrite = _of_dequantize(node)
        else:
            product = integer_product(graph, node)
            if product is None:
                continue
            rewrite = _float_product(product, node.dtype)
        rewrites[node.number] = rewrite
    return rewrite_graph(graph, rewrites)


def _with_unsigned_bytes(graph: Graph) -> Graph:
    """Shift bytes from -128 up by 128 where they are only dequantized again.

    Instructions take unsigned activations, and what a ReLU cuts off becomes 0, as padding is.
    Where it is 0 already, bytes stay signed.
    """
    rewrites: dict[int, Rewrite] = {}
    for node in graph.computing():
        levels = levels_of(node, "QuantizeLinear")
        if levels is None or node.dtype != "int8" or node.number in graph.returned:
            continue
        readers = graph.users[node.number]
        if levels.zero.any() and all(levels_of(each) is not None for each in readers):
            rewrites |= {each.number: _from_zero(each) for each in (node, *readers)}
    return rewrite_graph(graph, rewrites)


def _from_zero(node: Node) -> Rewrite:
    """Rewrite a quantize or dequantize to bytes that are larger by 128."""

    def emit(builder: GraphBuilder) -> Operand:
        value, scale, zero = node.operands
        assert isinstance(zero, Constant)
        larger = Constant((zero.array.astype(np.int32) + 128).astype(np.uint8))
        return builder.copy(node, (builder.value(value), scale, larger))

    return emit


def _of_quantize(graph: Graph, node: Node) -> Rewrite:
    """Return the rewrite of a quantize and of the operators ahead of it."""
    levels = levels_of(node, "QuantizeLinear")
    source = node.operands[0]
    if levels is None or not isinstance(source, Node) or not levels.single:
        return _emit_quantize(node, source)
    move = _move(node, source, levels)
    if move is not None:
        return move
    if source.operation == "Concat" and graph.has_one_reader(source):
        return _quantize_concat(node, source, levels)
    inner, relu = source, False
    if source.operation == "Relu" and graph.has_one_reader(source):
        operand = source.operands[0]
        if isinstance(operand, Node):
            inner, relu = operand, True
    if graph.has_one_reader(inner):
        product = integer_product(graph, inner)
        if product is not None:
            return _requantize(product, node, levels, relu, _only_summed(graph, node, levels))
        terms = [each for each in map(_term, inner.operands) if each is not None]
        added = inner.operation == "Add" and inner.shape == node.shape
        if added and len(terms) == len(inner.operands):
            return _sum(terms, node, levels, relu)
    return rewrite_as_table(node) or _emit_quantize(node, source)


def _move(node: Node, source: Node, levels: Levels) -> Rewrite | None:
    """Move integers instead of floats, if scale and zero point stay."""
    joined = source.operation == "Concat"
    if source.operation not in _MOVES and not joined:
        return None
    operands = source.operands if joined else source.operands[:1]
    integers = [_integers(operand, node, levels) for operand in operands]
    same = [each for each in integers if each is not None]
    if len(same) < len(integers):
        return None
    reads = [*same, *source.operands[len(same) :]]
    return lambda builder: builder.copy(source, [builder.value(each) for each in reads])


def _integers(operand: Operand, node: Node, levels: Levels) -> Operand | None:
    """Return the integers of a dequantized operand, if quantizing would give the same."""
    before = levels_of(operand)
    if before is None or not before.equals(levels) or before.integers.dtype != node.dtype:
        return None
    return before.integers


def _quantize_concat(node: Node, source: Node, levels: Levels) -> Rewrite:
    """Quantize the operands of a concatenation, in the kernels that compute them."""

    def quantize(builder: GraphBuilder, operand: Operand) -> Operand:
        integers = _integers(operand, node, levels)
        if integers is not None:
            return builder.value(integers)
        return _emit_quantize(node, operand)(builder)

    return lambda builder: builder.copy(source, [quantize(builder, x) for x in source.operands])


def _requantize(
    product: IntegerProduct, node: Node, levels: Levels, relu: bool, summed: bool
) -> Rewrite:
    """Requantize a product's result at once; keep floats if it is only summed."""

    def emit(builder: GraphBuilder) -> Operand:
        value = _emit_scaled(builder, product)
        value = builder.emit("Div", value, Constant(levels.reshape(levels.scale)))
        if summed:
            return _emit_rounded_floats(builder, value, levels, node.dtype, relu)
        return _emit_rounded(builder, value, levels, node.dtype, relu)

    return emit


def _only_summed(graph: Graph, node: Node, levels: Levels) -> bool:
    """Return whether the floats of a quantized tensor are only added to others."""
    if not levels.single or not graph.has_one_reader(node):
        return False
    (reader,) = graph.users[node.number]
    own = levels_of(reader)
    if own is None or not own.equals(levels) or not graph.has_one_reader(reader):
        return False
    (last,) = graph.users[reader.number]
    terms = [levels_of(operand) for operand in last.operands]
    numbers = [each.integers.number for each in terms if each and isinstance(each.integers, Node)]
    added = last.operation == "Add" and last.shape == node.shape and len(set(numbers)) == 2
    return added and max(numbers) == node.number  # the other is computed before, and stored


def _float_product(product: IntegerProduct, dtype: str) -> Rewrite:
    """Write a product of integers whose result stays a float of some dtype."""
    return lambda builder: builder.cast(_emit_scaled(builder, product), dtype)


def _emit_scaled(builder: GraphBuilder, product: IntegerProduct) -> Operand:
    """Emit a product as floats, with all of its bias."""
    factor = product.reshape(product.scale.astype(np.float32))
    value = _emit_times(builder, emit_sums(builder, product), factor)
    if product.float_bias is None:
        return value
    return builder.emit("Add", value, Constant(product.reshape(product.float_bias)))


def _term(operand: Operand) -> Levels | Constant | None:
    """Return a summand, quantized or of constant floats; ``None`` if it is neither."""
    floats = constant_floats(operand)
    if floats is not None:
        return Constant(floats)
    levels = levels_of(operand)
    fits = levels is not None and levels.single and levels.integers.dtype in BYTES
    return levels if fits else None


def _sum(terms: Sequence[Levels | Constant], node: Node, levels: Levels, relu: bool) -> Rewrite:
    """Sum tensors in units of the result's scale."""

    def value(builder: GraphBuilder, term: Levels | Constant) -> Operand:
        if isinstance(term, Constant):
            return term
        return _emit_units(builder, term, term.scale.reshape(()))

    def emit(builder: GraphBuilder) -> Operand:
        total = builder.emit("Add", *(value(builder, term) for term in terms))
        total = builder.emit("Div", total, Constant(levels.scale.reshape(())))
        return _emit_rounded(builder, total, levels, node.dtype, relu)

    return emit


def _emit_quantize(node: Node, source: Operand) -> Rewrite:
    """Quantize a value as the standard defines it."""
    scale, zero = node.operands[1:]

    def emit(builder: GraphBuilder) -> Operand:
        value, levels = builder.value(source), (builder.value(scale), builder.value(zero))
        return emit_quantize(builder, value, *levels, node.attributes["axis"])

    return emit


def _of_dequantize(node: Node) -> Rewrite:
    levels = levels_of(node)

    def emit(builder: GraphBuilder) -> Operand:
        if levels is None:  # the network computes them
            x, scale, zero = map(builder.value, node.operands)
            return emit_dequantize(builder, x, scale, zero, node.attributes["axis"])
        if isinstance(levels.integers, Constant):
            value: Operand = Constant(levels.values())
        else:
            value = _emit_units(builder, levels, levels.reshape(levels.scale))
        return builder.cast(value, node.dtype)

    return emit


def _emit_units(builder: GraphBuilder, levels: Levels, factor: np.ndarray) -> Operand:
    """Emit integers less their zero point, which may be floats already, times a factor."""
    value = builder.value(levels.integers)
    if value.dtype == "float32":
        return builder.emit("Mul", value, Constant(factor))
    value = builder.cast(value, "int32")
    if levels.zero.any():
        value = builder.emit("Sub", value, Constant(levels.reshape(levels.zero)))
    return _emit_times(builder, value, factor)


def _emit_times(builder: GraphBuilder, integers: Operand, factor: np.ndarray) -> Operand:
    """Emit integers as floats, times a constant."""
    floats = builder.emit("Cast", integers, to="float32")
    return builder.emit("Mul", floats, Constant(factor))


def _emit_rounded_floats(
    builder: GraphBuilder, value: Operand, levels: Levels, dtype: str, relu: bool
) -> Operand:
    """Emit :func:`_emit_rounded` in floats, less the zero point: four instructions fewer."""
    info, zero = np.iinfo(dtype), int(levels.zero[0])
    low, high = (0 if relu else info.min - zero), info.max - zero
    value = builder.emit("Round", value)
    value = builder.emit("Max", value, Constant(np.array(low, np.float32)))
    return builder.emit("Min", value, Constant(np.array(high, np.float32)))


def _emit_rounded(
    builder: GraphBuilder, value: Operand, levels: Levels, dtype: str, relu: bool
) -> Operand:
    """Emit floats in units of the scale as integers of a type, clamped to its range."""
    info = np.iinfo(dtype)
    low = levels.reshape(np.maximum(levels.zero, info.min) if relu else np.array([info.min]))
    value = builder.emit("Round", value)
    if levels.zero.any():
        zero = levels.reshape(levels.zero).astype(np.float32)
        value = builder.emit("Add", value, Constant(zero))
    value = builder.emit("Max", value, Constant(low.astype(np.float32)))
    value = builder.emit("Min", value, Constant(np.array(info.max, np.float32)))
    return builder.emit("Cast", value, to=dtype)
