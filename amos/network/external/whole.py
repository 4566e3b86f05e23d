"""A network that AMOS takes as a whole, as a model of one operator for onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amos.network.external.source import ELEMENT_TYPES
from amos.network.network import Network, Port

#: Versions of ONNX that every onnxruntime with the interface of the library reads.
_IR_VERSION, _OPSET = 8, 17


def whole_model(network: Network, operator: str, domain: str) -> Any:
    """A model that calls one operator on its inputs."""
    from onnx import helper

    inputs = [port.name for port in network.inputs]
    outputs = [name for name in network.output_names if name not in inputs]
    if len(set(outputs)) != len(network.outputs):
        outputs = [port.name for port in network.outputs]
    node = helper.make_node(operator, inputs, outputs, domain=domain, name=operator)
    graph = helper.make_graph(
        [node], network.name, _infos(network.inputs, inputs), _infos(network.outputs, outputs)
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def _infos(ports: Sequence[Port], names: Sequence[str]) -> list[Any]:
    """Declarations of ports under other names."""
    from onnx import helper

    return [
        helper.make_tensor_value_info(name, ELEMENT_TYPES[port.dtype][0], port.shape)
        for port, name in zip(ports, names, strict=True)
    ]
