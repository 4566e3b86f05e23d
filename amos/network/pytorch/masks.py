"""Masks of attention in models that PyTorch exports."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from amos.network.packages import numpy_helper

#: Operators behind a mask of booleans, as PyTorch's exporter writes it.
_BEHIND = ("Add", "Softmax", "IsNaN")


def hide_masked_keys(graph: Any) -> None:
    """Fill scores that a mask hides with ``-inf``, where the exporter has the smallest float.

    PyTorch's attention gives zeros for a query all of whose keys are masked. For these the
    exporter tests the softmax for NaN, but of scores that are all the smallest float a softmax
    makes equal shares.

    Args:
        graph: an ``onnx.GraphProto``, changed in place.
    """
    readers = defaultdict[str, list[Any]](list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    for constant in [*graph.initializer]:
        masks = [node for node in readers[constant.name] if _is_mask(node, constant, readers)]
        if not masks or np.prod(constant.dims) != 1:
            continue
        fill = numpy_helper.to_array(constant)
        hidden = np.full_like(fill, -np.inf)
        if np.isfinite(fill) and np.nextafter(fill, hidden) == hidden:
            name = f"{constant.name}_hidden"
            graph.initializer.append(numpy_helper.from_array(hidden, name))
            for node in masks:
                node.input[2] = name


def _is_mask(node: Any, fill: Any, readers: dict[str, list[Any]]) -> bool:
    """Return whether a node fills what a mask hides, ahead of a softmax that is tested for NaN."""
    if node.op_type != "Where" or node.input[2] != fill.name:
        return False
    for operation in _BEHIND:
        following = [each for each in readers[node.output[0]] if each.op_type == operation]
        if len(following) != 1:
            return False
        (node,) = following
    return True
