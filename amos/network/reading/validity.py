"""Models of ONNX that contradict themselves: refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from typing import Any

from amos.errors import NetworkError
from amos.network.packages import onnx
from amos.network.reading.branches import names_read


@contextmanager
def naming(title: str) -> Iterator[None]:
    """Name the model in errors that do not."""
    try:
        yield
    except NetworkError as error:
        why = str(error)
        raise type(error)(why if title in why else f"model {title!r}: {why}") from error


class InvalidModel(NetworkError):
    """A model that no program can run, as it contradicts itself."""


def inline_functions(model: Any, name: str) -> Any:
    """Return a valid model with its own functions inlined, and its nodes in order.

    Raises:
        InvalidModel: its operators are newer than onnx, it has no output, or a value has no
            definition or two.
    """
    from onnx import inliner

    if not model.graph.output:
        raise InvalidModel(f"model {name!r} has no output")
    versions = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    if versions and versions[0] > (newest := onnx.defs.onnx_opset_version()):
        raise InvalidModel(f"model {name!r}: opset {versions[0]}; onnx knows up to {newest}")
    if model.functions:
        model = inliner.inline_local_functions(model)
    weights = Counter(tensor.name for tensor in model.graph.initializer)
    defined = weights + Counter(filter(None, (n for node in model.graph.node for n in node.output)))
    defined += Counter(value.name for value in model.graph.input if value.name not in weights)
    if twice := [value for value, count in defined.items() if count > 1]:
        raise InvalidModel(f"model {name!r}: value {twice[0]!r} is defined more than once")
    defined.update(tensor.values.name for tensor in model.graph.sparse_initializer)
    reads = [value for node in model.graph.node for value in node.input if value]
    reads += [value.name for value in model.graph.output]
    if missing := next((value for value in reads if value not in defined), ""):
        raise InvalidModel(f"model {name!r}: value {missing!r} is read and defined nowhere")
    return _sort_nodes(model, name)


def _sort_nodes(model: Any, name: str) -> Any:
    """Return a model with its nodes in an order in which they can be computed.

    onnxruntime takes them in any order; tools that edit models leave some behind their readers.
    """
    nodes = model.graph.node
    producers = {value: place for place, node in enumerate(nodes) for value in node.output if value}
    sources = {
        place: [producers[value] for value in names_read(node) if value in producers]
        for place, node in enumerate(nodes)
    }
    if all(source < place for place, each in sources.items() for source in each):
        return model
    try:
        order = [*TopologicalSorter(sources).static_order()]
    except CycleError as error:
        value = nodes[error.args[1][0]].output[0]
        raise InvalidModel(f"model {name!r}: value {value!r} depends on itself") from error
    result = type(model)()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes[place] for place in order)
    return result
