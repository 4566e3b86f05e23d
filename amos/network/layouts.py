"""Layouts: channels last in the whole network, transposed at its borders."""

from __future__ import annotations

from typing import Any

from amos.network.anchors import anchor_of
from amos.network.graph import Graph, Node
from amos.network.program import read

_TRANSPOSED = "relax.nn.conv2d_transpose"
#: Layouts of image and weight. Kernels have their weights packed ahead, whatever their order.
_LAYOUTS = {
    "relax.nn.conv1d": ["NWC", "OIW"],
    "relax.nn.conv2d": ["NHWC", "OIHW"],
    "relax.nn.conv3d": ["NDHWC", "OIDHW"],
    _TRANSPOSED: ["NHWC", "IOHW"],
}


def channels_last(module: Any) -> Graph:
    """The graph of a module with the channels of images as the last axis.

    Raises:
        NetworkError: it has control flow, or a shape that is not known.
    """
    from tvm import relax

    graph = read(relax.transform.ConvertLayout(_LAYOUTS)(module))
    # The engine has no transposed convolution with the channels last, and leaves those alone.
    if all(_kernel_takes(node) for node in graph.nodes):
        return graph
    layouts = {name: each for name, each in _LAYOUTS.items() if name != _TRANSPOSED}
    return read(relax.transform.ConvertLayout(layouts)(module))


def _kernel_takes(node: Node) -> bool:
    if f"relax.{node.operation}" != _TRANSPOSED:
        return True
    anchor = anchor_of(node)
    return anchor is not None and not anchor.refused
