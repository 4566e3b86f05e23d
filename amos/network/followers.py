"""Followers: what is done to each element behind an anchor, as the text of an epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod

import numpy as np

from amos.network.anchors import Anchor
from amos.network.graph import Constant, Node, Operand
from amos.network.levels import inverse_of

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
#: What bytes stay bytes under: sums and products of them wrap around, those of an epilogue do not.
_KEEPING = frozenset({*_PAIRS, "Cast"})
#: Bytes, by the function that makes them; what is narrower than sums; and all that is read.
_CASTS = {"uint8": "u8", "int8": "s8"}
_NARROW = frozenset({*_CASTS, "bfloat16"})
_DTYPES = ("float32", "int32", *_NARROW)
#: Their smallest and largest numbers.
_BOUNDS = frozenset(bound for name in _CASTS for bound in (np.iinfo(name).min, np.iinfo(name).max))
#: What constants are called by what is done with them; others are biases.
_NAMES = {"Mul": "scale", "Div": "inverse", "Max": "low", "Min": "high"}
#: Signs whose sides may change places: one sum is one task, however it was written.
_COMMUTING = ("Add", "Mul")
#: Characters of the longest epilogue: what is read twice is written twice.
_LONGEST = 1000


@dataclass
class Chain:
    """Nodes behind an anchor whose results are elements of one epilogue.

    Attributes:
        anchor: what they stand behind.
        text: of the epilogue; ``"acc"`` where nothing follows.
        reads: value of each tensor that it reads, with the shape under which it is read.
        nodes: what it computes, the last one the result.
    """

    anchor: Anchor
    text: str = "acc"
    reads: dict[str, tuple[Operand, tuple[int, ...]]] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()


def chain_behind(
    node: Node, anchor: Anchor, later: Sequence[Node], users: Mapping[int, tuple[Node, ...]]
) -> Chain:
    """The longest chain behind a node that nothing else reads from.

    Args:
        node: the anchor's.
        anchor: as a statement.
        later: nodes behind it, in order, that belong to no other group.
        users: who reads each node; a reader that is not among ``later`` ends the chain.
    """
    writer = _Writer(anchor, node)
    best = writer.chain((node,))
    inside = {node.number: node}
    free = {each.number for each in later}
    for each in later:
        if not any(isinstance(x, Node) and x.number in inside for x in each.operands):
            continue
        if any(user.number not in free for one in inside.values() for user in users[one.number]):
            break
        if not writer.add(each):
            break
        inside[each.number] = each
        read_outside = {n for n in inside if any(u.number not in inside for u in users[n])}
        # What is narrow is stored as such, rather than as the floats that it becomes elsewhere.
        wider = best.nodes[-1].dtype in _NARROW and each.dtype not in _NARROW
        if read_outside <= {each.number} and not wider:
            best = writer.chain(tuple(inside.values()))
    return replace(best, nodes=_with_widened(best.nodes, writer.widened, users))


def _with_widened(
    nodes: tuple[Node, ...], widened: Mapping[int, Node], users: Mapping[int, tuple[Node, ...]]
) -> tuple[Node, ...]:
    """The nodes of a chain and, before its last one, those of others that only it reads.

    The anchor reads floats as they are: what it multiplies is not widened in the epilogue.
    """
    inside = {node.number for node in nodes[1:]}
    before: list[Node] = []
    for node in sorted(widened.values(), key=lambda node: -node.number):
        if {user.number for user in users[node.number]} <= inside:
            inside.add(node.number)
            before.append(node)
    return (*nodes[:-1], *before, nodes[-1]) if len(nodes) > 1 else nodes


def _clamped(node: Node) -> Node | None:
    """What a conversion to bytes is of, without rounding and bounds that it has by itself.

    ``None`` if its values may lie outside of the dtype, or between integers: a conversion
    alone cuts off what is behind the point, and an epilogue rounds.
    """
    info, (clamped,) = np.iinfo(node.dtype), node.operands
    above = _bounded(clamped, "Min")
    below = _bounded(above[0], "Max") if above else None
    if above is None or below is None or above[1] != info.max or below[1] < info.min:
        return None
    source = below[0]
    if not _whole(source) or not below[1].is_integer():
        return None
    if below[1] > info.min:
        return above[0]
    rounded = source.operands[0] if source.operation == "Round" else source
    return rounded if isinstance(rounded, Node) else None


def _whole(value: Operand) -> bool:
    """Whether all elements are known to be integers, whatever their dtype."""
    if "float" not in value.dtype:
        return True
    if isinstance(value, Constant):
        return bool((value.array == np.rint(value.array)).all())
    exact = value.operation in ("Add", "Sub", "Max", "Min", "Cast")
    return value.operation == "Round" or (exact and all(map(_whole, value.operands)))


def _bounded(node: Operand, operation: str) -> tuple[Node, float] | None:
    """What is compared with a number, and the number."""
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
        #: What is read as bytes and widened here, rather than by the engine.
        self.widened: dict[int, Node] = {}
        self.reads: dict[str, tuple[Operand, tuple[int, ...]]] = {}
        #: The anchor's.
        self.node = node

    def chain(self, nodes: tuple[Node, ...]) -> Chain:
        text = self.texts[nodes[-1].number]
        reads = {name: read for name, read in self.reads.items() if f"{name}[" in text}
        return Chain(self.anchor, text, reads, nodes)

    def add(self, node: Node) -> bool:
        """Whether a node is elementwise and could be written."""
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
            left, right = (self.operand(operand, node) for operand in node.operands)
            if left is None or right is None:
                return None
            if name in _COMMUTING and "acc" in right and "acc" not in left:
                left, right = right, left
            if name in _PAIRS:
                return f"{_PAIRS[name]}({left}, {right})"
            if name == "Div" and (quotient := self.quotient(left, node)) is not None:
                return quotient
            return f"({left} {_SIGNS[name]} {right})"
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
        """The text of a division by a scale, if its rounded results need none."""
        divisor = node.operands[1]
        if self.node.dtype != "int32" or not isinstance(divisor, Constant):
            return None
        inverse = inverse_of(divisor.array)
        if inverse is None:
            return None
        names = [self.read(Constant(part), node) for part in inverse]
        return f"times({text}, {', '.join(map(str, names))})"

    def cast(self, node: Node, text: str) -> str | None:
        """The text of a conversion of values of the chain; ``None`` where it could lose some."""
        before = node.operands[0].dtype
        if node.dtype == "float32":
            return text if before == "float32" else f"f32({text})"
        if node.dtype == "bfloat16":
            return f"bf16({text})" if before == "float32" else None
        if node.dtype not in _CASTS:
            return text if node.dtype == "int32" and before in _CASTS else None
        levels = _clamped(node)
        if levels is None:
            return None
        return f"{_CASTS[node.dtype]}({self.texts[levels.number]})"

    def operand(self, operand: Operand, node: Node) -> str | None:
        """The text of what a node reads; ``None`` if it cannot be read by element."""
        if isinstance(operand, Node) and operand.number in self.texts:
            return self.texts[operand.number]
        if isinstance(operand, Node) and (text := self.of_bytes(operand)) is not None:
            return text
        return self.read(operand, node)

    def of_bytes(self, node: Node) -> str | None:
        """The text of what is made of bytes element by element; they are a quarter to read."""
        if node.operation not in ("Cast", "Sub", "Mul"):
            return None
        if node.dtype not in ("float32", "int32"):  # a truth value is not its byte
            return None
        first, *rest = node.operands
        if not isinstance(first, Node) or any(not isinstance(each, Constant) for each in rest):
            return None
        text = self.read(first, node) if first.dtype in _NARROW else self.of_bytes(first)
        if text is None:
            return None
        if node.operation == "Cast":
            text = f"f32({text})" if node.dtype == "float32" else text
        else:
            factor = self.read(rest[0], node)
            if factor is None:
                return None
            text = f"({text} {_SIGNS[node.operation]} {factor})"
        self.widened[node.number] = node
        return text

    def read(self, operand: Operand, node: Node) -> str | None:
        """The text of a tensor's element, or of a number."""
        if operand.dtype not in _DTYPES:
            return None
        if isinstance(operand, Constant) and prod(operand.shape) == 1:
            value = operand.array.reshape(()).item()
            if not self.shared(node, value):
                return repr(value) if isfinite(value) else None  # an epilogue has no others
        index, shape = self.access(operand.shape)
        if index is None:
            return None
        for name, (other, _) in self.reads.items():
            if other is operand:
                return f"{name}[{index}]"
        name = self.name(operand, node, shape)
        self.reads[name] = operand, shape
        return f"{name}[{index}]"

    def shared(self, node: Node, value: float) -> bool:
        """Whether a number is read as a tensor, so that layers that differ in it are one task.

        Quantized layers do in all but the bounds of their dtypes.
        """
        return self.node.dtype == "int32" and not (node.operation in _PAIRS and value in _BOUNDS)

    def access(self, shape: tuple[int, ...]) -> tuple[str | None, tuple[int, ...]]:
        """How a tensor that is broadcast to the result is indexed, and its shape as such."""
        extents = self.anchor.extents or {}
        missing = len(self.shape) - len(shape)
        if missing < 0:
            return None, ()
        names: list[str] = []
        for d, extent in enumerate(shape):
            # What has a single step moves nothing.
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
        count = sum(other.rstrip("0123456789") == name for other in self.reads)
        return f"{name}{count + 1}" if count else name
