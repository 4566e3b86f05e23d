"""Integer arithmetic where a network quantizes, element for element what ONNX defines.

A quantized model says it with pairs: DequantizeLinear, a float operator, QuantizeLinear.
Here they become the integer operations that they stand for, as operators of the engine, so
that groups are made of them as of any others:

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

from dataclasses import dataclass
from typing import Any

import numpy as np

from amos.network.graph import Constant, Graph, Node, Operand
from amos.network.levels import BYTES, Levels, constant_floats, levels_of
from amos.network.products import IntegerProduct, integer_product, read_once, sums
from amos.network.program import Rewrite, Writer, const, read, rebuilt, renewed
from amos.network.tables import table_of

#: What gives some of the elements of its first operand, in whatever order.
_MOVES = (
    *("reshape", "permute_dims", "expand_dims", "squeeze", "flatten", "strided_slice", "take"),
    *("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "nn.batch_flatten"),
)


def integer_arithmetic(module: Any) -> Any:
    """The module with integer operations for quantize, dequantize and what stands between.

    Layouts are as frameworks write them, channels second.
    """
    module = _unsigned(module)
    graph = read(module)
    rewrites: dict[int, Rewrite] = {}
    for node in graph.computing():
        if node.operation == "quantize":
            rewrite = _of_quantize(graph, node)
        elif node.operation == "dequantize":
            rewrite = _of_dequantize(node)
        else:
            product = integer_product(graph, node)
            rewrite = _float_product(product, node.dtype) if product else None
        if rewrite is not None:
            rewrites[node.number] = rewrite
    return rebuilt(graph, rewrites) if rewrites else module


def _unsigned(module: Any) -> Any:
    """The module with bytes from 0 where those from -128 are only dequantized again.

    Instructions take unsigned activations, and what a ReLU cuts off becomes 0, as padding is.
    Where it is 0 already, bytes stay signed.
    """
    graph, rewrites = read(module), dict[int, Rewrite]()
    for node in graph.computing():
        users = {user: levels_of(user) for user in graph.users[node.number]}
        levels = levels_of(node, "quantize")
        if levels is None or node.dtype != "int8" or node.number in graph.kept:
            continue
        if not levels.zero.any() or None in users.values():
            continue
        for each, own in {node: levels, **users}.items():
            if own is not None:
                rewrites[each.number] = _from_zero(each, own)
    return rebuilt(graph, rewrites) if rewrites else module


def _from_zero(node: Node, levels: Levels) -> Rewrite:
    """The same quantize or dequantize over bytes that are larger by 128."""

    def make(writer: Writer) -> Any:
        from tvm import relax

        zero = (levels.zero + 128).astype(np.uint8)
        scale, zero = (v.reshape(()) if v.size == 1 else v for v in (levels.scale, zero))
        function = getattr(relax.op, node.operation)
        kind = "uint8" if node.operation == "quantize" else node.dtype
        value = writer.value(node.operands[0])
        return function(value, const(scale), const(zero), axis=levels.axis, out_dtype=kind)

    return make


def _of_quantize(graph: Graph, node: Node) -> Rewrite | None:
    """What a quantize becomes, with what stands before it."""
    levels = levels_of(node, "quantize")
    source = node.operands[0]
    if levels is None:
        return None
    if not isinstance(source, Node) or not levels.single:
        return _division(node, levels, source)
    move = _move(node, source, levels)
    if move is not None:
        return move
    if source.operation == "concat" and read_once(graph, source):
        return _joined(node, source, levels)
    inner, relu = source, False
    if source.operation == "nn.relu" and read_once(graph, source):
        operand = source.operands[0]
        if isinstance(operand, Node):
            inner, relu = operand, True
    if read_once(graph, inner):
        product = integer_product(graph, inner)
        if product is not None:
            return _requantized(product, node, levels, relu, _only_summed(graph, node, levels))
        terms = [_term(operand) for operand in inner.operands]
        if inner.operation == "add" and inner.shape == node.shape and None not in terms:
            return _sum([term for term in terms if term is not None], node, levels, relu)
    table = table_of(node)
    return table.taken if table else _division(node, levels, source)


def _move(node: Node, source: Node, levels: Levels) -> Rewrite | None:
    """The same node over integers, where the scale and the zero point stay."""
    joined = source.operation == "concat"
    if source.operation not in _MOVES and not joined:
        return None
    operands = source.operands if joined else source.operands[:1]
    integers = [_integers(operand, node, levels) for operand in operands]
    same = [each for each in integers if each is not None]
    if len(same) < len(integers):
        return None
    read_ = [*same, *source.operands[len(same) :]]
    return lambda writer: renewed(source, [writer.value(each) for each in read_])


def _integers(operand: Operand, node: Node, levels: Levels) -> Operand | None:
    """What an operand was dequantized from, if a quantize would give the same again."""
    before = levels_of(operand)
    if before is None or not before.same(levels) or before.integers.dtype != node.dtype:
        return None
    return before.integers


def _joined(node: Node, source: Node, levels: Levels) -> Rewrite:
    """A quantize of what is joined: of each part, where the kernel that makes it can do it."""

    def part(writer: Writer, operand: Operand) -> Any:
        integers = _integers(operand, node, levels)
        if integers is not None:
            return writer.value(integers)
        return writer.emit(_division(node, levels, operand)(writer))

    return lambda writer: renewed(source, [part(writer, each) for each in source.operands])


def _requantized(
    product: IntegerProduct, node: Node, levels: Levels, relu: bool, summed: bool
) -> Rewrite:
    """A product whose result is quantized at once; as floats if it is only summed."""

    def make(writer: Writer) -> Any:
        from tvm import relax

        value = _scaled(writer, product)
        value = writer.emit(relax.op.divide(value, const(levels.shaped(levels.scale))))
        if summed:
            return _rounded_floats(writer, value, levels, node.dtype, relu)
        return _rounded(writer, value, levels, node.dtype, relu)

    return make


def _only_summed(graph: Graph, node: Node, levels: Levels) -> bool:
    """Whether all that is done with a quantized tensor is to add its floats to others."""
    if not levels.single or not read_once(graph, node):
        return False
    (reader,) = graph.users[node.number]
    own = levels_of(reader)
    if own is None or not own.same(levels) or not read_once(graph, reader):
        return False
    (last,) = graph.users[reader.number]
    terms = [levels_of(operand) for operand in last.operands]
    numbers = [each.integers.number for each in terms if each and isinstance(each.integers, Node)]
    added = last.operation == "add" and last.shape == node.shape and len(set(numbers)) == 2
    return added and max(numbers) == node.number  # the other is computed before, and stored


def _float_product(product: IntegerProduct, dtype: str) -> Rewrite:
    """A product of integers whose result stays a float, of some dtype."""

    return lambda writer: _converted(writer, _scaled(writer, product), dtype)


def _scaled(writer: Writer, product: IntegerProduct) -> Any:
    """A product as floats, with all of its bias."""
    from tvm import relax

    factor = product.shaped(product.scale.astype(np.float32))
    value = _times(writer, sums(writer, product), factor)
    if product.rest is None:
        return value
    return writer.emit(relax.op.add(value, const(product.shaped(product.rest))))


@dataclass(frozen=True, eq=False)
class _Term:
    """One of the tensors that are added: quantized, or constant floats."""

    levels: Levels | None
    floats: np.ndarray | None


def _term(operand: Operand) -> _Term | None:
    floats = constant_floats(operand)
    if floats is not None:
        return _Term(None, floats)
    levels = levels_of(operand)
    if levels is None or not levels.single or levels.integers.dtype not in BYTES:
        return None
    return _Term(levels, None)


def _sum(terms: list[_Term], node: Node, levels: Levels, relu: bool) -> Rewrite:
    """A sum of tensors, in units of the result's scale."""

    def value(writer: Writer, term: _Term) -> Any:
        if term.levels is None:
            assert term.floats is not None
            return const(term.floats)
        return _units(writer, term.levels, term.levels.scale.reshape(()))

    def make(writer: Writer) -> Any:
        from tvm import relax

        total = writer.emit(relax.op.add(*(value(writer, term) for term in terms)))
        total = writer.emit(relax.op.divide(total, const(levels.scale.reshape(()))))
        return _rounded(writer, total, levels, node.dtype, relu)

    return make


