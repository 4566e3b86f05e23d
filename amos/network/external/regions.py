"""Regions: the parts of an ONNX model that become one operator each.

A region is a set of nodes that AMOS takes, with no path that leaves it and comes back. Nodes that
read constants only belong to every region that reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from hashlib import sha256
from typing import Any

from amos.errors import NetworkError
from amos.network.external.onnx_graph import OnnxGraph, names_read
from amos.network.external.source import ELEMENT_TYPES

#: Why nodes stay with onnxruntime that it runs well, or whose shapes depend on values.
_REFUSED = {
    **dict.fromkeys(("If", "Loop", "Scan"), "control flow"),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "recurrent layer, which onnxruntime runs as a whole"),
    **dict.fromkeys(("NonZero", "NonMaxSuppression", "Unique", "Compress"), "shape by values"),
    **dict.fromkeys(("TopK", "CumSum"), "sorts or sums up in order"),
    **dict.fromkeys(("RandomNormal", "RandomUniform", "Bernoulli", "Multinomial"), "random"),
    **dict.fromkeys(("RandomNormalLike", "RandomUniformLike"), "random"),
}
#: Bytes up to which a constant decides by its values whether a node can be taken.
_DECIDES_BYTES = 1024

#: Loads a model of ONNX as a network.
Load = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes that become one operator.

    Attributes:
        nodes: their numbers in order, those of constants first.
        inputs: names of the values that it reads.
        outputs: names of its values that others read.
        model: these nodes as a model of ONNX.
        network: the model as AMOS loaded it.
    """

    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    model: Any
    network: Any


@dataclass
class Regions:
    """Finds the regions of a graph.

    Attributes:
        graph: of the model.
        load: makes a network of a model of some nodes.
        reasons: why nodes stay with onnxruntime, by their number.
    """

    graph: OnnxGraph
    load: Load
    reasons: dict[int, str] = field(default_factory=dict)

    def find(self) -> tuple[Region, ...]:
        """Divide the graph: regions as large as they can be, each loaded."""
        whole = [n for n in range(len(self.graph.nodes)) if n not in self.graph.constant]
        self.reasons.update({n: why for n in whole if (why := self.refusal(n))})
        accepted = [n for n in whole if n not in self.reasons]
        regions: list[Region] = []
        for nodes in convex_sets(self.graph, accepted):
            if self.loaded(nodes) is None:
                self.refuse_nodes(nodes)
        accepted = [n for n in accepted if n not in self.reasons]
        for nodes in convex_sets(self.graph, accepted):
            regions += self.divided(nodes)
        return tuple(regions)

    def refusal(self, number: int) -> str:
        """Why a node is not even tried; empty if it is."""
        node, ports = self.graph.nodes[number], self.graph.ports
        if node.op_type in _REFUSED and node.domain in ("", "ai.onnx"):
            return _REFUSED[node.op_type]
        if node.domain not in ("", "ai.onnx", "com.microsoft"):
            return f"an operator of domain {node.domain}"
        for name in (*self.graph.reads[number], *filter(None, node.output)):
            if name in self.graph.initializers:
                continue
            if self.graph.producers.get(name) in self.graph.constant:
                continue
            if name not in ports:
                return "a shape that is known at run time only"
            if ports[name].dtype not in ELEMENT_TYPES:
                return f"dtype {ports[name].dtype}"
        return ""

    def loaded(self, nodes: Sequence[int]) -> Region | None:
        """A region of nodes, if AMOS loads them together."""
        try:
            return self.load_region(nodes)
        except NetworkError:
            return None

    def load_region(self, nodes: Sequence[int]) -> Region:
        """Load nodes as a network.

        Raises:
            NetworkError: AMOS does not take them.
        """
        numbers, inputs, outputs = boundary(self.graph, nodes)
        model = extracted(self.graph, numbers, inputs, outputs)
        return Region(tuple(numbers), tuple(inputs), tuple(outputs), model, self.load(model))

    def refuse_nodes(self, nodes: Sequence[int]) -> None:
        """Note which nodes cannot be loaded even alone; equal ones are tried once."""
        tried: dict[bytes, str] = {}
        for number in nodes:
            key = self.signature(number)
            if key not in tried:
                try:
                    self.load_region([number])
                    tried[key] = ""
                except NetworkError as error:
                    tried[key] = str(error).splitlines()[0]
            if tried[key]:
                self.reasons[number] = tried[key]

    def divided(self, nodes: Sequence[int]) -> list[Region]:
        """Regions of nodes that load alone: of all together, or of halves where that fails."""
        region = self.loaded(nodes)
        if region is not None:
            return [region]
        if len(nodes) == 1:
            self.reasons[nodes[0]] = "it cannot be loaded alone"
            return []
        middle = len(nodes) // 2
        halves = (nodes[:middle], nodes[middle:])
        # The first nodes of an order in which all can be computed are convex, and so are the last.
        sets = [each for half in halves for each in convex_sets(self.graph, half)]
        return [each for part in sets for each in self.divided(part)]

    def signature(self, number: int) -> bytes:
        """Digest of what decides whether a node can be loaded."""
        node, graph = self.graph.nodes[number], self.graph
        digest = sha256(f"{node.domain} {node.op_type}".encode())
        for attribute in sorted(node.attribute, key=lambda each: each.name):
            digest.update(attribute.SerializeToString())
        for name in (*node.input, *node.output):
            port = graph.ports.get(name)
            digest.update(f" {port.shape} {port.dtype}".encode() if port else b" ?")
            if (tensor := graph.initializers.get(name)) is not None:
                values = tensor.raw_data
                digest.update(f"{tensor.dims} {tensor.data_type}".encode())
                digest.update(values if len(values) <= _DECIDES_BYTES else b"")
        return digest.digest()


