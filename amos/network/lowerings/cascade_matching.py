"""Convolutions of a network that could be computed as a cascade."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from amos.errors import OperatorError
from amos.ir import Chain, Operator
from amos.network.attention import ChainSite
from amos.network.graph import Graph, Node
from amos.network.groups import Group, Task

#: Iterations of images and rows, and the source that rows are read of.
IMAGES, ROWS, SOURCE = "n", "p", "image"
#: Kinds of the layers of a cascade.
_DENSE, _DEPTHWISE = "conv2d", "depthwise_conv2d"


def match_cascades(tasks: Sequence[Task], graph: Graph) -> Iterator[ChainSite]:
    """Yield cascades of two and three groups; they may overlap."""
    for groups in _match_groups(tasks, graph):
        with suppress(OperatorError):  # one reads what the other stores in another shape
            yield _join_groups(groups)


def _join_groups(groups: tuple[Group, ...]) -> ChainSite:
    """Join groups into the site of one call.

    Raises:
        OperatorError: a tensor between them has two shapes.
    """
    chain = chain_layers([group.operator for group in groups])
    values = {
        layer_tensor(number, len(groups), name): value
        for number, group in enumerate(groups)
        for name, value in group.arguments.items()
    }
    nodes = tuple(node for group in groups for node in group.nodes)
    return ChainSite({each.name: values[each.name] for each in chain.inputs}, nodes, chain, groups)


def _match_groups(tasks: Sequence[Task], graph: Graph) -> Iterator[tuple[Group, ...]]:
    """Yield two and three groups that could be a cascade."""
    groups = [group for task in tasks for group in task.groups if _is_supported(group.operator)]
    dense = [group for group in groups if group.operator.name == _DENSE]
    producers = {group.result.number: group for group in dense}
    sources = ((group.arguments[SOURCE], group) for group in dense)
    consumers = {source.number: group for source, group in sources if isinstance(source, Node)}
    for group in groups:
        source = group.arguments[SOURCE]
        if group.operator.name != _DEPTHWISE or not isinstance(source, Node):
            continue
        first = producers.get(source.number)
        if first is None or not is_pointwise(first.operator):
            continue
        if not _is_only_consumer(group, first, graph):
            continue
        yield first, group
        last = consumers.get(group.result.number)
        if last is None or not is_pointwise(last.operator):
            continue
        if _is_only_consumer(last, group, graph):
            yield first, group, last


def _is_supported(operator: Operator) -> bool:
    """Whether a convolution may be a layer of a cascade."""
    if operator.name not in (_DENSE, _DEPTHWISE) or operator.further or operator.prologues:
        return False
    if SOURCE in operator.constants:  # packed ahead, as no tiles are
        return False
    same = operator.result.shape == operator.output.tensor.shape
    return same and operator.stored.indices == operator.output.indices


def _is_only_consumer(consumer: Group, producer: Group, graph: Graph) -> bool:
    """Whether a group reads another one's result as its source, and nothing else reads it."""
    result = producer.result
    operands = (each for name, each in consumer.arguments.items() if name != SOURCE)
    kinds = {str(group.operator.output.tensor.dtype) for group in (producer, consumer)}
    return (
        # Sums of integers are exact, those of floats are not; a check allows for one or the other.
        len(kinds) == 1
        and consumer.arguments[SOURCE] is result
        and set(consumer.nodes).issuperset(graph.users[result.number])
        and result.number not in graph.returned
        and all(operand is not result for operand in operands)
    )


def is_pointwise(operator: Operator) -> bool:
    """Whether a convolution reads one element of each channel, of all rows one after the other."""
    (load,) = (load for load in operator.sources if load.tensor.name == SOURCE)
    taps = all(operator.extents.get(tap, 1) == 1 for tap in "rs")
    is_plain = load.indices[1].coefficient(ROWS) == 1 and not load.indices[1].constant
    return taps and is_plain and load.tensor.shape[1] == operator.extents[ROWS]


def chain_layers(layers: Sequence[Operator]) -> Chain:
    """Chain convolutions of which each reads the result of the one before as its image.

    Iterations of the last one keep their names.
    """
    count, chained = len(layers), list[Operator]()
    for number, layer in enumerate(layers):
        suffix = "" if number == count - 1 else f"_{number}"
        names = {x.name: layer_tensor(number, count, x.name) for x in layer.inputs}
        names[layer.output.tensor.name] = _result_name(number, count)
        loops = {it.name: f"{it.name}{suffix}" for it in layer.iterations}
        plain = replace(layer, store=None)
        chained.append(plain.renamed(names.__getitem__, loops.__getitem__))
    return Chain.of(chained, " + ".join(layer.name for layer in layers))


def layer_tensor(number: int, count: int, tensor: str) -> str:
    """Name, in the chain of so many layers, what a layer reads."""
    if number and tensor == SOURCE:
        return _result_name(number - 1, count)
    return f"{tensor}_{number}"


def _result_name(number: int, count: int) -> str:
    return "result" if number == count - 1 else f"rows_{number}"
