"""Weights that are too small to matter, and slow: denormal numbers.

Training leaves them where weights decay towards zero. A CPU computes with them in microcode,
about a hundred times slower than with other numbers, and what it computes is denormal again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amos.network.graph import Constant, Node, Operand
from amos.network.program import Rewrite, Writer, const, read, rebuilt, renewed

#: Elements below the first size count as zero beside others from the second one on, where they
#: are below the rounding of 24 bits. Sums of products of the first size may be denormal.
_SMALL, _LARGE = 2.0**-110, 2.0**-84


def without_denormals(module: Any) -> Any:
    """The module with zeros in place of tiny constants beside others of usual size."""
    graph = read(module)
    rewrite: dict[int, Rewrite] = {}
    for node in graph.nodes:
        values = [_flushed(operand) for operand in node.operands]
        if any(value is not None for value in values):
            rewrite[node.number] = _with_constants(node, values)
    return rebuilt(graph, rewrite) if rewrite else module


def _flushed(operand: Operand) -> np.ndarray | None:
    """A constant with zeros for tiny numbers; ``None`` if it stays as it is."""
    if not isinstance(operand, Constant) or operand.dtype != "float32":
        return None
    array = operand.array
    sizes = np.abs(array)
    small = (sizes > 0) & (sizes < _SMALL)
    if not small.any() or not sizes.max() >= _LARGE:
        return None
    return np.where(small, np.float32(0), array)


def _with_constants(node: Node, arrays: Sequence[np.ndarray | None]) -> Rewrite:
    """A node with other constants, where there are any."""

    def make(writer: Writer) -> Any:
        pairs = zip(node.operands, arrays, strict=True)
        values = [writer.value(old) if new is None else const(new) for old, new in pairs]
        return renewed(node, values)

    return make