def convex_sets(graph: OnnxGraph, accepted: Sequence[int]) -> list[list[int]]:
    """Divide nodes into connected sets that no path leaves and enters again.

    Each node has a level, which rises where a path goes from nodes that are accepted to ones that
    are not, and back. Nodes of one level are convex together.
    """
    chosen = set(accepted)
    level: dict[int, int] = {}
    for number in range(len(graph.nodes)):
        if number in graph.constant:
            continue
        own = number in chosen
        before = [graph.producers[n] for n in graph.reads[number] if n in graph.producers]
        levels = [level[n] + ((n in chosen) != own) for n in before if n not in graph.constant]
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
            if name not in graph.initializers and source not in graph.constant:
                first = readers.setdefault((name, level[number]), number)
                parent[root(number)] = root(first)
    sets: dict[int, list[int]] = defaultdict(list)
    for number in sorted(accepted):
        sets[root(number)].append(number)
    return list(sets.values())


def boundary(graph: OnnxGraph, nodes: Sequence[int]) -> tuple[list[int], list[str], list[str]]:
    """All nodes of a region, those of its constants too, and the values that enter and leave."""
    own = set(nodes)
    stack = [*nodes]
    while stack:
        for name in graph.reads[stack.pop()]:
            number = graph.producers.get(name)
            if number in graph.constant and number not in own:
                own.add(number)
                stack.append(number)
    inputs: dict[str, None] = {}
    for number in sorted(own):
        for name in graph.reads[number]:
            if name not in graph.initializers and graph.producers.get(name) not in own:
                inputs[name] = None
    results = {port.name for port in graph.model.graph.output}
    core = set(nodes)
    read = {name for n in range(len(graph.nodes)) if n not in own for name in graph.reads[n]}
    outputs = [
        name
        for number in sorted(core)
        for name in graph.nodes[number].output
        if name and (name in read or name in results)
    ]
    return sorted(own), list(inputs), outputs


def extracted(
    graph: OnnxGraph, nodes: Sequence[int], inputs: Sequence[str], outputs: Sequence[str]
) -> Any:
    """A model of some nodes of a graph."""
    from onnx import helper

    nodes_of_region = [graph.nodes[number] for number in nodes]
    read = {name for number in nodes for name in graph.reads[number]}
    weights = [each for name, each in graph.initializers.items() if name in read]
    contents = helper.make_graph(
        nodes_of_region,
        "region",
        [value_info(graph, name) for name in inputs],
        [value_info(graph, name) for name in outputs],
        weights,
    )
    return helper.make_model(
        contents, opset_imports=graph.model.opset_import, ir_version=graph.model.ir_version
    )


def value_info(graph: OnnxGraph, name: str) -> Any:
    """The declaration of a value of static shape."""
    from onnx import helper

    port = graph.ports[name]
    number, _, _ = ELEMENT_TYPES[port.dtype]
    return helper.make_tensor_value_info(name, number, port.shape)


def contracted(graph: OnnxGraph, regions: Mapping[str, Region], domain: str) -> Any:
    """Write the model with one node for each region; drop nodes and weights without a reader.

    Args:
        graph: of the model.
        regions: by the name of their operator.
        domain: of the operators.
    """
    import onnx
    from onnx import helper

    nodes = [
        graph.nodes[place]
        if isinstance(place, int)
        else helper.make_node(
            place, regions[place].inputs, regions[place].outputs, domain=domain, name=place
        )
        for place in _ordered(graph, regions)
    ]
    live = _live(nodes, {port.name for port in graph.model.graph.output})
    result = onnx.ModelProto()
    result.CopyFrom(graph.model)
    del result.graph.node[:]
    result.graph.node.extend(live)
    read = {name for node in live for name in names_read(node)}
    read |= {port.name for port in result.graph.output}
    del result.graph.initializer[:]
    weights = [each for name, each in graph.initializers.items() if name in read]
    result.graph.initializer.extend(weights)
    if regions:
        result.opset_import.append(helper.make_opsetid(domain, 1))
    return result


def _ordered(graph: OnnxGraph, regions: Mapping[str, Region]) -> Iterable[int | str]:
    """Nodes by number and regions by name, in an order in which they can be computed."""
    region_of: dict[int, int | str] = {
        number: name
        for name, region in regions.items()
        for number in region.nodes
        if number not in graph.constant
    }
    after: dict[int | str, set[int | str]] = {}
    for number, names in enumerate(graph.reads):
        place = region_of.get(number, number)
        sources = (graph.producers[name] for name in names if name in graph.producers)
        after.setdefault(place, set()).update(region_of.get(each, each) for each in sources)
        after[place].discard(place)
    return TopologicalSorter(after).static_order()


def _live(nodes: Sequence[Any], results: set[str]) -> list[Any]:
    """Nodes whose results are read, in order."""
    read, live = set(results), []
    for node in reversed(nodes):
        if read & {*node.output}:
            live.append(node)
            read.update(names_read(node))
    return live[::-1]
