"""Weights that are too small to matter, and slow: denormal numbers.

Training leaves them where weights decay towards zero. A CPU computes with them in microcode,
about a hundred times slower than with other numbers, and what it computes is denormal again.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from amos.network.blocked import BlockedWeight
from amos.network.graph import Constant, Graph, GraphBuilder, Node, Operand, Rewrite, rewrite_graph

#: Elements below the first size count as zero beside others from the second one on, where they
#: are below the rounding of 24 bits. Sums of products of the first size may be denormal.
_SMALL, _LARGE = 2.0**-110, 2.0**-84


def without_denormals(graph: Graph) -> Graph:
    """Return a graph whose tiny constants are zeros where others are of usual size."""
    rewrites: dict[int, Rewrite] = {}
    flushed: dict[int, Constant] = {}
    for node in graph.nodes:
        for operand in node.operands:
            if isinstance(operand, Constant) and id(operand) not in flushed:
                flushed[id(operand)] = _flush(operand)
        if any(flushed.get(id(each), each) is not each for each in node.operands):
            rewrites[node.number] = partial(_emit_flushed, node, flushed)
    return rewrite_graph(graph, rewrites)


def _flush(constant: Constant) -> Constant:
    """Replace tiny numbers of a constant by zeros; return it as it is if there are none."""
    if constant.dtype != "float32" or isinstance(constant, BlockedWeight):
        return constant
    sizes = np.abs(constant.array)
    small = (sizes > 0) & (sizes < _SMALL)
    if not small.any() or not sizes.max() >= _LARGE:
        return constant
    return Constant(np.where(small, np.float32(0), constant.array))


def _emit_flushed(node: Node, flushed: dict[int, Constant], builder: GraphBuilder) -> Operand:
    operands = [
        flushed[id(each)] if isinstance(each, Constant) else builder.value(each)
        for each in node.operands
    ]
    return builder.copy(node, operands)
