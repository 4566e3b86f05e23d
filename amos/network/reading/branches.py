"""Graphs inside of nodes: the names and operators that they have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def graphs_of(node: Any) -> Iterator[Any]:
    """Return the branches and loops inside of a node."""
    graphs = (graph for each in node.attribute for graph in (each.g, *each.graphs))
    return (graph for graph in graphs if graph.node or graph.output)


def all_graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and those inside of its branches and loops."""
    yield graph
    for node in graph.node:
        for inner in graphs_of(node):
            yield from all_graphs(inner)


def names_read(node: Any) -> Iterator[str]:
    """Return the names that a node reads, inside of its branches and loops too."""
    yield from filter(None, node.input)
    for graph in graphs_of(node):
        own = _names_defined(graph)
        inner = [name for each in graph.node for name in names_read(each)]
        inner += [each.name for each in graph.output]
        yield from (name for name in inner if name not in own)


def _names_defined(graph: Any) -> set[str]:
    """Return the names of the values that a branch or a loop has of its own."""
    own = {each.name for each in (*graph.input, *graph.initializer)}
    return own | {name for each in graph.node for name in each.output}


def names_of(graph: Any) -> set[str]:
    """Return names of all values of a graph, and of those inside of its branches and loops."""
    return set[str]().union(*map(_names_defined, all_graphs(graph)))


def operators_of(graph: Any) -> Iterator[str]:
    """Return the operators of a graph, and those inside of its branches and loops."""
    return (node.op_type for each in all_graphs(graph) for node in each.node)


def rename_values(nodes: Iterable[Any], names: Mapping[str, str]) -> None:
    """Rename values in nodes, and in the branches and loops inside of them."""
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for graph in graphs_of(node):
            own = _names_defined(graph)
            outer = {name: new for name, new in names.items() if name not in own}
            rename_values(graph.node, outer)
            for port in graph.output:
                port.name = outer.get(port.name, port.name)
