"""Functions of TensorIR that compute operators by loops, equal ones once.

The loops of each operator have the meaning of ONNX: NaN stays NaN, integers are divided towards 0,
halves are summed in ``float32``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from amos._toolchain import load_tvm, te, tirx
from amos.network.graph import Constant, Node, Operand
from amos.network.loops.elementwise import ELEMENTWISE_LOOPS
from amos.network.loops.fusion import Fused, is_immediate
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
#: Operators in the name of a function at most.
_NAMED = 4


class LoopFunctions:
    """Collects functions of several networks.

    Attributes:
        functions: not yet scheduled, by name.
    """

    def __init__(self) -> None:
        load_tvm()
        self.functions: dict[str, Any] = {}
        self._names: dict[Any, str] = {}

    def name_of(self, fused: Fused) -> str:
        """Return the name of the function that computes operators, which is there from now on.

        It takes what they read under its own shape, from :attr:`Fused.begin_bytes` on, and writes a
        scalar as one of one axis.
        """
        from tvm_ffi import StructuralKey

        function = _function(fused)
        key = StructuralKey(function)
        if key not in self._names:
            operators = [node.operation.lower() for node in fused.nodes]
            if len(operators) > _NAMED:
                operators[_NAMED - 1 :] = [f"{len(operators) - _NAMED + 1}_more"]
            self._names[key] = name = "_".join(("loops", *operators, str(len(self._names))))
            self.functions[name] = function.with_attr("global_symbol", name)
        return self._names[key]


def _function(fused: Fused) -> Any:
    """Return a function of the operands and the result of operators."""
    tensors: dict[int, Any] = {
        id(operand): te.placeholder(operand.shape, operand.dtype, name=f"x{number}")
        for number, operand in enumerate(fused.operands)
    }
    arguments = [*tensors.values()]

    def read(node: Node, operand: Operand) -> Any:
        if isinstance(operand, Constant) and is_immediate(node, operand):
            return _number(operand, node)
        return tensors[id(operand)]

    for node in fused.nodes:
        operands = [read(node, each) for each in node.operands]
        own = _from_begin(node) if fused.begin_bytes else node
        tensors[id(node)] = LOOPS[node.operation](own, operands)
    result = tensors[id(fused.result)]
    if not fused.result.shape:  # TVM divides no sums beside what has no loop
        result = te.compute((1,), lambda _: tensors[id(fused.result)](), name="scalar")
    # Indices of 64 bits; TVM narrows those that fit into 32.
    return _with_distinct_names(te.create_prim_func([*arguments, result], "int64"))


def _from_begin(node: Node) -> Node:
    """Return a slice that begins where its operand does."""
    return replace(node, attributes={**node.attributes, "starts": (0,) * len(node.shape)})


def _with_distinct_names(function: Any) -> Any:
    """Rename tensors of the same name in a function: TVM divides loops by names."""
    import tvm_ffi

    tensors = function.body.block.alloc_buffers
    renamed = {x: tirx.Var(f"{x.name}_{number}", x.ty) for number, x in enumerate(tensors)}
    kinds = tirx.Var, lambda variable: renamed.get(variable, variable)
    return function.with_body(tvm_ffi.structural_map(function.body, kinds))


def _number(constant: Constant, node: Node) -> Any:
    """Return a constant of one element as an expression, or as a tensor where a node needs one."""
    number = tirx.const(constant.array.reshape(()).item(), constant.dtype)
    if node.operation in ELEMENTWISE_LOOPS:
        return number
    return te.compute(constant.shape, lambda *_: number, name="number")
