"""Sigmoids whose small results are exact, in models that errors are measured on.

onnxruntime's ``Sigmoid`` errs by some 1e-7, whatever the result is. A detector of text answers 5e-7
where it sees none: two programs in ``float32`` then differ by several percent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

_SIGMOID = "Sigmoid"


def with_exact_sigmoids(model: Any) -> Any:
    """Return a model of ONNX whose sigmoids have relative errors as of other functions.

    Args:
        model: an ``onnx.ModelProto``; the path of a file is returned as it is.
    """
    if isinstance(model, str | os.PathLike):
        return model
    exact = type(model)()
    exact.CopyFrom(model)
    for owner in (exact.graph, *exact.functions):
        if any(node.op_type == _SIGMOID for node in owner.node):
            nodes = [new for node in owner.node for new in _rewrite(node)]
            del owner.node[:]
            owner.node.extend(nodes)
    return exact


def _rewrite(node: Any) -> Iterator[Any]:
    """Yield the nodes that compute ``exp(-softplus(-x))`` for a sigmoid of x; others themselves."""
    from onnx import helper

    if node.op_type != _SIGMOID or node.domain not in ("", "ai.onnx"):
        yield node
        return
    value, (result,) = node.input[0], node.output
    for operation in ("Neg", "Softplus", "Neg"):
        following = f"{result}_{operation}_of_{value}"
        yield helper.make_node(operation, [value], [following])
        value = following
    yield helper.make_node("Exp", [value], [result])
