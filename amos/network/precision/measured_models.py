"""Models that errors are measured on: operators of onnxruntime give way to exact or faster ones.

onnxruntime's ``Sigmoid`` errs by some 1e-7, whatever the result is. A detector of text answers 5e-7
where it sees none: two programs in ``float32`` then differ by several percent. Its ``Min`` and
``Max`` of a number take several times as long as ``Clip``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from amos.network.packages import helper, numpy_helper

_SIGMOID = "Sigmoid"
#: Operators that bound a value, the input of ``Clip`` that does, and what its other one then is.
_BOUNDS = {"Max": (1, np.inf), "Min": (2, -np.inf)}


def rewrite_for_measuring(model: Any) -> Any:
    """Return a model in memory with exact small sigmoids; the path of a file as it is."""
    if isinstance(model, str | os.PathLike):
        return model
    exact = type(model)()
    exact.CopyFrom(model)
    for owner in (exact.graph, *exact.functions):
        numbers = dict(_list_numbers(owner.node))
        nodes = [new for node in owner.node for new in _rewrite(node, numbers)]
        del owner.node[:]
        owner.node.extend(nodes)
    return exact


def _list_numbers(nodes: Iterable[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and value of each constant without dimensions, but NaN."""
    for node in nodes:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value" and not attribute.t.dims:
                value = numpy_helper.to_array(attribute.t)
                if value == value:
                    yield node.output[0], value


def _rewrite(node: Any, numbers: Mapping[str, np.ndarray]) -> Iterator[Any]:
    """Yield the nodes that compute the same as a node.

    A sigmoid of x is ``exp(-softplus(-x))``, a bound by a number is a ``Clip``.
    """
    standard = node.domain in ("", "ai.onnx")
    if standard and node.op_type == _SIGMOID:
        value, (result,) = node.input[0], node.output
        for operation in ("Neg", "Softplus", "Neg"):
            following = f"{result}_{operation}_of_{value}"
            yield helper.make_node(operation, [value], [following])
            value = following
        yield helper.make_node("Exp", [value], [result])
    elif standard and node.op_type in _BOUNDS and _bounds(node, numbers):
        yield from _write_clip(node, numbers)
    else:
        yield node


def _bounds(node: Any, numbers: Mapping[str, np.ndarray]) -> bool:
    """Return whether a node bounds one value by a number."""
    return len(node.input) == 2 and sum(name in numbers for name in node.input) == 1


def _write_clip(node: Any, numbers: Mapping[str, np.ndarray]) -> Iterator[Any]:
    """Yield a ``Clip`` for a bound. Without its other bound it would make infinities finite."""
    place, limit = _BOUNDS[node.op_type]
    value, number = sorted(node.input, key=numbers.__contains__)
    inputs = [value, number, number]
    inputs[3 - place] = ""
    if numbers[number].dtype.kind == "f":
        inputs[3 - place] = infinity = f"{node.output[0]}_limit"
        constant = numpy_helper.from_array(np.array(limit, numbers[number].dtype))
        yield helper.make_node("Constant", [], [infinity], value=constant)
    yield helper.make_node("Clip", inputs, node.output)
