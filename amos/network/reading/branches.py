"""Graphs inside of nodes: names, operators, and branches that are always taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def graphs_of(node: Any) -> Iterator[Any]:
    """Return the branches and loops inside of a node."""
    graphs = (graph for each in node.attribute for graph in (each.g, *each.graphs))
    return (graph for graph in graphs if graph.node or graph.output)


def names_read(node: Any) -> Iterator[str]:
    """Return the names that a node reads, inside of its branches and loops too."""
    yield from filter(None, node.input)
    for graph in graphs_of(node):
        own = _names_defined(graph)
        inner = [name for each in graph.node for name in names_read(each)]
        inner += [each.name for each in graph.output]
        yield from (name for name in inner if name not in own)


def _names_defined(graph: Any) -> set[str]:
    """Names of the values that a branch or a loop has of its own."""
    own = {each.name for each in (*graph.input, *graph.initializer)}
    return own | {name for each in graph.node for name in each.output}


def operators_of(graph: Any) -> Iterator[str]:
    """Yield the operators of a graph, and those inside of its branches and loops."""
    for node in graph.node:
        yield node.op_type
        for inner in graphs_of(node):
            yield from operators_of(inner)


def inline_branches(model: Any, branches: Mapping[int, Any]) -> Any:
    """Return a model with the contents of branches in place of the nodes that choose them.

    Args:
        model: an ``onnx.ModelProto``; it is not changed.
        branches: ``onnx.GraphProto`` by the position of the ``If`` that always takes it.
    """
    import onnx
    from onnx import helper

    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    for position, node in enumerate(model.graph.node):
        if position not in branches:
            result.graph.node.append(node)
            continue
        branch = branches[position]
        names = {inner.name for inner in branch.initializer}
        names |= {name for inner in branch.node for name in inner.output if name}
        own = {name: f"{node.output[0]}/{name}" for name in names}
        for weight in branch.initializer:
            result.graph.initializer.append(weight)
            result.graph.initializer[-1].name = own[weight.name]
        for inner in branch.node:
            result.graph.node.append(inner)
            _rename([result.graph.node[-1]], own)
        for port, name in zip(branch.output, node.output, strict=True):
            value = own.get(port.name, port.name)
            result.graph.node.append(helper.make_node("Identity", [value], [name]))
    return result


def _rename(nodes: Iterable[Any], names: Mapping[str, str]) -> None:
    """Rename values in nodes, and in the branches and loops inside of them."""
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for graph in graphs_of(node):
            own = _names_defined(graph)
            outer = {name: new for name, new in names.items() if name not in own}
            _rename(graph.node, outer)
            for port in graph.output:
                port.name = outer.get(port.name, port.name)
