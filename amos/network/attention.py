"""Attention in a graph: two products with a softmax between them, as one chain of statements.

A chain reads and writes tensors by their axes in any order, so the transposes and reshapes around
the two products, which divide a row among heads, cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from math import prod

from amos.codegen.tir.program import MOST_ELEMENTS
from amos.errors import AmosError
from amos.ir import Chain
from amos.network.anchors import BATCHES
from amos.network.graph import Constant, Graph, Node, Operand
from amos.network.groups import CallSite, Group, Grouping
from amos.network.places import (
    Axes,
    Division,
    Place,
    find_division,
    follow_moves,
    names_of,
    trace_source,
)
from amos.network.shapes import HALVES

#: Iterations of both products: rows of queries, columns of keys, and what each of them sums over
#: or keeps of a row.
_QUERIES, _KEYS, _DEPTH, _WIDTH = "q", "k", "d", "j"
#: The heads of a group that shares a key and a value.
_SHARING = "r"
_FLOATS = ("float32", *HALVES)


@dataclass(frozen=True, eq=False)
class ChainSite(CallSite):
    """Nodes that one call of a chain's kernel computes.

    Attributes:
        chain: what is computed.
        groups: the products, which are kernels of their own otherwise.
    """

    chain: Chain
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class _Softmax:
    """A softmax between two products.

    Attributes:
        nodes: of the softmax, and what converts its results.
        is_safe: whether rows that are not a number count as zero.
    """

    scores: Group
    mixing: Group
    nodes: tuple[Node, ...]
    is_safe: bool


def match_attention(graph: Graph, grouping: Grouping) -> Iterator[ChainSite]:
    """Yield the chains of a graph, in the order of their softmaxes."""
    by_result = {group.result.number: group for group in grouping.groups}
    by_anchor = {group.nodes[0].number: group for group in grouping.groups}
    claimed = {node.number for group in grouping.groups for node in group.nodes}
    passed = set[int]()
    for node in graph.nodes:
        if node.operation != "Softmax" or node.attributes["axis"] != len(node.shape) - 1:
            continue
        softmax = _match_softmax(node, graph, by_result, by_anchor)
        if softmax is None:
            continue
        writer = _Writer(softmax, graph, claimed, passed)
        try:
            site = writer.site()
        except AmosError:  # two statements contradict each other, or an index is no sum of names
            continue
        claimed |= {each.number for each in site.nodes}
        passed |= {each.number for each in writer.moves}
        yield site


def _match_softmax(
    node: Node, graph: Graph, by_result: Mapping[int, Group], by_anchor: Mapping[int, Group]
) -> _Softmax | None:
    """Return a softmax that stands between two groups of matrix products alone."""
    source = node.operands[0]
    if not isinstance(source, Node) or not graph.has_one_reader(source):
        return None
    last, passed = node, [node]
    if (zeros := _match_zeros(node, graph)) is not None:
        passed += zeros
        last = zeros[-1]
    if graph.has_one_reader(last) and (readers := graph.users[last.number])[0].operation == "Cast":
        passed += readers
        (last,) = readers
    if not graph.has_one_reader(last):
        return None
    scores = by_result.get(source.number)
    mixing = by_anchor.get(graph.users[last.number][0].number)
    if scores is None or mixing is None:
        return None
    own = scores.nodes[0], mixing.nodes[0]
    fits = all(each.operation == "MatMul" and len(each.shape) > 1 for each in own)
    fits = fits and own[1].operands[0] is last and own[1].operands[1] is not last
    fits = fits and own[0].shape == node.shape and own[1].shape[:-1] == node.shape[:-1]
    kinds = {each.dtype for product in own for each in product.operands}
    if not fits or last.dtype not in _FLOATS or not kinds <= {*_FLOATS}:
        return None
    return _Softmax(scores, mixing, tuple(passed), is_safe=zeros is not None)


def _match_zeros(value: Node, graph: Graph) -> tuple[Node, Node] | None:
    """Return the nodes that put 0 in place of NaN, if the readers of a value do."""
    readers = sorted(graph.users[value.number], key=lambda node: node.operation)
    if [each.operation for each in readers] != ["IsNaN", "Where"]:
        return None
    test, choice = readers
    condition, zero, otherwise = choice.operands
    is_zero = isinstance(zero, Constant) and not zero.array.any()
    is_private = graph.has_one_reader(test) and value.number not in graph.returned
    fits = condition is test and is_zero and otherwise is value and choice.shape == value.shape
    return (test, choice) if fits and is_private else None


class _Writer:
    """Writes the statements of attention, and finds what they read and replace.

    Args:
        claimed: numbers of the nodes of groups and of other chains.
        passed: numbers of the moves that other chains read ahead of.
    """

    def __init__(
        self, softmax: _Softmax, graph: Graph, claimed: Set[int], passed: Set[int]
    ) -> None:
        self.softmax, self.graph = softmax, graph
        self.division: Division | None = None
        self._claimed, self._passed = claimed, passed
        anchor, mixed = softmax.scores.nodes[0], softmax.mixing.nodes[0]
        *lead, rows, columns = anchor.shape
        self.extents = {_QUERIES: rows, _KEYS: columns}
        self.extents |= {_DEPTH: anchor.operands[0].shape[-1], _WIDTH: mixed.shape[-1]}
        #: The iterations of the leading axes; what has a single step moves nothing.
        self.lead: Axes = tuple(
            (Place(name, extent),) if extent > 1 else ()
            for name, extent in zip(BATCHES, lead, strict=False)
        )
        self._divide_heads()
        self.extents |= {place.name: place.size for axis in self.lead for place in axis}
        self.arguments: dict[str, Operand] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.factors: dict[str, float] = {}
        self.moves: list[Node] = []

    def site(self) -> ChainSite:
        """Return the site; raise AmosError if the statements contradict each other."""
        scores, mixing = self.softmax.scores, self.softmax.mixing
        (query, key), value = scores.nodes[0].operands, mixing.nodes[0].operands[1]
        first = self._source("query", query, _QUERIES, _DEPTH)
        second = self._source("key", key, _DEPTH, _KEYS)
        third = self._source("value", value, _KEYS, _WIDTH)
        lead = names_of(self.lead)
        rows = ",".join([*lead, _QUERIES, _KEYS])
        names = {"m": _QUERIES, "n": _KEYS}
        factor = self.factors["query"] * self.factors["key"]
        logits = self._epilogue(scores, "scores", names, factor)
        function = "safe_softmax" if self.softmax.is_safe else "softmax"
        axes = (*self.lead, self._axis(_QUERIES), self._axis(_WIDTH))
        stop = self._claimed | self._passed
        followed = follow_moves(mixing.result, axes, self.graph, stop)
        result = ",".join(names_of(followed.axes))
        statements = [
            f"scores[{rows}] += {first} * {second}",
            f"shares[{rows}] = {function}({logits}, axis={_KEYS})",
            f"mixed[{result}] += shares[{rows}] * {third}",
        ]
        if mixing.operator.epilogue is not None or self.factors["value"] != 1:
            names = {"m": _QUERIES, "n": _WIDTH}
            stored = self._epilogue(mixing, "mixed", names, self.factors["value"])
            statements.append(f"out[{result}] = {stored}")
        used = {n for text in statements for n in re.findall(r"\w+", text)}
        dtypes = {name: operand.dtype for name, operand in self.arguments.items()}
        chain = Chain.parse(
            "; ".join(statements),
            {name: extent for name, extent in self.extents.items() if name in used},
            dtypes | {"shares": mixing.nodes[0].operands[0].dtype},
            name="attention",
            shapes=self.shapes,
        )
        if max(prod(tensor.shape) for tensor in (*chain.inputs, chain.result)) > MOST_ELEMENTS:
            raise AmosError("a tensor is too large for one kernel")
        own = (*scores.nodes, *self.softmax.nodes, *mixing.nodes, *followed.nodes)
        inner = self._own_moves({node.number for node in own})
        nodes = (*inner, *(node for node in own if node is not followed.result), followed.result)
        arguments = {tensor.name: self.arguments[tensor.name] for tensor in chain.inputs}
        return ChainSite(arguments, nodes, chain, (scores, mixing))

    def _divide_heads(self) -> None:
        """Divide heads into groups that share a key or a value."""
        anchor, mixed = self.softmax.scores.nodes[0], self.softmax.mixing.nodes[0]
        sides = (anchor.operands[1], (_DEPTH, _KEYS)), (mixed.operands[1], (_KEYS, _WIDTH))
        for operand, names in sides:
            division = find_division(operand, self._axes_of(operand, *names), self._claimed)
            if division is None or self.division is not None:
                continue
            self.division = division
            outer, inner = Place(division.name, division.outer), Place(_SHARING, division.inner)
            self.lead = tuple(
                (outer, inner) if axis and axis[0].name == division.name else axis
                for axis in self.lead
            )

    def _axis(self, name: str) -> tuple[Place, ...]:
        return (Place(name, self.extents[name]),)

    def _source(self, name: str, operand: Operand, row: str, column: str) -> str:
        """Return the access of a product to a source, which is read ahead of its moves."""
        traced = trace_source(operand, self._axes_of(operand, row, column), self._claimed)
        self.moves += traced.nodes
        self.factors[name] = traced.factor
        places = [place for axis in traced.axes for place in axis]
        self.arguments[name] = traced.operand
        self.shapes[name] = tuple(place.size for place in places)
        return f"{name}[{','.join(map(str, places))}]"

    def _axes_of(self, operand: Operand, row: str, column: str) -> Axes:
        """Return the dimensions of a source of a product."""
        shape = operand.shape[:-2]
        lead = self.lead[len(self.lead) - len(shape) :]
        pairs = zip(lead, shape, strict=True)
        own = (axis if extent > 1 else () for axis, extent in pairs)
        return (*own, self._axis(row), self._axis(column))

    def _epilogue(
        self, group: Group, tensor: str, renamed: Mapping[str, str], factor: float
    ) -> str:
        """Return what a group makes of its sums times a factor, by the iterations of the chain."""
        epilogue, sums = group.operator.epilogue, tensor
        if factor != 1:
            sums = f"({tensor} * {factor!r})"
        if epilogue is None:
            return sums
        names = {**renamed, "acc": sums}
        if (heads := self.division) is not None:
            names[heads.name] = f"({heads.name}*{heads.inner}+{_SHARING})"
        for load in group.operator.epilogue_loads:
            own = load.tensor.name if tensor == "scores" else f"{load.tensor.name}_{tensor}"
            names[load.tensor.name] = own
            self.arguments[own] = group.arguments[load.tensor.name]
            self.shapes[own] = load.tensor.shape
        return re.sub(r"\b[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), str(epilogue))

    def _own_moves(self, own: set[int]) -> list[Node]:
        """Return the moves of sources that nothing else reads, in order."""
        moves: list[Node] = []
        for _, node in sorted({each.number: each for each in self.moves}.items(), reverse=True):
            readers = {reader.number for reader in self.graph.users[node.number]}
            if readers <= own and node.number not in self.graph.returned:
                own.add(node.number)
                moves.append(node)
        return moves[::-1]