def _division(node: Node, levels: Levels, source: Operand) -> Rewrite:
    """A quantize as it is defined."""

    def make(writer: Writer) -> Any:
        from tvm import relax

        scale = const(levels.shaped(levels.scale))
        value = _converted(writer, writer.value(source), "float32")
        value = writer.emit(relax.op.divide(value, scale))
        return _rounded(writer, value, levels, node.dtype, relu=False)

    return make


def _of_dequantize(node: Node) -> Rewrite | None:
    levels = levels_of(node)
    if levels is None:
        return None

    def make(writer: Writer) -> Any:
        if isinstance(levels.integers, Constant):
            kind = node.dtype if hasattr(np, node.dtype) else "float32"
            value = writer.emit(const(levels.values().astype(kind)))
        else:
            value = _units(writer, levels, levels.shaped(levels.scale))
        return _converted(writer, value, node.dtype)

    return make


def _units(writer: Writer, levels: Levels, factor: np.ndarray) -> Any:
    """The integers less their zero point as floats, which they may be already, times a factor."""
    from tvm import relax

    value = writer.value(levels.integers)
    if value.ty.dtype == "float32":
        return writer.emit(relax.op.multiply(value, const(factor)))
    return _times(writer, _centred(writer, levels), factor)


def _centred(writer: Writer, levels: Levels) -> Any:
    """The integers less their zero point, as int32."""
    from tvm import relax

    value = writer.emit(relax.op.astype(writer.value(levels.integers), "int32"))
    if not levels.zero.any():
        return value
    return writer.emit(relax.op.subtract(value, const(levels.shaped(levels.zero))))


