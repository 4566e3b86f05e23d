"""Rounding the factors of products of floats to 16 bits, a pass over the graph.

The sums stay ``float32``, as the instructions of CPUs have them (``vdpbf16ps``, ``tdpbf16ps``;
``vcvtph2ps`` ahead of ``vfmadd231ps``). A value that such a product reads is rounded once, where it
is computed, and all that reads it reads the rounded one: so the kernel that makes it stores half of
the bytes.
"""

from __future__ import annotations

from collections.abc import Container

from amos.machine.cpu import cpu
from amos.network.blocked import BlockedWeight
from amos.network.graph import Constant, Graph, GraphBuilder, Node, Operand
from amos.network.operations import Kind

#: Default dtype of rounded factors.
ROUNDED = "bfloat16"
#: Channels of a group below which pairs are mostly padding, or gathered one by one: a first layer
#: takes up to 1.5 times as long as in ``float32``. Tiles of AMX read rows of a window as they are.
_LEAST_CHANNELS, _ROWS = 4, "amx_bf16"


def is_product(node: Node) -> bool:
    """Return whether a node is a sum of products of floats, whatever their dtype."""
    computed = node.operation != "input" and node.kind is Kind.PRODUCT
    return computed and node.dtype == "float32"


def can_round(node: Node) -> bool:
    """Return whether a node is a product of ``float32`` that instructions on pairs can compute."""
    if not is_product(node) or node.operands[0].dtype != "float32":
        return False
    if isinstance(node.operands[-1], BlockedWeight):
        return False  # which have fewer bits
    if node.operation == "MatMul":
        return min(len(each.shape) for each in node.operands) > 1
    reads_rows = node.attributes["group"] == 1 and _ROWS in cpu().features
    return reads_rows or _channels_of_group(node) >= _LEAST_CHANNELS


def _channels_of_group(node: Node) -> int:
    """Return the number of channels that a convolution sums."""
    weight = node.operands[1].shape
    return weight[0] // node.attributes["group"] if "Transpose" in node.operation else weight[1]


def round_products(
    graph: Graph, places: Container[int] | None = None, dtype: str = ROUNDED
) -> Graph:
    """Return a graph whose products of floats have rounded factors.

    Args:
        places: of the products that are rounded, counted in the order of the graph; all by
            default.
    """
    products = [node for node in graph.nodes if is_product(node)]
    chosen = [
        node
        for place, node in enumerate(products)
        if can_round(node) and (places is None or place in places)
    ]
    own = {node.number for node in chosen}
    rounded = {x.number for node in chosen for x in node.operands if isinstance(x, Node)}
    builder = GraphBuilder()
    narrow: dict[int, Operand] = {}

    def read(operand: Operand, node: Node) -> Operand:
        if isinstance(operand, Constant):
            return builder.cast(operand, dtype) if node.number in own else operand
        if operand.number not in narrow:
            return builder.value(operand)
        value = narrow[operand.number]
        return value if node.number in own else builder.cast(value, "float32")

    for node in graph.nodes:
        if node.operation == "input":
            value: Operand = builder.add_input(node.name, node.shape, node.dtype)
        else:
            sums = {"sums": "float32"} if node.number in own else {}
            operands = [read(each, node) for each in node.operands]
            value = builder.emit(node.operation, *operands, **node.attributes, **sums)
        builder.values[node.number] = value
        if node.number in rounded:
            narrow[node.number] = builder.cast(value, dtype)
    outputs = [builder.values[node.number] for node in graph.outputs]
    return builder.finish(outputs)
