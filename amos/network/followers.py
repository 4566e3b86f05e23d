"""Followers: elementwise operators behind an anchor, as the text of an epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod

import numpy as np

from amos.ir import dtype
from amos.network.anchors import Anchor
from amos.network.graph import Constant, Node, Operand
from amos.network.passes.levels import inverse_of
from amos.network.shapes import HALVES

#: Signs and functions of the epilogue language by the names of operators.
_SIGNS = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/"}
_FUNCTIONS = {
    "Swish": "silu",
    **{
        name: name.lower()
        for name in ("Abs", "Erf", "Exp", "Relu", "Round", "Sigmoid", "Sqrt", "Tanh")
    },
}
_GELU = {"none": "gelu", "tanh": "gelu_tanh"}
_PAIRS = {"Max": "max", "Min": "min"}
#: Operators on bytes that an epilogue computes; sums of bytes would have to wrap around.
_KEEPING = frozenset({*_PAIRS, "Cast"})
#: Functions that convert to bytes; dtypes narrower than sums; and all dtypes that can be read.
_CASTS = {"uint8": "u8", "int8": "s8"}
_NARROW = frozenset({*_CASTS, *HALVES})
_DTYPES = ("float32", "int32", *_NARROW)
#: Their smallest and largest numbers.
_BOUNDS = frozenset(bound for name in _CASTS for bound in (np.iinfo(name).min, np.iinfo(name).max))
#: Numbers of a function of floats, as 3 and 6 of ``hardswish``, are multiples of this.
_GRID = 2.0**-4
#: Names of constants by the operator that reads them; of others they are biases.
_NAMES = {"Mul": "scale", "Div": "inverse", "Max": "low", "Min": "high"}
#: Commutative signs: operands are put in order, so that equal sums are one task.
_COMMUTING = ("Add", "Mul")
#: Characters of the longest epilogue, in which a value that is read twice is written twice.
_LONGEST = 1000


@dataclass
class FollowedAnchor:
    """An anchor and followers, which are one epilogue.

    Attributes:
        anchor: first node of the chain.
        text: of the epilogue; ``"acc"`` without followers.
        reads: value of each tensor that it reads, with the shape under which it is read.
        nodes: of the chain, the last one the result.
    """

    anchor: Anchor
    text: str = "acc"
    reads: dict[str, tuple[Operand, tuple[int, ...]]] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()


def follow_anchor(
    node: Node, anchor: Anchor, later: Sequence[Node], users: Mapping[int, tuple[Node, ...]]
) -> FollowedAnchor:
    """Build the longest chain of an anchor of which only the result is read by other nodes.

    Args:
        later: further nodes in order that belong to no group.
        users: readers of each node; one that is not among ``later`` ends the chain.
    """
    writer = _Writer(anchor, node)
    best = writer.chain((node,))
    fused = {node.number: node}
    free = {follower.number for follower in later}
    for follower in later:
        if not any(isinstance(x, Node) and x.number in fused for x in follower.operands):
            continue
        if any(user.number not in free for number in fused for user in users[number]):
            break
        if not writer.add(follower):
            break
        fused[follower.number] = follower
        results = {n for n in fused if any(user.number not in fused for user in users[n])}
        # Narrow results are stored as such; their readers widen them.
        is_wider = best.nodes[-1].dtype in _NARROW and follower.dtype not in _NARROW
        if results <= {follower.number} and not is_wider:
            best = writer.chain(tuple(fused.values()))
    return replace(best, nodes=_add_widened(best.nodes, writer.widened, users))


def _add_widened(
    nodes: tuple[Node, ...], widened: Mapping[int, Node], users: Mapping[int, tuple[Node, ...]]
) -> tuple[Node, ...]:
    """Add the conversions of bytes that only a chain reads, ahead of its last node.

    Operands of the anchor are not widened in the epilogue.
    """
    own = {node.number for node in nodes[1:]}
    before: list[Node] = []
    for node in sorted(widened.values(), key=lambda node: -node.number):
        if {user.number for user in users[node.number]} <= own:
            own.add(node.number)
            before.append(node)
    return (*nodes[:-1], *before, nodes[-1]) if len(nodes) > 1 else nodes


def _strip_clamping(node: Node) -> Node | None:
    """Strip rounding and clamping off a conversion to bytes; return the rounded operand.

    ``None`` if it is not rounded or not clamped to the dtype: a conversion alone truncates, that
    of an epilogue rounds and clamps.
    """
    info, (clamped,) = np.iinfo(node.dtype), node.operands
    above = _match_bound(clamped, "Min")
    below = _match_bound(above[0], "Max") if above else None
    if above is None or below is None or above[1] != info.max or below[1] < info.min:
        return None
    source = below[0]
    if not _is_integral(source) or not below[1].is_integer():
        return None
    if below[1] > info.min:
        return above[0]
    rounded = source.operands[0] if source.operation == "Round" else source
    return rounded if isinstance(rounded, Node) else None


def _is_integral(value: Operand) -> bool:
    """Return whether all elements are known to be integers, whatever their dtype."""
    if "float" not in value.dtype:
        return True
    if isinstance(value, Constant):
        return bool((value.array == np.rint(value.array)).all())
    exact = value.operation in ("Add", "Sub", "Max", "Min", "Cast")
    return value.operation == "Round" or (exact and all(map(_is_integral, value.operands)))


def _match_bound(node: Operand, operation: str) -> tuple[Node, float] | None:
    """Return the operand of a maximum or minimum with a number, and the number."""
    if not isinstance(node, Node) or node.operation != operation:
        return None
    source, bound = node.operands
    if not isinstance(source, Node) or not isinstance(bound, Constant) or prod(bound.shape) != 1:
        return None
    return source, float(bound.array.reshape(()))


class _Writer:
    """Writes epilogues of the nodes behind one anchor."""

    def __init__(self, anchor: Anchor, node: Node) -> None:
        self.anchor, self.shape = anchor, node.shape
        self.texts: dict[int, str] = {node.number: "acc"}
        #: Nodes that widen bytes, which the epilogue reads in their place.
        self.widened: dict[int, Node] = {}
        self.reads: dict[str, tuple[Operand, tuple[int, ...]]] = {}
        #: The anchor's.
        self.node = node

    def chain(self, nodes: tuple[Node, ...]) -> FollowedAnchor:
        text = self.texts[nodes[-1].number]
        reads = {name: read for name, read in self.reads.items() if f"{name}[" in text}
        return FollowedAnchor(self.anchor, text, reads, nodes)

    def add(self, node: Node) -> bool:
        """Return whether a node is elementwise and could be written."""
        if node.shape != self.shape or node.dtype not in _DTYPES:
            return False
        if node.dtype in _CASTS and node.operation not in _KEEPING:
            return False
        text = self.expression(node)
        if text is None or len(text) > _LONGEST:
            return False
        self.texts[node.number] = text
        return True

    def expression(self, node: Node) -> str | None:
        name = node.operation
        if name in _SIGNS or name in _PAIRS:
            x, y = (self.operand(operand, node) for operand in node.operands)
            if x is None or y is None:
                return None
            if name in _COMMUTING and "acc" in y and "acc" not in x:
                x, y = y, x
            if name in _PAIRS:
                return f"{_PAIRS[name]}({x}, {y})"
            if name == "Div" and (quotient := self.quotient(x, node)) is not None:
                return quotient
            return f"({x} {_SIGNS[name]} {y})"
        first = self.operand(node.operands[0], node) if node.operands else None
        if first is None:
            return None
        if name == "Cast":
            return self.cast(node, first)
        if name == "Gelu":
            return f"{_GELU[node.attributes['approximate']]}({first})"
        if name == "Neg":
            return f"({first} * -1.0)"
        if name in _FUNCTIONS:
            return f"{_FUNCTIONS[name]}({first})"
        return None

    def quotient(self, text: str, node: Node) -> str | None:
        """Write a division by a scale as products, if these round to the same integers."""
        divisor = node.operands[1]
        if self.node.dtype != "int32" or not isinstance(divisor, Constant):
            return None
        inverse = inverse_of(divisor.array)
        if inverse is None:
            return None
        names = [self.read(Constant(array), node) for array in inverse]
        return f"times({text}, {', '.join(map(str, names))})"

    def cast(self, node: Node, text: str) -> str | None:
        """Write a conversion of values of the chain; ``None`` where it could lose some."""
        before = node.operands[0].dtype
        if node.dtype == "float32":
            return text if before == "float32" else f"f32({text})"
        if node.dtype in HALVES:
            return f"{dtype(node.dtype).short}({text})" if before == "float32" else None
        if node.dtype not in _CASTS:
            return text if node.dtype == "int32" and before in _CASTS else None
        levels = _strip_clamping(node)
        if levels is None:
            return None
        return f"{_CASTS[node.dtype]}({self.texts[levels.number]})"

    def operand(self, operand: Operand, node: Node) -> str | None:
        """Write an operand of a node; ``None`` if it cannot be read by element."""
        if isinstance(operand, Node) and operand.number in self.texts:
            return self.texts[operand.number]
        if isinstance(operand, Node) and (text := self.of_bytes(operand)) is not None:
            return text
        return self.read(operand, node)

    def of_bytes(self, node: Node) -> str | None:
        """Write bytes that are widened and scaled here: they are a quarter of the floats."""
        if node.operation not in ("Cast", "Sub", "Mul"):
            return None
        if node.dtype not in ("float32", "int32"):  # a truth value is not its byte
            return None
        first, *levels = node.operands
        if not isinstance(first, Node) or any(not isinstance(each, Constant) for each in levels):
            return None
        text = self.read(first, node) if first.dtype in _NARROW else self.of_bytes(first)
        if text is None:
            return None
        if node.operation == "Cast":
            text = f"f32({text})" if node.dtype == "float32" else text
        else:
            factor = self.read(levels[0], node)
            if factor is None:
                return None
            text = f"({text} {_SIGNS[node.operation]} {factor})"
        self.widened[node.number] = node
        return text

    def read(self, operand: Operand, node: Node) -> str | None:
        """Write a tensor's element, or a number."""
        if operand.dtype not in _DTYPES:
            return None
        if isinstance(operand, Constant) and prod(operand.shape) == 1:
            value = operand.array.reshape(()).item()
            if not self._is_parameter(node, value):
                return repr(value) if isfinite(value) else None  # an epilogue has no others
        index, shape = self.access(operand.shape)
        if index is None:
            return None
        for name, (existing, _) in self.reads.items():
            if existing is operand:
                return f"{name}[{index}]"
        name = self.name(operand, node, shape)
        self.reads[name] = operand, shape
        return f"{name}[{index}]"

    def _is_parameter(self, node: Node, value: float) -> bool:
        """Return whether a number is read as a tensor, so that layers with other ones are one task.

        Quantized layers differ in all numbers but the bounds of their dtypes; those of floats in
        factors and summands that were learnt, which are no multiples of a power of two.
        """
        if self.node.dtype == "int32":
            return not (node.operation in _PAIRS and value in _BOUNDS)
        return node.operation in _SIGNS and isfinite(value) and bool(value % _GRID)

    def access(self, shape: tuple[int, ...]) -> tuple[str | None, tuple[int, ...]]:
        """Return the index of a tensor that is broadcast to the result, and its shape."""
        extents = self.anchor.extents or {}
        missing = len(self.shape) - len(shape)
        if missing < 0:
            return None, ()
        names: list[str] = []
        for d, extent in enumerate(shape):
            # An axis of a single element is not indexed.
            if extent not in (1, self.shape[missing + d]):
                return None, ()
            if extent > 1:
                names += self.anchor.axes[missing + d]
        if not names:
            return "0", (1,)
        return ",".join(names), tuple(extents[name] for name in names)

    def name(self, operand: Operand, node: Node, shape: tuple[int, ...]) -> str:
        if isinstance(operand, Constant):
            name = _NAMES.get(node.operation, "bias")
        else:
            name = "residual" if len(shape) > 1 else "other"
        count = sum(used.rstrip("0123456789") == name for used in self.reads)
        return f"{name}{count + 1}" if count else name
