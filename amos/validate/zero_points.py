"""Sums of differences, ``(x - z) * w``, as sums of products minus a correction.

An asymmetric quantized activation represents ``x - z`` with a zero point ``z``. A byte cannot
hold the difference of bytes, but the sum of ``(x - z) * w`` is that of ``x * w``, less ``z`` times
the sum of the weights. That sum is the same for every position if padding is ``z`` as well, so
that it can be computed once for constant weights
(Jacob et al., CVPR 2018, section 2.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from amos.errors import OperatorError
from amos.ir import Affine, BufferLoad, Compute, Epilogue, Operator, Prologue, Tensor, dtype
from amos.ir.epilogue import ACC
from amos.ir.expression import INTEGERS, Node
from amos.validate.semantics import evaluate


@dataclass(frozen=True)
class ZeroPointFold:
    """An operator on differences, rewritten as one on the integers themselves.

    Attributes:
        operator: reads the integers, padded with the zero point, and has an epilogue that
            subtracts the correction; it has one more input, named after ``sums``.
    """

    operator: Operator
    sums: Operator

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Convert the original operator's inputs to those of the rewritten one.

        Raises:
            OperatorError: a weight is missing, or its shape or dtype is another.
        """
        weights = {x.name: arrays[x.name] for x in self.sums.inputs if x.name in arrays}
        return {**arrays, self.sums.name: evaluate(self.sums, weights)}


def fold_zero_point(op: Operator, source: str) -> ZeroPointFold:
    """Take the zero point out of a source that is computed as ``x[…] - z``.

    The rewritten operator has the same results, bit for bit, and fits an intrinsic for
    bytes. ``z`` is an integer, or a tensor of integers, such as one for each row, if the
    source is not padded.

    Args:
        op: an operator on integers with a prologue such as ``"s16(x[n,h,w,c] - 128)"``.
        source: the source that the prologue computes.

    Raises:
        OperatorError: the prologue is no such difference, it clamps, padding is
            no value of ``x``, or the weights may change from call to call.

    >>> sizes = {"i": 4, "j": 8, "k": 16}
    >>> op = Operator.parse("o[i,j] += a[i,k] * weight[k,j]", sizes, {"weight": "int8"})
    >>> fold = fold_zero_point(op.with_prologue("a", "s16(x[i,k] - 3)", {"x": "u8"}), "a")
    >>> print(fold.operator.epilogue, "with", fold.sums.compute)
    acc - 3 * weight_sums[j] with weight_sums[j] += weight[k, j]
    """
    where = f"zero point of {source!r}"
    prologue = op.prologue(source)
    if prologue is None:
        raise OperatorError(f"{where}: expected a source with a prologue such as 'x[i,k] - 128'")
    load, weights = _split_sources(op, source, where)
    read, zero = _read_difference(prologue, where)
    _check_exact(prologue, read, zero, where)
    placed = _access_input(prologue, load, read, zero, where)
    sums = _sum_weights(op, weights)
    if zero.load is not None:
        zero = replace(prologue, expression=zero).at(load)
        spatial = {it.name for it in op.spatial}
        if inner := sorted(name for x in zero.loads for name in x.names - spatial):
            raise OperatorError(f"{where}: {zero} differs along {inner[0]!r}, which is summed over")
    correction = Node("read", load=sums.output)
    # Reduction steps along which only the source varies add the same weights again.
    again = prod(it.extent for it in op.reduce if it.name not in sums.extents)
    for factor in (Node("number", value=again), zero):
        if factor.name != "number" or factor.value != 1:
            correction = Node("multiply", (factor, correction))
    difference = Node("subtract", (Node(ACC), correction))
    rewritten = replace(
        op,
        compute=replace(op.compute, sources=tuple(placed if x is load else x for x in op.sources)),
        epilogue=_correct(op.epilogue or Epilogue(Node(ACC)), difference),
        further=tuple(
            replace(each, epilogue=_correct(each.epilogue, difference)) for each in op.further
        ),
        prologues=tuple(x for x in op.prologues if x is not prologue),
    )
    return ZeroPointFold(rewritten, sums)


def _correct(epilogue: Epilogue, difference: Node) -> Epilogue:
    return replace(epilogue, expression=_replace_accumulator(epilogue.expression, difference))


def _split_sources(op: Operator, source: str, where: str) -> tuple[BufferLoad, list[BufferLoad]]:
    """Return the access to the source, and the accesses to the weights."""
    loads = [load for load in op.sources if load.tensor.name == source]
    weights = [load for load in op.sources if load.tensor.name != source]
    if len(loads) != 1 or not weights or not op.compute.sums_products:
        raise OperatorError(f"{where}: expected a product of one access to it and weights: {op}")
    for load in weights:
        if load.tensor.name not in op.constants:
            raise OperatorError(
                f"{where}: {load.tensor.name!r} may change from call to call, and the sum of its "
                f"elements with it; constants are {', '.join(op.constants) or 'none'}"
            )
        kind = load.tensor.dtype
        if kind is not None and not dtype(kind).is_integer:
            raise OperatorError(f"{where}: expected integers, {load.tensor.name!r} is {kind}")
    if op.output.tensor.dtype not in (None, "int32"):
        raise OperatorError(f"{where}: expected sums of int32, got {op.output.tensor.dtype}")
    return loads[0], weights


