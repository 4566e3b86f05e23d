"""Models that errors are measured on: operators of onnxruntime give way to exact or faster ones.

onnxruntime's ``Sigmoid`` errs by some 1e-7, whatever the result is. A detector of text answers 5e-7
where it sees none: two programs in ``float32`` then differ by several percent. Its ``Min`` and
``Max`` of a number take several times as long as ``Clip``.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from typing import Any

_SIGMOID = "Sigmoid"
#: Operators that bound a value, and the input of ``Clip`` that does.
_BOUNDS = {"Max": 1, "Min": 2}


def rewrite_for_measuring(model: Any) -> Any:
    """Return a model of ONNX whose sigmoids have relative errors as of other functions.

    Args:
        model: an ``onnx.ModelProto``; the path of a file is returned as it is.
    """
    if isinstance(model, str | os.PathLike):
        return model
    exact = type(model)()
    exact.CopyFrom(model)
    for owner in (exact.graph, *exact.functions):
        numbers = {node.output[0] for node in owner.node if _is_number(node)}
        nodes = [new for node in owner.node for new in _rewrite(node, numbers)]
        del owner.node[:]
        owner.node.extend(nodes)
    return exact


def _is_number(node: Any) -> bool:
    """Whether a node is a constant without dimensions."""
    values = (each.t for each in node.attribute if each.name == "value")
    return node.op_type == "Constant" and any(not value.dims for value in values)


def _rewrite(node: Any, numbers: Container[str]) -> Iterator[Any]:
    """Yield the nodes that compute the same as a node.

    A sigmoid of x is ``exp(-softplus(-x))``, a bound by a number is a ``Clip``.
    """
    from onnx import helper

    standard = node.domain in ("", "ai.onnx")
    if standard and node.op_type == _SIGMOID:
        value, (result,) = node.input[0], node.output
        for operation in ("Neg", "Softplus", "Neg"):
            following = f"{result}_{operation}_of_{value}"
            yield helper.make_node(operation, [value], [following])
            value = following
        yield helper.make_node("Exp", [value], [result])
    elif standard and node.op_type in _BOUNDS and _bounds(node, numbers):
        value, number = sorted(node.input, key=numbers.__contains__)
        inputs = [value, "", ""]
        inputs[_BOUNDS[node.op_type]] = number
        yield helper.make_node("Clip", inputs, node.output)
    else:
        yield node


def _bounds(node: Any, numbers: Container[str]) -> bool:
    """Whether a node bounds one value by a number."""
    return len(node.input) == 2 and sum(name in numbers for name in node.input) == 1
