"""Layers of a network that one kernel could compute as a cascade.

A cascade is a pointwise convolution with the depthwise one behind it, and a pointwise one behind
that; or the two matrix products of an MLP block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from amos.errors import OperatorError
from amos.ir import Chain, Operator
from amos.network.attention import ChainSite
from amos.network.graph import Graph, Node, Operand
from amos.network.groups import Group, Task

#: Iterations of images and rows of convolutions.
IMAGES, ROWS = "n", "p"
#: Kinds of layers, and of which those before and behind one are.
_MATMUL, _DEPTHWISE = "matmul", "depthwise_conv2d"
_DENSE = {_MATMUL: _MATMUL, _DEPTHWISE: "conv2d"}


def match_cascades(tasks: Sequence[Task], graph: Graph) -> Iterator[ChainSite]:
    """Yield cascades of two and three groups; they may overlap."""
    for groups in _match_groups(tasks, graph):
        with suppress(OperatorError):  # one reads what the other stores in another shape
            yield _join_groups(groups)


def _join_groups(groups: tuple[Group, ...]) -> ChainSite:
    """Join groups into the site of one call; raise OperatorError if a tensor has two shapes."""
    layers = [group.operator for group in groups]
    chain = chain_layers(layers)
    values = {
        name_tensor(layers, number, name): value
        for number, group in enumerate(groups)
        for name, value in group.arguments.items()
    }
    nodes = tuple(node for group in groups for node in group.nodes)
    return ChainSite({each.name: values[each.name] for each in chain.inputs}, nodes, chain, groups)


def _match_groups(tasks: Sequence[Task], graph: Graph) -> Iterator[tuple[Group, ...]]:
    """Yield two and three groups that could be a cascade."""
    groups = [group for task in tasks for group in task.groups if _is_supported(group.operator)]
    dense = [group for group in groups if group.operator.name in _DENSE.values()]
    producers = {group.result.number: group for group in dense}
    sources = ((_source_of(group), group) for group in dense)
    consumers = {source.number: group for source, group in sources if isinstance(source, Node)}
    for group in groups:
        kind, source = group.operator.name, _source_of(group)
        first = producers.get(source.number) if isinstance(source, Node) else None
        if first is None or first.operator.name != _DENSE.get(kind):
            continue
        if not is_pointwise(first.operator) or not _is_only_consumer(group, first, graph):
            continue
        yield first, group
        last = consumers.get(group.result.number) if kind == _DEPTHWISE else None
        if last is None or not is_pointwise(last.operator):
            continue
        if _is_only_consumer(last, group, graph):
            yield first, group, last


def _source_of(group: Group) -> Operand:
    """Return the value that a group reads rows of."""
    return group.arguments[name_source(group.operator)]


def _is_supported(operator: Operator) -> bool:
    """Return whether an operator may be a layer of a cascade."""
    if operator.name not in {*_DENSE, *_DENSE.values()} or operator.further or operator.prologues:
        return False
    if operator.constants != ("weight",):  # rows that are constant would be packed ahead
        return False
    same = operator.result.shape == operator.output.tensor.shape
    return same and operator.stored.indices == operator.output.indices


def _is_only_consumer(consumer: Group, producer: Group, graph: Graph) -> bool:
    """Return whether a group alone reads another one's result, as its source."""
    result = producer.result
    operands = [*consumer.arguments.values()]
    kinds = {str(group.operator.output.tensor.dtype) for group in (producer, consumer)}
    return (
        # Sums of integers are exact, those of floats are not; a check allows for one or the other.
        len(kinds) == 1
        and _source_of(consumer) is result
        and set(consumer.nodes).issuperset(graph.users[result.number])
        and result.number not in graph.returned
        and sum(operand is result for operand in operands) == 1
    )


def is_pointwise(operator: Operator) -> bool:
    """Return whether an operator reads one element of each channel, row after row."""
    source = operator.sources[0]
    for index, size in zip(source.indices[:-1], source.tensor.shape, strict=False):
        names = [name for name in index.names if operator.extents[name] > 1]
        steps = [(index.coefficient(name), operator.extents[name]) for name in names] or [(1, 1)]
        if index.constant or steps != [(1, size)]:
            return False
    return True


def chain_layers(layers: Sequence[Operator]) -> Chain:
    """Chain layers, each of which reads the previous result as its first source.

    Iterations of the last one keep their names.
    """
    count, chained = len(layers), list[Operator]()
    for number, layer in enumerate(layers):
        suffix = "" if number == count - 1 else f"_{number}"
        names = {x.name: name_tensor(layers, number, x.name) for x in layer.inputs}
        names[layer.output.tensor.name] = _result_name(number, count)
        loops = {it.name: f"{it.name}{suffix}" for it in layer.iterations}
        plain = replace(layer, store=None)
        chained.append(plain.rename(names.__getitem__, loops.__getitem__))
    return Chain.of(chained, " + ".join(layer.name for layer in layers))


def name_source(operator: Operator) -> str:
    """Name the source that a layer reads rows of."""
    return operator.sources[0].tensor.name


def name_tensor(layers: Sequence[Operator], number: int, tensor: str) -> str:
    """Name in the chain what the layer of a number reads."""
    if number and tensor == name_source(layers[number]):
        return _result_name(number - 1, len(layers))
    return f"{tensor}_{number}"


def _result_name(number: int, count: int) -> str:
    return "result" if number == count - 1 else f"rows_{number}"
