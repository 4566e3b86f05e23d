"""Layouts: channels last in the whole network, with transposes where a node needs another order.

Each value exists in one or more orders of its axes (:mod:`amos.network.passes.orders`).
Convolutions and pools have their channels last. A transpose of the model only renames axes, and
operators that can take any order take that of their operands. A transpose is emitted only where a
value is read in an order in which it does not exist yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import dropwhile

from amos.network.anchors import anchor_of
from amos.network.graph import Constant, Graph, GraphBuilder, Node, Operand
from amos.network.groups import unfit
from amos.network.operations import Kind
from amos.network.passes.orders import (
    Order,
    moved_attributes,
    order_ahead,
    order_behind,
    original,
    places_of_followed,
    significant,
    with_channels_last,
)
from amos.network.passes.simplify import merge_moves
from amos.network.shapes import count_bytes

_WINDOWS = frozenset({"AveragePool", "Conv", "ConvTranspose", "MaxPool"})


def channels_last(graph: Graph) -> Graph:
    """Return a graph, channels second, with channels as the last axis, and few transposes."""
    windows = {n.number for n in graph.nodes if n.operation in _WINDOWS and _is_taken(n)}
    tails = _tails(graph)
    wishes = _wishes(graph, windows, tails)
    graphs = [
        merge_moves(_Walk(windows, wishes, tails, early=early).rewritten(graph))
        for early in (False, True)
    ]
    return min(graphs, key=_bytes_moved)


def _bytes_moved(graph: Graph) -> int:
    """Count bytes that are transposed, and those that epilogues behind a transpose access."""
    tails, total = _tails(graph), 0
    for node in graph.nodes:
        if node.operation != "Transpose":
            continue
        total += count_bytes(node)
        source, readers = node.operands[0], graph.users[node.number]
        if isinstance(source, Node) and source.number in tails and len(readers) == 1:
            alone = graph.has_one_reader(source) and _is_elementwise(readers[0])
            total += 2 * count_bytes(readers[0]) if alone else 0
    return total


def _tails(graph: Graph) -> frozenset[int]:
    """Number the products, and the nodes that may join the epilogue behind one."""
    tails: set[int] = set()
    for node in graph.computing():
        sources = [each for each in node.operands if isinstance(each, Node)]
        follows = any(s.number in tails and graph.has_one_reader(s) for s in sources)
        if node.kind is Kind.PRODUCT or (_is_elementwise(node) and follows):
            tails.add(node.number)
    return frozenset(tails)


def _is_elementwise(node: Node) -> bool:
    return node.kind is Kind.ELEMENTWISE


def _is_taken(node: Node) -> bool:
    """Return whether channels are last: transposed convolutions only where a kernel computes it."""
    if node.operation != "ConvTranspose":
        return True
    image, weight = node.operands
    moved = Node(-1, "input", (), _permute(image.shape), image.dtype)
    attributes = {**node.attributes, "channels_last": True}
    shape = _permute(node.shape)
    last = Node(0, node.operation, (moved, weight), shape, node.dtype, attributes)
    anchor = anchor_of(last)
    return anchor is not None and not (anchor.refused or unfit(anchor, last))


def _permute(shape: tuple[int, ...], order: Order | None = None) -> tuple[int, ...]:
    """Permute extents by an order of their axes, by default to channels last."""
    return tuple(shape[axis] for axis in order or with_channels_last(len(shape)))


def _wishes(graph: Graph, windows: Set[int], tails: Set[int]) -> dict[int, Order]:
    """Return the order in which each value is read, by number; values of any order are missing.

    An order other than the original one takes precedence. Operands of an epilogue are read in
    the order of its product.
    """
    wishes = {node.number: original(len(node.shape)) for node in graph.outputs}
    products = _product_orders(graph, windows, tails)
    for node in reversed(graph.nodes):
        own = products.get(node.number, wishes.get(node.number))
        for place, operand in enumerate(node.operands):
            if isinstance(operand, Constant):
                continue
            wish = _wish(node, place, own, windows)
            plain = original(len(operand.shape))
            if wish is not None and wishes.get(operand.number, plain) == plain:
                wishes[operand.number] = wish
    return wishes


def _product_orders(graph: Graph, windows: Set[int], tails: Set[int]) -> dict[int, Order]:
    """Return the order of a product's result, by numbers of the nodes computed with it."""
    orders: dict[int, Order] = {}
    for node in graph.nodes:
        if node.number not in tails:
            continue
        if node.kind is Kind.PRODUCT:
            rank = len(node.shape)
            last = node.number in windows
            orders[node.number] = with_channels_last(rank) if last else original(rank)
            continue
        numbers = (each.number for each in node.operands if isinstance(each, Node))
        order = next(orders[number] for number in numbers if number in orders)
        if len(order) == len(node.shape):
            orders[node.number] = order
    return orders


