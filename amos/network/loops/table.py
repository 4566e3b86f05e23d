"""Loops of operators, for nodes that no kernel computes, as tensor expressions of TVM.

Each has ONNX's meaning: NaN stays NaN, integers are divided towards 0, halves are summed in
``float32``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amos.network.graph import Constant, Node
from amos.network.loops.elementwise import ELEMENTWISE_LOOPS
from amos.network.loops.moves import MOVE_LOOPS
from amos.network.loops.norms import NORM_LOOPS
from amos.network.loops.products import PRODUCT_LOOPS
from amos.network.loops.reductions import REDUCTION_LOOPS

#: Makes the tensor of a node of those of its operands.
Loops = Callable[[Node, Sequence[Any]], Any]
#: By operator; the integer arithmetic of DequantizeLinear and QuantizeLinear replaces both.
LOOPS: Mapping[str, Loops] = {
    **ELEMENTWISE_LOOPS,
    **MOVE_LOOPS,
    **NORM_LOOPS,
    **PRODUCT_LOOPS,
    **REDUCTION_LOOPS,
}


def emit_loops(node: Node, tensors: Sequence[Any]) -> Any:
    """Return the tensor expression of an operator.

    Args:
        tensors: its operands; ``None`` stands for a constant of one element, which nothing reads.
    """
    operands = [
        _number(operand, node) if tensor is None and isinstance(operand, Constant) else tensor
        for operand, tensor in zip(node.operands, tensors, strict=True)
    ]
    return LOOPS[node.operation](node, operands)


def _number(constant: Constant, node: Node) -> Any:
    """A constant of one element as an expression, or as a tensor where a node needs one."""
    from tvm import te, tirx

    number = tirx.const(constant.array.reshape(()).item(), constant.dtype)
    if node.operation in ELEMENTWISE_LOOPS:
        return number
    return te.compute(constant.shape, lambda *_: number, name="number")