def _read_difference(prologue: Prologue, where: str) -> tuple[BufferLoad, Node]:
    """Read the access of a prologue, and the zero point that it subtracts."""
    expression = prologue.expression
    first, second = (*expression.arguments, *[Node("number")] * 2)[:2]
    sign = {"subtract": 1, "add": -1}.get(expression.name, 0)
    is_integer = second.name == "number" and isinstance(second.value, int)
    tensor = second.load is not None and str(second.load.tensor.dtype) in INTEGERS
    if not sign or first.load is None or not (is_integer or (tensor and sign > 0)):
        raise OperatorError(
            f"{where}: expected a difference of a tensor and an integer, such as 'x[i,k] - 128', "
            f"got {prologue}"
        )
    return first.load, Node("number", value=sign * second.value) if is_integer else second


def _check_exact(prologue: Prologue, read: BufferLoad, zero: Node, where: str) -> None:
    """Refuse differences that the source's dtype has no room for."""
    kind = str(read.tensor.dtype)
    if kind not in INTEGERS:
        raise OperatorError(f"{where}: expected integers, {read.tensor.name!r} is {kind}")
    low, high = _limits(read.tensor)
    ends = (zero.value, zero.value)
    if zero.load is not None:
        ends = _limits(zero.load.tensor)
    least, most = dtype(prologue.dtype).limits if prologue.dtype in INTEGERS else (0, -1)
    if low - ends[1] < least or high - ends[0] > most:
        raise OperatorError(
            f"{where}: differences from {low - ends[1]} to {high - ends[0]} do not all fit "
            f"{prologue.dtype}; write s16(…) or s32(…)"
        )


def _limits(tensor: Tensor) -> tuple[int, int]:
    assert tensor.kind is not None
    return tensor.kind.limits


def _access_input(
    prologue: Prologue, load: BufferLoad, read: BufferLoad, zero: Node, where: str
) -> BufferLoad:
    """Access the prologue's input in place of the source."""
    at = dict(zip(prologue.dimensions, load.indices, strict=True))
    sizes = dict(zip(prologue.dimensions, load.tensor.shape, strict=True))
    names = [index.names[0] if index.terms else "" for index in read.indices]
    plain = [Affine(((name, 1),)) for name in names if name]
    if (
        sorted(names) != sorted(prologue.dimensions)
        or list(read.indices) != plain
        or tuple(sizes[name] for name in names) != read.tensor.shape
    ):
        raise OperatorError(
            f"{where}: {read} is not {prologue.head} with its dimensions in some order"
        )
    padding = load.padding
    if load.padded:
        if zero.load is not None:
            raise OperatorError(
                f"{where}: {load} is padded, so that the zero point has to be a number, got {zero}"
            )
        padding += int(zero.value)
        low, high = _limits(read.tensor)
        if not low <= padding <= high:
            raise OperatorError(
                f"{where}: the padding {load.padding} is that of {padding}, which is no value "
                f"of {read.tensor.name!r}: {low} to {high}"
            )
    return BufferLoad(read.tensor, tuple(at[name] for name in names), load.padded, padding)


def _sum_weights(op: Operator, weights: Sequence[BufferLoad]) -> Operator:
    """Sum all products of weights that one element of the output has."""
    moving = {name for load in weights for name in load.names}
    spatial = [it for it in op.spatial if it.name in moving]
    name = f"{weights[0].tensor.name}_sums"
    while name in {x.name for x in op.inputs} | {load.tensor.name for load in op.operands}:
        name += "_"
    tensor = Tensor(name, tuple(it.extent for it in spatial), "int32")
    target = BufferLoad(tensor, tuple(Affine(((it.name, 1),)) for it in spatial))
    iterations = tuple(it for it in op.iterations if it.name in moving)
    compute = Compute(target, tuple(weights), iterations, op.compute.combiner)
    read = {load.tensor.name for load in weights}
    prologues = tuple(prologue for prologue in op.prologues if prologue.tensor in read)
    return Operator(compute=compute, name=name, prologues=prologues)


def _replace_accumulator(node: Node, accumulator: Node) -> Node:
    """Replace the accumulator in an expression."""
    if node.name == ACC:
        return accumulator
    return replace(
        node, arguments=tuple(_replace_accumulator(x, accumulator) for x in node.arguments)
    )