def _wish(node: Node, place: int, own: Order | None, windows: Set[int]) -> Order | None:
    """Return the order in which a node should read an operand, given that of its result."""
    rank = len(node.operands[place].shape)
    if node.number in windows and place == 0:
        return with_channels_last(rank)
    if node.operation == "Transpose":
        return None if own is None else tuple(node.attributes["perm"][axis] for axis in own)
    if place not in places_of_followed(node):
        return original(rank)
    if own is None:
        return None
    wish = order_ahead(node, own)
    if node.operation == "Reshape":
        return wish
    shape = node.operands[place].shape
    fits = wish is not None and len(wish) == rank
    return wish if fits and not (_is_both(node.shape) and not _is_both(shape)) else None


def _is_both(shape: tuple[int, ...]) -> bool:
    """Return whether the original order and channels last are the same, for lack of images."""
    rank = len(shape)
    return significant(original(rank), shape) == significant(with_channels_last(rank), shape)


class _Value:
    """The forms, one for each order, of a value of the original graph.

    A transpose shares the forms of its operand, so that each is emitted once.
    """

    def __init__(
        self, shape: tuple[int, ...], forms: dict[Order, Operand], axes: Order | None = None
    ) -> None:
        self.shape = shape
        #: By order of the axes of the first value that has them.
        self._forms = forms
        #: Axes of that value, by axis of this one.
        self._axes = axes or original(len(shape))

    def transpose(self, perm: Order) -> _Value:
        """Return the transposed value."""
        axes = tuple(self._axes[axis] for axis in perm)
        return _Value(_permute(self.shape, perm), self._forms, axes)

    @property
    def orders(self) -> list[Order]:
        """Orders in which it exists."""
        return [tuple(map(self._axes.index, order)) for order in self._forms]

    def is_free(self, order: Order) -> bool:
        """Return whether an order needs no transposes."""
        if any(isinstance(form, Constant) for form in self._forms.values()):
            return True
        axes = significant(order, self.shape)
        return any(significant(each, self.shape) == axes for each in self.orders)

    def cost(self, order: Order) -> int:
        """Count the bytes to transpose for an order."""
        return 0 if self.is_free(order) else count_bytes(next(iter(self._forms.values())))

    def form(self, order: Order, builder: GraphBuilder) -> Operand:
        """Return the value in an order; emits it where it does not exist yet."""
        key = tuple(self._axes[axis] for axis in order)
        if key not in self._forms:
            self._forms[key] = self._emit_form(order, builder)
        return self._forms[key]

    def _emit_form(self, order: Order, builder: GraphBuilder) -> Operand:
        axes = significant(order, self.shape)
        forms = [*zip(self.orders, self._forms.values(), strict=True)]
        for existing, form in forms:
            if significant(existing, self.shape) == axes:
                return builder.emit("Reshape", form, shape=_permute(self.shape, order))
        existing, form = forms[0]
        return builder.emit("Transpose", form, perm=tuple(map(existing.index, order)))


