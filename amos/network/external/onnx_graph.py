"""ONNX models prepared for partitioning: shapes stated, constants folded, values typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from amos.errors import NetworkError
from amos.network.frontend import plain_session
from amos.network.network import Port
from amos.network.silence import silent

#: Operators whose results of constants are weights with levels.
_QUANTIZING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
#: What the value of a constant is called beside the node that computes it.
_FOLDED = "{}/folded"
#: Operators whose results differ from run to run, beside those whose names say so.
_RANDOM = ("Bernoulli", "Multinomial", "Dropout")
#: Elements of the largest constant that is computed ahead.
_MOST_FOLDED = 4096


def prepare_graph(model: Any, shapes: Mapping[str, Sequence[int]], name: str) -> OnnxGraph:
    """State the shapes of a model's inputs, fold what is constant then, and infer all shapes.

    Args:
        model: ``onnx.ModelProto``; it is not changed.
        shapes: extents of each input.
        name: of the model.

    Returns:
        the graph of a model that computes the same for inputs of these shapes.

    Raises:
        NetworkError: onnxscript is not installed.
    """
    import onnx

    if find_spec("onnxscript") is None:
        raise NetworkError(
            f"model {name!r}: dividing it needs onnxscript: pip install 'amos-mapper[onnx]'"
        )
    stated = onnx.ModelProto()
    stated.CopyFrom(model)
    for port in stated.graph.input:
        if port.name in shapes:
            _state_shape(port, shapes[port.name])
    # Each may make a model of which onnxruntime infers shapes that contradict each other: in
    # branches that are never taken, and only while it optimizes. Then shapes are not stated there.
    for change in (_folded, _with_shapes):
        try:
            with silent():
                prepared = change(stated)
                plain_session(prepared, optimized=True)
        except Exception:  # each of these packages raises errors of its own
            continue
        _move_constants(prepared.graph)
        return OnnxGraph(prepared, prepared)
    same = onnx.ModelProto()
    same.CopyFrom(model)
    _move_constants(same.graph)
    with suppress(Exception):
        stated = _with_shapes(stated)
    return OnnxGraph(same, stated)


def _state_shape(port: Any, shape: Sequence[int]) -> None:
    dimensions = port.type.tensor_type.shape.dim
    del dimensions[:]
    for extent in shape:
        dimensions.add().dim_value = int(extent)
    if not shape:  # a scalar has a shape too
        port.type.tensor_type.shape.SetInParent()


def _folded(model: Any) -> Any:
    from onnxscript import optimizer

    folded = _with_shapes(optimizer.optimize(model))
    try:
        return _with_shapes(optimizer.optimize(folded)) if _fold_small(folded) else folded
    except Exception:  # onnxruntime, onnx and the optimizer raise errors of their own
        return folded


def _fold_small(model: Any) -> bool:
    """Compute small constants that the optimizer leaves, such as the widths of a padding.

    Shapes depend on them. Quantized constants keep their levels.

    Returns:
        whether there were any.
    """
    from onnx import helper, numpy_helper

    _move_constants(model.graph)
    graph = OnnxGraph(model, model)
    numbers = list[int]()
    foldable = {*graph.initializers}
    for number in sorted(graph.constant):
        node = graph.nodes[number]
        branches = any(each.HasField("g") or each.graphs for each in node.attribute)
        known = foldable.issuperset(graph.reads[number])
        if known and not branches and node.op_type not in _QUANTIZING + _RANDOM:
            numbers.append(number)
            foldable.update(node.output)
    computed = {name for number in numbers for name in graph.nodes[number].output if name}
    inside = {*numbers}
    outside = (names for n, names in enumerate(graph.reads) if n not in inside)
    wanted = sorted(computed.intersection(name for names in outside for name in names))
    if not wanted:
        return False
    nodes = [graph.nodes[number] for number in numbers]
    read = {name for number in numbers for name in graph.reads[number]}
    weights = [each for name, each in graph.initializers.items() if name in read]
    outputs = [helper.make_empty_tensor_value_info(name) for name in wanted]
    constants = helper.make_graph(nodes, "constants", [], outputs, weights)
    part = helper.make_model(
        constants, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    values = dict(zip(wanted, plain_session(part).run(None, {}), strict=True))
    small = {name: value for name, value in values.items() if value.size <= _MOST_FOLDED}
    for number, node in enumerate(graph.nodes):
        if number not in inside:  # nodes that nothing reads any more are the optimizer's
            node.input[:] = [_FOLDED.format(name) if name in small else name for name in node.input]
    tensors = [numpy_helper.from_array(each, _FOLDED.format(n)) for n, each in small.items()]
    model.graph.initializer.extend(tensors)
    return bool(tensors)


def _with_shapes(model: Any) -> Any:
    from onnx import shape_inference

    return shape_inference.infer_shapes(model, data_prop=True)


def _move_constants(graph: Any) -> None:
    """Turn nodes that are constants into initializers, where they are dense tensors."""
    nodes = []
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = node.attribute[0].t
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


@dataclass(frozen=True)
class OnnxGraph:
    """A prepared model with what is known of its values.

    Attributes:
        model: computes what is asked for.
        typed: the same model with the shapes of its values.
    """

    model: Any
    typed: Any

    @cached_property
    def nodes(self) -> tuple[Any, ...]:
        """Nodes in an order in which they can be computed."""
        return tuple(self.model.graph.node)

    @cached_property
    def initializers(self) -> dict[str, Any]:
        """Constant tensors by name."""
        return {each.name: each for each in self.model.graph.initializer}

    @cached_property
    def ports(self) -> dict[str, Port]:
        """Values of static shape, by name."""
        import onnx

        graph = self.typed.graph
        ports = {}
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.tensor_type
            sizes = [each.dim_value for each in kind.shape.dim]
            if kind.elem_type and kind.HasField("shape") and all(size > 0 for size in sizes):
                dtype = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
                dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
                ports[value.name] = Port(value.name, tuple(sizes), dtype)
        return ports

    @cached_property
    def producers(self) -> dict[str, int]:
        """Number of the node that computes each value."""
        return {name: n for n, node in enumerate(self.nodes) for name in node.output if name}

    @cached_property
    def reads(self) -> tuple[tuple[str, ...], ...]:
        """Names that each node reads, inside of its branches and loops too."""
        return tuple(tuple(dict.fromkeys(names_read(node))) for node in self.nodes)

    @cached_property
    def constant(self) -> frozenset[int]:
        """Numbers of the nodes that read constants only."""
        numbers: set[int] = set()
        for number, names in enumerate(self.reads):
            if self.nodes[number].op_type.startswith("Random"):
                continue
            if all(
                name in self.initializers or self.producers.get(name) in numbers for name in names
            ):
                numbers.add(number)
        return frozenset(numbers)


def names_read(node: Any) -> Iterator[str]:
    """Names that a node reads, inside of its branches and loops too."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            own = {each.name for each in (*graph.input, *graph.initializer)}
            own |= {name for each in graph.node for name in each.output}
            inner = [name for each in graph.node for name in names_read(each)]
            inner += [each.name for each in graph.output]
            yield from (name for name in inner if name not in own)
