"""Regions: the parts of an ONNX model that become one operator each.

A region is a set of nodes that AMOS takes, with no path that leaves it and comes back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from amos.network.graph import Graph
from amos.network.network import Network, network_of
from amos.network.operations import declare_value
from amos.network.packages import helper, onnx
from amos.network.reading.branches import names_read
from amos.network.reading.onnx_graph import OnnxGraph

#: Versions of ONNX that every onnxruntime with the interface of the library reads.
_IR_VERSION, _OPSET = 8, 17


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes that become one operator.

    Attributes:
        nodes: their numbers in order.
        inputs: names of the values that it reads.
        outputs: names of its values that others read.
    """

    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    graph: OnnxGraph
    network: Network

    @property
    def model(self) -> Any:
        """These nodes as a model of ONNX, with a copy of their weights."""
        return extract_nodes(self.graph, self.nodes, self.inputs, self.outputs)

    def read(self) -> Graph:
        """Read these nodes as they were ahead of all passes."""
        return self.graph.slice(self.inputs, self.outputs)


def find_regions(graph: OnnxGraph) -> list[list[int]]:
    """Divide the nodes that were read into regions, as large as they can be."""
    read = [n for n in range(len(graph.nodes)) if n not in graph.external]
    if not read:
        return []
    return find_convex_sets(graph, read) if graph.external else [read]


def load_region(graph: OnnxGraph, nodes: Sequence[int], name: str) -> Region:
    """Load a convex set of nodes as a network; raise NetworkError if AMOS does not take them."""
    inputs, outputs = find_boundary(graph, nodes)
    network = network_of(graph.slice(inputs, outputs), name)
    return Region(tuple(nodes), tuple(inputs), tuple(outputs), graph, network)


def find_convex_sets(graph: OnnxGraph, accepted: Sequence[int]) -> list[list[int]]:
    """Divide nodes into connected sets that no path leaves and enters again.

    Each node has a level, which rises where a path goes from nodes that are accepted to ones that
    are not, and back. Nodes of one level are convex together.
    """
    chosen = set(accepted)
    level: dict[int, int] = {}
    for number in range(len(graph.nodes)):
        own = number in chosen
        before = [graph.producers[n] for n in graph.reads[number] if n in graph.producers]
        levels = [level[n] + ((n in chosen) != own) for n in before]
        level[number] = max(levels, default=0 if own else 1)
    parent = {number: number for number in accepted}

    def root(number: int) -> int:
        while parent[number] != number:
            number = parent[number]
        return number

    readers: dict[tuple[str, int], int] = {}
    for number in accepted:
        for name in graph.reads[number]:
            source = graph.producers.get(name)
            if source is not None and level.get(source) == level[number]:
                parent[root(number)] = root(source)
            # Those that read the same value are one region, which reads it once.
            if name not in graph.initializers:
                first = readers.setdefault((name, level[number]), number)
                parent[root(number)] = root(first)
    sets: dict[int, list[int]] = defaultdict(list)
    for number in sorted(accepted):
        sets[root(number)].append(number)
    return list(sets.values())


def find_boundary(graph: OnnxGraph, nodes: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return the names of the values that enter and leave some nodes."""
    own = set(nodes)
    inputs = dict.fromkeys(
        name
        for number in nodes
        for name in graph.reads[number]
        if name not in graph.initializers and graph.producers.get(name) not in own
    )
    read = {port.name for port in graph.model.graph.output}
    read |= {name for n in range(len(graph.nodes)) if n not in own for name in graph.reads[n]}
    outputs = [name for n in nodes for name in graph.nodes[n].output if name and name in read]
    return list(inputs), outputs


def extract_nodes(
    graph: OnnxGraph, nodes: Sequence[int], inputs: Sequence[str], outputs: Sequence[str]
) -> Any:
    """Extract a model of some nodes of a graph."""
    nodes_of_region = [graph.nodes[number] for number in nodes]
    read = {name for number in nodes for name in graph.reads[number]}
    weights = [each for name, each in graph.initializers.items() if name in read]
    contents = helper.make_graph(
        nodes_of_region,
        "region",
        [declare_value(name, graph.values[name]) for name in inputs],
        [declare_value(name, graph.values[name]) for name in outputs],
        weights,
    )
    return helper.make_model(
        contents, opset_imports=graph.model.opset_import, ir_version=graph.model.ir_version
    )


def contract_regions(graph: OnnxGraph, regions: Mapping[str, Region], domain: str) -> Any:
    """Write the model with one node for each region, and the shapes that it has them for.

    Nodes and weights without a reader are dropped; weights are no inputs, as old models list them.

    Args:
        regions: by the name of their operator.
    """
    nodes = [
        graph.nodes[place]
        if isinstance(place, int)
        else helper.make_node(
            place, regions[place].inputs, regions[place].outputs, domain=domain, name=place
        )
        for place in order_places(graph, regions)
    ]
    live = _live(nodes, {port.name for port in graph.model.graph.output})
    result = onnx.ModelProto()
    result.CopyFrom(graph.model)
    del result.graph.node[:]
    result.graph.node.extend(live)
    read = {name for node in live for name in names_read(node)}
    read |= {port.name for port in result.graph.output}
    del result.graph.input[:]
    inputs = (port for port in graph.model.graph.input if port.name in graph.inputs)
    result.graph.input.extend(inputs)
    del result.graph.initializer[:]
    weights = [each for name, each in graph.initializers.items() if name in read]
    result.graph.initializer.extend(weights)
    if regions:
        result.opset_import.append(helper.make_opsetid(domain, 1))
    for port in (*result.graph.input, *result.graph.output):
        if port.name in graph.values and port.type.tensor_type.elem_type:
            state_shape(port, graph.values[port.name].shape)
    return result


def state_shape(port: Any, shape: Sequence[int]) -> None:
    """Write the extents of an input or a result."""
    stated = port.type.tensor_type.shape
    del stated.dim[:]
    stated.SetInParent()  # a scalar has a shape too
    for extent in shape:
        stated.dim.add().dim_value = extent


def order_places(graph: OnnxGraph, regions: Mapping[str, Region]) -> Iterable[int | str]:
    """List nodes by number and regions by name, in an order in which they can be computed."""
    region_of: dict[int, int | str] = {
        number: name for name, region in regions.items() for number in region.nodes
    }
    after: dict[int | str, set[int | str]] = {}
    for number, names in enumerate(graph.reads):
        place = region_of.get(number, number)
        sources = (graph.producers[name] for name in names if name in graph.producers)
        after.setdefault(place, set()).update(region_of.get(each, each) for each in sources)
        after[place].discard(place)
    return TopologicalSorter(after).static_order()


def _live(nodes: Sequence[Any], results: set[str]) -> list[Any]:
    """List the nodes whose results are read, in order."""
    read, live = set(results), []
    for node in reversed(nodes):
        if read & {*node.output}:
            live.append(node)
            read.update(names_read(node))
    return live[::-1]


def whole_model(network: Network, operator: str, domain: str) -> Any:
    """Write a model that calls one operator on its inputs."""
    inputs = [port.name for port in network.inputs]
    longest = max(inputs, key=len, default="")
    outputs = [f"{longest}_output{number}" for number in range(len(network.outputs))]
    sources = map(declare_value, inputs, network.inputs)
    results = map(declare_value, outputs, network.outputs)
    node = helper.make_node(operator, inputs, outputs, domain=domain, name=operator)
    graph = helper.make_graph([node], network.name, [*sources], [*results])
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