class _Walk:
    """Writes a graph anew, node by node."""

    def __init__(
        self,
        windows: Set[int],
        wishes: Mapping[int, Order],
        tails: Set[int],
        *,
        early: bool,
    ) -> None:
        """Start with no value.

        Args:
            wishes: the order in which values are read in the end, by number.
            tails: numbers of products and of what is computed with them.
            early: whether what costs the same now and later is transposed now.
        """
        self._windows, self._wishes, self._early = windows, wishes, early
        self._tails = tails
        self._builder = GraphBuilder()
        self._values: dict[int, _Value] = {}
        #: Of constants, by what they are.
        self._constants: dict[int, _Value] = {}

    def rewritten(self, graph: Graph) -> Graph:
        """Return the graph."""
        for node in graph.nodes:
            self._values[node.number] = self._rewrite(node)
        results = [self._form(node, original(len(node.shape))) for node in graph.outputs]
        return self._builder.finish(results)

    def _rewrite(self, node: Node) -> _Value:
        builder = self._builder
        if node.operation == "input":
            value: Operand = builder.add_input(node.name, node.shape, node.dtype)
            return _Value(node.shape, {original(len(node.shape)): value})
        if node.operation == "Transpose":
            return self._value(node.operands[0]).transpose(node.attributes["perm"])
        if node.number in self._windows:
            last = with_channels_last(len(node.shape))
            image, *weights = node.operands
            operands = [self._form(image, last), *map(self._plain, weights)]
            attributes = {**node.attributes, "channels_last": True}
            return _Value(node.shape, {last: builder.emit(node.operation, *operands, **attributes)})
        order = self._choose_order(node)
        result = original(len(node.shape)) if order is None else order_behind(node, order)
        assert result is not None
        if node.operation == "Reshape" and order is not None:
            if self._pleases(node, result):
                result = self._wishes.get(node.number, result)
            source, shape = self._form(node.operands[0], order), _permute(node.shape, result)
            return _Value(node.shape, {result: builder.emit("Reshape", source, shape=shape)})
        return _Value(node.shape, {result: self._emit(node, order)})

    def _value(self, operand: Operand) -> _Value:
        if isinstance(operand, Node):
            return self._values[operand.number]
        plain = original(len(operand.shape))
        fresh = _Value(operand.shape, {plain: operand})
        return self._constants.setdefault(id(operand), fresh)

    def _form(self, operand: Operand, order: Order) -> Operand:
        return self._value(operand).form(order, self._builder)

    def _plain(self, operand: Operand) -> Operand:
        return self._form(operand, original(len(operand.shape)))

    def _choose_order(self, node: Node) -> Order | None:
        """Choose the order of a node's operands; ``None`` if they keep the original one."""
        followed = [node.operands[place] for place in places_of_followed(node)]
        if not followed:
            return None
        rank = max(len(each.shape) for each in followed)
        if node.operation == "Expand":
            rank = len(node.shape)
        orders = [
            order
            for each in followed
            if isinstance(each, Node) and len(each.shape) == rank
            for order in self._value(each).orders
        ]
        if node.number in self._wishes:
            orders += filter(None, [order_ahead(node, self._wishes[node.number])])
        orders.append(original(rank))

        pairs = ((order, order_behind(node, order)) for order in orders)
        results = {order: result for order, result in pairs if result is not None}

        def cost(order: Order) -> tuple[int, int]:
            costs = [self._cost(each, order) for each in followed]
            products = (isinstance(x, Node) and x.number in self._tails for x in followed)
            now = sum(costs)
            # Unless it is in the epilogue of its product, it is read and written.
            if node.number in self._tails and any(map(min, costs, products)):
                now += 2 * count_bytes(node)
            later = 0 if self._pleases(node, results[order]) else count_bytes(node)
            return now + later, later if self._early else now

        return min(results, key=cost)

    def _pleases(self, node: Node, order: Order) -> bool:
        """Return whether a result has the order in which it is read."""
        wish = self._wishes.get(node.number, order)
        return significant(order, node.shape) == significant(wish, node.shape)

    def _cost(self, operand: Operand, order: Order) -> int:
        value = self._value(operand)
        return value.cost(_of_rank(order, len(value.shape)))

    def _emit(self, node: Node, order: Order | None) -> Operand:
        """Emit a node that reads its operands in an order."""
        builder = self._builder
        if order is None or order == original(len(order)):
            return builder.copy(node, [*map(self._plain, node.operands)])
        places = places_of_followed(node)
        full = any(isinstance(x, Node) and len(x.shape) == len(order) for x in node.operands)
        fewer_axes = full and _is_elementwise(node)
        operands = [
            self._align(each, order, fewer_axes) if place in places else self._plain(each)
            for place, each in enumerate(node.operands)
        ]
        return builder.emit(node.operation, *operands, **moved_attributes(node, order))

    def _align(self, operand: Operand, order: Order, fewer_axes: bool) -> Operand:
        """Permute an operand, with as many axes, of which a constant may lack the first."""
        missing = len(order) - len(operand.shape)
        value = self._form(operand, _of_rank(order, len(operand.shape)))
        shape = _permute((1,) * missing + operand.shape, order)
        if fewer_axes and isinstance(operand, Constant):
            shape = tuple(dropwhile(lambda extent: extent == 1, shape))
        return value if value.shape == shape else self._builder.emit("Reshape", value, shape=shape)


def _of_rank(order: Order, rank: int) -> Order:
    """Return the order of a tensor's last axes among themselves."""
    missing = len(order) - rank
    return tuple(axis - missing for axis in order if axis >= missing)
