"""Regions are convex, connected, and as large as they can be."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from amos.network.external.regions import (
    contract_regions,
    find_boundary,
    find_convex_sets,
    load_region,
)
from amos.network.network import Network
from amos.network.reading.model import read_model
from amos.network.reading.onnx_graph import OnnxGraph


def _graph(model: Any) -> OnnxGraph:
    return read_model(model, {port.name: _sizes(port) for port in model.graph.input})


def _sizes(port: Any) -> list[int]:
    return [each.dim_value for each in port.type.tensor_type.shape.dim]


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[OnnxGraph, list[int]]:
    """A graph of sums of one or two values before, and which of its nodes are accepted."""
    count = draw(st.integers(1, 12))
    names, nodes = ["x"], list[Any]()
    for number in range(count):
        sources = [names[draw(st.integers(0, len(names) - 1))] for _ in range(2)]
        nodes.append(helper.make_node("Add", sources, [f"v{number}"]))
        names.append(f"v{number}")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in names]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[-1:], value_info=ports[1:-1])
    accepted = [n for n in range(count) if draw(st.booleans())]
    return _graph(helper.make_model(graph)), accepted


def _reachable(graph: OnnxGraph) -> list[set[int]]:
    """Nodes that a path leads to, by the node at which it begins."""
    reached: list[set[int]] = [set() for _ in graph.nodes]
    for number in reversed(range(len(graph.nodes))):
        for later, names in enumerate(graph.reads):
            if graph.nodes[number].output[0] in names:
                reached[number] |= {later} | reached[later]
    return reached


@settings(max_examples=200, deadline=None)
@given(_graphs())
def test_no_path_leaves_a_region_and_comes_back(drawn: tuple[OnnxGraph, list[int]]) -> None:
    graph, accepted = drawn
    sets, reached = find_convex_sets(graph, accepted), _reachable(graph)
    assert sorted(number for region in sets for number in region) == accepted
    for region in sets:
        remaining = set(range(len(graph.nodes))) - {*region}
        between = {o for a in region for o in reached[a] & remaining if reached[o] & {*region}}
        assert not between


@settings(max_examples=100, deadline=None)
@given(_graphs())
def test_regions_in_one_node_each_can_be_ordered(drawn: tuple[OnnxGraph, list[int]]) -> None:
    from amos.network.external.regions import Region

    graph, accepted = drawn
    regions, unread = {}, cast(Network, None)
    for number, nodes in enumerate(find_convex_sets(graph, accepted)):
        inputs, outputs = find_boundary(graph, nodes)
        regions[f"R{number}"] = Region(tuple(nodes), tuple(inputs), tuple(outputs), graph, unread)
    model = contract_regions(graph, regions, "own")
    computed = {"x"}
    for node in model.graph.node:
        assert computed >= set(node.input)
        computed |= set(node.output)
    assert graph.model.graph.output[0].name in computed


def test_what_is_known_ahead_is_a_weight_of_each_region_that_reads_it() -> None:
    weight = numpy_helper.from_array(np.ones(2, "float32"), "w")
    nodes = [
        helper.make_node("Neg", ["w"], ["c"]),
        helper.make_node("Add", ["x", "c"], ["a"]),
        helper.make_node("Det", ["a"], ["b"]),
        helper.make_node("Mul", ["b", "c"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xcaby"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[-1:], [weight], value_info=ports[1:-1])
    described = _graph(helper.make_model(graph))
    assert [node.op_type for node in described.nodes] == ["Add", "Det", "Mul"]
    assert numpy_helper.to_array(described.initializers["c"]).tolist() == [-1, -1]
    assert find_convex_sets(described, [0, 2]) == [[0], [2]]
    assert find_boundary(described, [0]) == (["x"], ["a"])
    assert find_boundary(described, [2]) == (["b"], ["y"])


def test_weights_that_are_inputs_are_none_behind() -> None:
    """As models of versions of the format before 4 list all of their weights."""
    weight = numpy_helper.from_array(np.ones((2, 2), "float32"), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Det", ["w"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 2]) for n in "xwy"]
    graph = helper.make_graph(nodes, "g", ports[:2], ports[2:], [weight])
    described = _graph(helper.make_model(graph))
    region = load_region(described, [0], "g")
    model = contract_regions(described, {"R": region}, "own")
    assert [port.name for port in model.graph.input] == ["x"]
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]


def test_branches_read_values_too() -> None:
    out = helper.make_tensor_value_info("t", TensorProto.FLOAT, [2])
    branch = helper.make_graph([helper.make_node("Neg", ["a"], ["t"])], "b", [], [out])
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("If", ["p"], ["y"], then_branch=branch, else_branch=branch),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    flag = helper.make_tensor_value_info("p", TensorProto.BOOL, [])
    graph = _graph(helper.make_model(helper.make_graph(nodes, "g", [ports[0], flag], [ports[1]])))
    assert graph.reads[1] == ("p", "a")
    assert find_boundary(graph, [0]) == (["x"], ["a"])


def test_a_model_of_other_operators_is_what_it_was(tmp_path: Any) -> None:
    node = helper.make_node("Abs", ["x"], ["y"])
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", ports[:1], ports[1:]))
    same = contract_regions(_graph(model), {}, "")
    assert list(same.graph.node) == [node]
    onnx.checker.check_model(same)