def _times(writer: Writer, integers: Any, factor: np.ndarray) -> Any:
    """Integers as floats, times a constant."""
    from tvm import relax

    floats = writer.emit(relax.op.astype(integers, "float32"))
    return writer.emit(relax.op.multiply(floats, const(factor)))


def _converted(writer: Writer, value: Any, dtype: str) -> Any:
    """Floats in a dtype; what is between bytes has 32 bits, whatever the dtype of scales."""
    from tvm import relax

    return value if value.ty.dtype == dtype else writer.emit(relax.op.astype(value, dtype))


def _rounded_floats(writer: Writer, value: Any, levels: Levels, dtype: str, relu: bool) -> Any:
    """As :func:`_rounded`, less the zero point and still floats: four instructions fewer."""
    from tvm import relax

    info, zero = np.iinfo(dtype), int(levels.zero[0])
    low, high = (0 if relu else info.min - zero), info.max - zero
    value = writer.emit(relax.op.round(value))
    value = writer.emit(relax.op.maximum(value, const(np.array(low, np.float32))))
    return writer.emit(relax.op.minimum(value, const(np.array(high, np.float32))))


def _rounded(writer: Writer, value: Any, levels: Levels, dtype: str, relu: bool) -> Any:
    """Floats in units of the scale as integers of a type, clamped to its range.

    A clip would do for the two comparisons, but layouts do not pass through it.
    """
    from tvm import relax

    op, info = relax.op, np.iinfo(dtype)
    low = levels.shaped(np.maximum(levels.zero, info.min) if relu else np.array([info.min]))
    value = writer.emit(op.round(value))
    if levels.zero.any():
        value = writer.emit(op.add(value, const(levels.shaped(levels.zero).astype(np.float32))))
    value = writer.emit(op.maximum(value, const(low.astype(np.float32))))
    value = writer.emit(op.minimum(value, const(np.array(info.max, np.float32))))
    return op.astype(value, dtype)
