"""ONNX models of bfloat16 that compute in float32: onnxruntime has no kernels of bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np


def widen(model: Any) -> None:
    """Have a model compute in float32 what it computes in bfloat16; it is changed in place."""
    _widen_graph(model.graph)


def _widen_graph(graph: Any) -> None:
    from onnx import AttributeProto, TensorProto

    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for port in (*graph.input, *graph.output):
        kind = port.type.tensor_type
        if kind.elem_type == TensorProto.BFLOAT16:
            kind.elem_type = TensorProto.FLOAT
    del graph.value_info[:]
    for attribute in (each for node in graph.node for each in node.attribute):
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.BFLOAT16:
            attribute.i = TensorProto.FLOAT
        elif attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == AttributeProto.GRAPH:
            _widen_graph(attribute.g)


def _widen_tensor(tensor: Any) -> None:
    from onnx import TensorProto, numpy_helper

    if tensor.data_type == TensorProto.BFLOAT16:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
