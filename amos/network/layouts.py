"""Layouts: channels last in the whole network, transposed at its borders."""

from __future__ import annotations

from typing import Any

from amos.network.anchors import anchor_of
from amos.network.graph import Graph, Node, Operand
from amos.network.groups import unfit
from amos.network.program import Rewrite, Writer, read, rebuilt

_TRANSPOSED = "relax.nn.conv2d_transpose"
#: Layouts of image and weight. Kernels have their weights packed ahead, whatever their order.
_LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "OIW"],
    "relax.nn.conv2d": ["NHWC", "OIHW"],
    "relax.nn.conv3d": ["NDHWC", "OIDHW"],
    _TRANSPOSED: ["NHWC", "IOHW"],
    # Stated, for the engine would take the layout of the convolution before, which it has not.
    "relax.nn.conv1d_transpose": ["NCW", "IOW"],
    "relax.nn.conv3d_transpose": ["NCDHW", "IODHW"],
}


def channels_last(module: Any) -> Graph:
    """The graph of a module with the channels of images as the last axis.

    Raises:
        NetworkError: it has control flow, or a shape that is not known.
    """
    from tvm import relax

    module = _with_plain_norms(module)
    graph = read(relax.transform.ConvertLayout(_LAYOUTS)(module))
    if all(_kernel_takes(node) for node in graph.nodes):
        return graph
    layouts = _LAYOUTS | {_TRANSPOSED: ["NCHW", "IOHW"]}
    return read(relax.transform.ConvertLayout(layouts)(module))


def _kernel_takes(node: Node) -> bool:
    if f"relax.{node.operation}" != _TRANSPOSED:
        return True
    anchor = anchor_of(node)
    return anchor is not None and not (anchor.refused or unfit(anchor))


def _with_plain_norms(module: Any) -> Any:
    """The module with norms over several axes written out.

    The engine would change the order of the axes, and not that of what they are scaled by.
    """
    graph = read(module)
    rewrite = {
        node.number: _written_out(node)
        for node in graph.computing()
        if node.operation == "nn.layer_norm" and len(node.integers("axes")) > 1
    }
    return rebuilt(graph, rewrite) if rewrite else module


def _written_out(node: Node) -> Rewrite:
    from tvm import relax

    op, axes, (source, gamma, beta) = relax.op, list(node.integers("axes")), node.operands
    attributes = node.attributes

    def make(writer: Writer) -> Any:
        def shaped(operand: Operand) -> Any:
            missing = list(range(len(node.shape) - len(operand.shape)))
            value = writer.value(operand)
            return writer.emit(op.expand_dims(value, missing)) if missing else value

        mean = writer.emit(op.mean(writer.value(source), axes, keepdims=True))
        value = writer.emit(op.subtract(writer.value(source), mean))
        squares = writer.emit(op.multiply(value, value))
        variance = writer.emit(op.mean(squares, axes, keepdims=True))
        epsilon = relax.const(float(attributes.epsilon), node.dtype)
        value = writer.emit(op.multiply(value, op.rsqrt(op.add(variance, epsilon))))
        if attributes.scale:
            value = writer.emit(op.multiply(value, shaped(gamma)))
        return op.add(value, shaped(beta)) if attributes.center else value

    return make
