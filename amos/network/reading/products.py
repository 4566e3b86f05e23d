"""Products of matrices: factors transposed, batched or vectors; Einstein sums."""

from __future__ import annotations

from collections.abc import Sequence, Set
from math import prod
from string import ascii_letters

from amos.network.blocked import BlockedWeight, emit_blocked_product
from amos.network.graph import Operand
from amos.network.reading.elementwise import apply_activation
from amos.network.reading.node import NodeSource, Read
from amos.network.reading.norms import reduce_axes
from amos.network.shapes import BYTES


def _swap(node: NodeSource, value: Operand) -> Operand:
    """Transpose a matrix, or a batch of them."""
    rank = len(value.shape)
    return node.transpose(value, (*range(rank - 2), rank - 1, rank - 2))


def multiply(node: NodeSource, x: Operand, y: Operand) -> Operand:
    """Append a matrix product; a vector is a row or a column, which the result lacks."""
    if x.dtype in BYTES:
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
    """Read a matrix product of onnxruntime's optimizer, whose factors may be transposed."""
    attributes = node.attributes
    if attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
        raise node.refuse("transposed batches are not supported")
    x, y = node.input(0), node.input(1)
    x = _swap(node, x) if attributes.get("transA", 0) else x
    y = _swap(node, y) if attributes.get("transB", 0) else y
    return _scale(node, multiply(node, x, y), float(attributes.get("alpha", 1.0)))


def _read_gemm(node: NodeSource) -> Operand:
    attributes = node.attributes
    x, y = node.input(0), node.input(1)
    x = _swap(node, x) if attributes.get("transA", 0) else x
    y = _swap(node, y) if attributes.get("transB", 0) else y
    value = _scale(node, multiply(node, x, y), float(attributes.get("alpha", 1.0)))
    bias = node.optional(2)
    if bias is not None and (beta := float(attributes.get("beta", 1.0))):
        value = node.emit("Add", value, _scale(node, bias, beta))
    if name := str(attributes.get("activation", "")):
        keys = ("activation_alpha", "activation_beta")
        numbers = [float(attributes[key]) for key in keys if key in attributes]
        value = apply_activation(node, value, name, numbers)
    return value


def _read_einsum(node: NodeSource) -> Operand:
    """Read a sum of products of tensors as batched matrix products from left to right."""
    operands = [node.input(n) for n in range(len(node.inputs))]
    terms, result = _parse_equation(node, [len(each.shape) for each in operands])
    value, letters = operands[0], terms[0]
    for place, (operand, term) in enumerate(zip(operands[1:], terms[1:], strict=True), 2):
        later = {*result}.union(*terms[place:])
        value, letters = _sum_letters(node, value, letters, later | {*term})
        operand, term = _sum_letters(node, operand, term, later | {*letters})
        remaining = "".join(c for c in dict.fromkeys(letters + term) if c in later)
        target = result if place == len(terms) else remaining
        value = _contract(node, [value, operand], letters, term, target)
        letters = target
    value, letters = _sum_letters(node, value, letters, {*result})
    return node.transpose(value, [letters.index(c) for c in result])


def _parse_equation(node: NodeSource, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return a letter for each axis of the operands and of the result; ``...`` written out."""
    equation = str(node.attributes["equation"]).replace(" ", "")
    sources, arrow, result = equation.partition("->")
    terms = sources.split(",")
    if not arrow:
        letters = sources.replace(".", "").replace(",", "")
        single = sorted(c for c in {*letters} if letters.count(c) == 1)
        result = "..." * ("." in sources) + "".join(single)
    counts = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    if any(count < 0 or (count and "." not in t) for count, t in zip(counts, terms, strict=True)):
        raise node.refuse(f"{equation!r} does not fit tensors of {ranks} axes")
    unused = "".join(c for c in ascii_letters if c not in equation)
    # Axes of a shorter ``...`` are the last ones of a longer one.
    batch = unused[: max(counts)]
    result = result.replace("...", batch)
    written = [
        term.replace("...", batch[len(batch) - count :])
        for term, count in zip(terms, counts, strict=True)
    ]
    if any(len({*each}) < len(each) for each in (*written, result)):
        raise node.refuse(f"{equation!r} repeats a letter, which is not supported")
    return written, result


def _sum_letters(
    node: NodeSource, value: Operand, letters: str, needed: Set[str]
) -> tuple[Operand, str]:
    """Sum a tensor over the axes whose letters are not needed."""
    axes = [axis for axis, letter in enumerate(letters) if letter not in needed]
    value = reduce_axes(node, "ReduceSum", value, axes, keepdims=False)
    return value, "".join(letter for letter in letters if letter in needed)


def _contract(
    node: NodeSource, operands: list[Operand], of_x: str, of_y: str, result: str
) -> Operand:
    """Multiply and sum two tensors by the letters of their axes."""
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
    value = multiply(node, x, y)
    names = [*batch, *rows, *columns]
    value = node.reshape(value, [sizes[name] for name in names])
    return node.transpose(value, [names.index(name) for name in result])


READERS: dict[str, Read] = {
    "Einsum": _read_einsum,
    "FusedGemm": _read_gemm,
    "FusedMatMul": _read_fused_matmul,
    "Gemm": _read_gemm,
    "MatMul": lambda node: multiply(node, node.input(0), node.input(1)),
}
