"""How much results of a network may differ from those of another program."""

from __future__ import annotations

import numpy as np

from amos.network.network import Network

#: Share of the largest element that a result may differ by: sums in another order, which the
#: engine keeps in the dtype of the results. Below the last number it may be what sums leave.
EXACT, RELATIVE, _SMALL = 1e-3, {"float16": 2e-2, "bfloat16": 1e-1}, 1e-2


def allowed(kind: str, expected: np.ndarray, rounded: bool) -> float:
    """How much a result of a dtype may differ, by its own largest finite element.

    Integers are exact; those that floats were rounded to may be the next.
    """
    if not _is_float(kind):
        return float(rounded and kind != "bool")
    sizes = np.abs(expected.astype(np.float64))
    largest = float(sizes.max(initial=_SMALL, where=np.isfinite(sizes)))
    return RELATIVE.get(kind, EXACT) * largest


def rounds(network: Network) -> bool:
    """Whether it makes integers of floats."""
    return any(
        node.operation in ("Cast", "QuantizeLinear")
        and "int" in node.dtype
        and _is_float(node.operands[0].dtype)
        for node in network.graph.nodes
    )


def _is_float(kind: str) -> bool:
    return "float" in kind
