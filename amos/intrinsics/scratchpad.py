"""Buffers on chip that an intrinsic's fragments live in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amos.errors import IntrinsicError
from amos.intrinsics.memory import Memory


@dataclass(frozen=True)
class Scratchpad:
    """A buffer of the unit itself; a machine's own buffers are levels.

    Attributes:
        name: its scope in memory statements.
        banks: parts that are accessed independently of each other.
        double: whether it can be filled or emptied while it is in use.
    """

    name: str
    capacity: int
    banks: int
    double: bool
    operands: tuple[str, ...]

    def __str__(self) -> str:
        banks = f" in {self.banks} banks, one for a tile" if self.banks > 1 else ""
        single = "" if self.double else ", which cannot be filled while in use"
        return f"{self.name}, which has {self.capacity} bytes{banks}{single}"


def scratchpads(memory: Sequence[Memory]) -> tuple[Scratchpad, ...]:
    """List the buffers that statements declare by a capacity, each in one way, in their order."""
    pads = []
    for scope in dict.fromkeys(each.register_scope for each in memory if each.capacity):
        users = [each for each in memory if each.register_scope == scope]
        declarations = {(each.capacity, each.banks, each.double) for each in users if each.capacity}
        if len(declarations) > 1:
            sizes = " and ".join(
                f"{size} bytes in {banks} banks" for size, banks, _ in declarations
            )
            raise IntrinsicError(f"memory: buffer {scope!r} has {sizes}; let one statement say it")
        operands = dict.fromkeys(each.operand for each in users)
        pads.append(Scratchpad(scope, *declarations.pop(), tuple(operands)))
    return tuple(pads)
