"""Products of matrices: factors transposed, batched or vectors, Einstein sums of two tensors."""

from __future__ import annotations

from math import prod

from amos.network.blocked import BlockedWeight, emit_blocked_product
from amos.network.graph import Operand
from amos.network.reading.elementwise import apply_activation
from amos.network.reading.node import NodeSource, Read
from amos.network.shapes import product_dtype


def _swap(node: NodeSource, value: Operand) -> Operand:
    """A matrix, or a batch of them, transposed."""
    rank = len(value.shape)
    return node.transpose(value, (*range(rank - 2), rank - 1, rank - 2))


def _multiply(node: NodeSource, x: Operand, y: Operand) -> Operand:
    """A matrix product; a vector is a row or a column, which the result lacks."""
    if product_dtype([x]) == "int32":
        raise node.refuse("bytes are not supported")
    row, column = len(x.shape) == 1, len(y.shape) == 1
    x = node.reshape(x, (1, *x.shape)) if row else x
    y = node.reshape(y, (*y.shape, 1)) if column else y
    # A matrix of its own for all steps of a batch: their rows are rows of one matrix.
    if isinstance(y, BlockedWeight):
        value = emit_blocked_product(node.builder, x, y)
    else:
        value = node.emit("MatMul", x, y)
    shape = [*value.shape]
    if column:
        del shape[-1]
    if row:
        del shape[-1 if column else -2]
    return node.reshape(value, shape)


def _scale(node: NodeSource, value: Operand, factor: float) -> Operand:
    return value if factor == 1 else node.emit("Mul", value, node.scalar(factor, value))


def _read_fused_matmul(node: NodeSource) -> Operand:
    """A matrix product of onnxruntime's optimizer, of factors that are transposed."""
    attributes = node.attributes
    if attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
        raise node.refuse("transposed batches are not supported")
    x, y = node.input(0), node.input(1)
    x = _swap(node, x) if attributes.get("transA", 0) else x
    y = _swap(node, y) if attributes.get("transB", 0) else y
    return _scale(node, _multiply(node, x, y), float(attributes.get("alpha", 1.0)))


def _read_gemm(node: NodeSource) -> Operand:
    attributes = node.attributes
    x, y = node.input(0), node.input(1)
    x = _swap(node, x) if attributes.get("transA", 0) else x
    y = _swap(node, y) if attributes.get("transB", 0) else y
    value = _scale(node, _multiply(node, x, y), float(attributes.get("alpha", 1.0)))
    bias = node.optional(2)
    if bias is not None and (beta := float(attributes.get("beta", 1.0))):
        value = node.emit("Add", value, _scale(node, bias, beta))
    if name := str(attributes.get("activation", "")):
        keys = ("activation_alpha", "activation_beta")
        numbers = [float(attributes[key]) for key in keys if key in attributes]
        value = apply_activation(node, value, name, numbers)
    return value


def _read_einsum(node: NodeSource) -> Operand:
    """A sum of products of two tensors, as a batched matrix product."""
    equation = str(node.attributes["equation"]).replace(" ", "")
    operands = [node.input(n) for n in range(len(node.inputs))]
    if "." in equation or len(operands) != 2:
        raise node.refuse(f"{equation!r} is not supported")
    sources, _, result = equation.partition("->")
    of_x, of_y = sources.split(",")
    if "->" not in equation:
        letters = of_x + of_y
        result = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    repeated = any(len(set(names)) < len(names) for names in (of_x, of_y, result))
    only = (set(of_x) ^ set(of_y)) - set(result)
    if repeated or only:
        raise node.refuse(f"{equation!r} is not supported")
    return _contract(node, operands, of_x, of_y, result)


def _contract(
    node: NodeSource, operands: list[Operand], of_x: str, of_y: str, result: str
) -> Operand:
    """Two tensors multiplied and summed, by the letters of their axes."""
    x, y = operands
    sizes = dict(zip(of_x, x.shape, strict=True)) | dict(zip(of_y, y.shape, strict=True))
    batch = [c for c in result if c in of_x and c in of_y]
    rows = [c for c in result if c not in of_y]
    columns = [c for c in result if c not in of_x]
    summed = [c for c in of_x if c in of_y and c not in result]

    def extents(names: list[str]) -> int:
        return prod(sizes[name] for name in names)

    x = node.transpose(x, [of_x.index(c) for c in (*batch, *rows, *summed)])
    y = node.transpose(y, [of_y.index(c) for c in (*batch, *summed, *columns)])
    lead = [sizes[c] for c in batch]
    x = node.reshape(x, (*lead, extents(rows), extents(summed)))
    y = node.reshape(y, (*lead, extents(summed), extents(columns)))
    value = _multiply(node, x, y)
    names = [*batch, *rows, *columns]
    value = node.reshape(value, [sizes[name] for name in names])
    return node.transpose(value, [names.index(name) for name in result])


READERS: dict[str, Read] = {
    "Einsum": _read_einsum,
    "FusedGemm": _read_gemm,
    "FusedMatMul": _read_fused_matmul,
    "Gemm": _read_gemm,
    "MatMul": lambda node: _multiply(node, node.input(0), node.input(1)),
}
