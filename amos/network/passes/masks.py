"""Masks of attention as bounds of its scores, a pass over the graph.

``Where(mask, scores, fill)`` becomes ``Min(scores, Where(mask, inf, fill))``, whose bound is as
small as the mask, and which the kernel of the scores computes in passing. A ``fill`` that scores
may fall below becomes a lower bound as well: another mask may have filled them with ``-inf``.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial

import numpy as np

from amos.network.graph import Constant, Graph, GraphBuilder, Node, Operand, Rewrite, rewrite_graph

#: Operators between the products of attention and its softmax.
_BETWEEN = frozenset({"Add", "Cast", "Div", "Max", "Min", "Mul", "Sub", "Where"})
#: No multiple of a product is smaller, unless it is infinite.
_LOWEST = -1e30
_SCALING = frozenset({"Cast", "Div", "Mul"})


def bound_masked_scores(graph: Graph) -> Graph:
    """Return a graph that masks the scores of attention by bounds.

    A score that is not a number stays so where the mask hides it.
    """
    rewrites: dict[int, Rewrite] = {}
    for node in graph.nodes:
        if node.operation == "Where" and node.dtype == "float32" and _is_mask(graph, node):
            rewrites[node.number] = partial(_emit_bounds, node)
    return rewrite_graph(graph, rewrites)


def _is_mask(graph: Graph, node: Node) -> bool:
    """Return whether a choice fills scores with a number, between a product and its softmax."""
    scores = [x for x in node.operands[1:] if isinstance(x, Node) and x.shape == node.shape]
    fills = [x for x in node.operands[1:] if isinstance(x, Constant) and x.array.size == 1]
    if len(scores) != 1 or len(fills) != 1 or np.isnan(fills[0].array.item()):
        return False
    reader = node
    while reader.operation in _BETWEEN and graph.has_one_reader(reader):
        (reader,) = graph.users[reader.number]
    return reader.operation == "Softmax" and _is_product(scores[0], _BETWEEN)


def _is_product(value: Operand, between: Set[str]) -> bool:
    """Return whether a value is a product of matrices behind operators of some kinds."""
    while isinstance(value, Node) and value.operation in between:
        wide = [x for x in value.operands if isinstance(x, Node) and x.shape == value.shape]
        value = wide[0] if wide else value.operands[0]
    return isinstance(value, Node) and value.operation == "MatMul"


def _emit_bounds(node: Node, builder: GraphBuilder) -> Operand:
    """Emit the smaller of the scores and a bound; with scores below it the larger of a second."""
    mask, first, second = node.operands
    hides_first = isinstance(first, Constant) and first.array.size == 1
    scores, fill = (second, first) if hides_first else (first, second)
    assert isinstance(fill, Constant)

    def bound(limit: float) -> Operand:
        free = Constant(np.full_like(fill.array, limit))
        values = (fill, free) if hides_first else (free, fill)
        return builder.emit("Where", builder.value(mask), *values)

    bounded = builder.emit("Min", builder.value(scores), bound(np.inf))
    limit = fill.array.item()
    if limit > _LOWEST or (limit > -np.inf and not _is_product(scores, _SCALING)):
        bounded = builder.emit("Max", bounded, bound(-np.inf))
    return bounded
