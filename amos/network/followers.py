"""Followers: what is done to each element behind an anchor, as the text of an epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from amos.network.anchors import Anchor
from amos.network.graph import Constant, Node, Operand

__all__ = ["Chain", "chain_behind"]

#: Signs and functions of the epilogue language by the engine's names.
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}
_PAIRS = {"maximum": "max", "minimum": "min"}
#: Signs whose sides may change places: one sum is one task, however it was written.
_COMMUTING = ("add", "multiply")
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
        if read_outside <= {each.number}:
            best = writer.chain(tuple(inside.values()))
    return best


class _Writer:
    """Writes epilogues of the nodes behind one anchor."""

    def __init__(self, anchor: Anchor, node: Node) -> None:
        self.anchor, self.shape = anchor, node.shape
        self.texts: dict[int, str] = {node.number: "acc"}
        self.reads: dict[str, tuple[Operand, tuple[int, ...]]] = {}
        self.last = node

    def chain(self, nodes: tuple[Node, ...]) -> Chain:
        text = self.texts[nodes[-1].number]
        reads = {name: read for name, read in self.reads.items() if f"{name}[" in text}
        return Chain(self.anchor, text, reads, nodes)

    def add(self, node: Node) -> bool:
        """Whether a node is elementwise and could be written."""
        if node.shape != self.shape or node.dtype != "float32":
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
            return f"({left} {_SIGNS[name]} {right})"
        first = self.operand(node.operands[0], node) if node.operands else None
        if first is None:
            return None
        if name == "nn.relu":
            return f"relu({first})"
        if name == "clip":
            low, high = (float(value.value) for value in node.expression.args[1:])
            return f"clip({first}, {low!r}, {high!r})"
        return None

    def operand(self, operand: Operand, node: Node) -> str | None:
        """The text of what a node reads; ``None`` if it cannot be read by element."""
        if isinstance(operand, Node) and operand.number in self.texts:
            return self.texts[operand.number]
        if operand.dtype != "float32":
            return None
        if isinstance(operand, Constant) and prod(operand.shape) == 1:
            return repr(float(operand.array.reshape(())))
        index, shape = self.access(operand.shape)
        if index is None:
            return None
        for name, (other, _) in self.reads.items():
            if other is operand:
                return f"{name}[{index}]"
        name = self.name(operand, node, shape)
        self.reads[name] = operand, shape
        return f"{name}[{index}]"

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
            name = "scale" if node.operation == "multiply" else "bias"
        else:
            name = "residual" if len(shape) > 1 else "other"
        count = sum(other.rstrip("0123456789") == name for other in self.reads)
        return f"{name}{count + 1}" if count else name
