"""ONNX models that the engine's importer misreads, or makes no tensors of: refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

from amos.errors import NetworkError

#: Domains of operators whose names stand for what the importer knows.
_DOMAINS = ("", "ai.onnx", "com.microsoft")
#: dtypes of which a byte holds several values.
_PACKED = ("int2", "uint2", "int4", "uint4", "float4e2m1")
#: Of whose results the importer has the first only; what it takes for the others is nonsense.
_FIRST_ONLY = (
    "LayerNormalization",
    "SkipLayerNormalization",
    "EmbedLayerNormalization",
    "MaxPool",
)


class InvalidModel(NetworkError):
    """A model that no program can run, as it contradicts itself."""


def readable(model: Any, name: str) -> Any:
    """A model with its own functions written out.

    Raises:
        InvalidModel: its operators are newer than onnx, it has no output, or a value has no
            definition or two.
    """
    from onnx import defs, inliner

    if not model.graph.output:
        raise InvalidModel(f"model {name!r} has no output")
    versions = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    if versions and versions[0] > (newest := defs.onnx_opset_version()):
        raise InvalidModel(f"model {name!r}: opset {versions[0]}; onnx knows up to {newest}")
    if model.functions:
        model = inliner.inline_local_functions(model)
    weights = Counter(tensor.name for tensor in model.graph.initializer)
    defined = weights + Counter(filter(None, (n for node in model.graph.node for n in node.output)))
    defined += Counter(value.name for value in model.graph.input if value.name not in weights)
    if twice := [value for value, count in defined.items() if count > 1]:
        raise InvalidModel(f"model {name!r}: value {twice[0]!r} is defined more than once")
    defined.update(tensor.values.name for tensor in model.graph.sparse_initializer)
    every = [value for node in model.graph.node for value in node.input if value]
    every += [value.name for value in model.graph.output]
    if missing := next((value for value in every if value not in defined), ""):
        raise InvalidModel(f"model {name!r}: value {missing!r} is read and defined nowhere")
    _check_readable(model.graph, frozenset(every), name)
    return model


def _check_readable(graph: Any, read: frozenset[str], name: str) -> None:
    """Refuse what the engine's importer takes for something else, or nodes out of order.

    Raises:
        NetworkError: there is such a node or weight.
    """
    from onnx import TensorProto

    for tensor in graph.initializer:
        if (kind := TensorProto.DataType.Name(tensor.data_type).lower()) in _PACKED:
            raise NetworkError(
                f"model {name!r}: {tensor.name!r} is {kind}, and values smaller than a byte are "
                "not supported"
            )
    later = {value for node in graph.node for value in node.output}
    for node in graph.node:
        if early := [value for value in node.input if value and value in later]:
            raise InvalidModel(f"model {name!r}: value {early[0]!r} is read before it is computed")
        later -= {*node.output}
        if node.domain not in _DOMAINS:
            raise NetworkError(
                f"model {name!r}: {node.op_type} of domain {node.domain!r} is not supported"
            )
        if node.op_type == "Attention" and node.domain != "com.microsoft":
            raise NetworkError(
                f"model {name!r}: Attention of opset 23 is not supported; state its products"
            )
        if node.op_type in _FIRST_ONLY and (more := read & {*node.output[1:]}):
            raise NetworkError(
                f"model {name!r}: {node.op_type} has a second result, {min(more)!r}, "
                "which is not supported"
            )


def check_results(module: Any, model: Any, name: str) -> None:
    """Refuse results that are shapes or sizes for the importer, which computes them itself.

    Args:
        module: what it made of the model.
        model: of ONNX.
        name: of the model.

    Raises:
        NetworkError: there is such a result.
    """
    from tvm import ir, relax

    kind = module["main"].ret_ty
    kinds = kind.fields if isinstance(kind, ir.TupleType) else [kind]
    for port, each in zip(model.graph.output, kinds, strict=False):
        if isinstance(each, relax.ShapeType | ir.PrimType):
            raise NetworkError(
                f"model {name!r}: result {port.name!r} is a shape, or a size of one, which is not "
                "supported"
            )
