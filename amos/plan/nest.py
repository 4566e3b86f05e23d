"""The loop nest that a mapping leaves around and inside the intrinsic calls.

After the physical mapping (AMOS, section 5.1) three kinds of loops exist:

* *outer* loops: software iterations that no intrinsic iteration took;
* *tile* loops, one for each intrinsic iteration: which slice of the fused index
  a call works on (the ``floor(… / 16)`` of the base addresses);
* *lanes*, inside the call: the slot within the fragment (the ``mod 16``).

A leading iteration of a fused group whose trailing part is a multiple of the
intrinsic's extent never varies within one call. It is peeled off and becomes an
outer loop, which changes no call but frees its order and its staging.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from amos.ir import Kind
from amos.mapping.mapping import Mapping


@dataclass(frozen=True)
class Loop:
    """A loop around the calls: an outer or a tile loop."""

    name: str
    extent: int
    kind: Kind


@dataclass(frozen=True)
class Group:
    """The software iterations fused into one intrinsic iteration, after peeling.

    Attributes:
        target: name of the intrinsic iteration.
        lanes: its extent, the slots of one call.
        members: software iterations, most significant first.
    """

    target: str
    kind: Kind
    lanes: int
    members: tuple[str, ...]
    radices: tuple[int, ...]

    @property
    def size(self) -> int:
        """Extent of the fused index; 1 for an empty group."""
        return prod(self.radices)

    @property
    def tiles(self) -> int:
        """Number of slices of the fused index, the last one possibly partial."""
        return -(-self.size // self.lanes)

    @property
    def is_padded(self) -> bool:
        """True if the last slice has slots beyond the fused index."""
        return self.tiles * self.lanes != self.size

    @property
    def tile(self) -> str:
        """Name of the tile loop. The dot keeps it apart from software iterations."""
        return f"{self.target}.tile"

    @property
    def lane(self) -> str:
        """Name of the lane."""
        return f"{self.target}.lane"

    def decode(self, fused: Any) -> dict[str, Any]:
        """Split a fused index into software iterations, as mixed-radix digits.

        Works on integers, NumPy arrays and TVM expressions alike.
        """
        values: dict[str, Any] = {}
        weight = self.size
        for name, radix in zip(self.members, self.radices, strict=True):
            digit = fused if weight == self.size else fused % weight
            weight //= radix
            values[name] = digit if weight == 1 else digit // weight
        return values


@dataclass(frozen=True)
class Nest:
    """Loops and groups of one mapping."""

    mapping: Mapping

    @cached_property
    def groups(self) -> dict[str, Group]:
        """One group for each intrinsic iteration, in the intrinsic's order."""
        return {group.target: group for group, _ in self._split.values()}

    @cached_property
    def outer(self) -> tuple[Loop, ...]:
        """Unmatched and peeled software iterations, in the operator's loop order."""
        free = set(self.mapping.outer).union(*(peeled for _, peeled in self._split.values()))
        return tuple(
            Loop(it.name, it.extent, it.kind)
            for it in self.mapping.operator.iterations
            if it.name in free
        )

    @cached_property
    def tiles(self) -> tuple[Loop, ...]:
        """Tile loops, in the intrinsic's order."""
        return tuple(Loop(g.tile, g.tiles, g.kind) for g in self.groups.values())

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Every loop around the calls: outer loops, then tile loops."""
        return self.outer + self.tiles

    @property
    def spatial(self) -> tuple[Loop, ...]:
        """Loops that move the destination fragment."""
        return tuple(loop for loop in self.loops if loop.kind == "spatial")

    @property
    def reduce(self) -> tuple[Loop, ...]:
        """Loops that accumulate into the same destination fragment."""
        return tuple(loop for loop in self.loops if loop.kind == "reduce")

    @property
    def calls(self) -> int:
        """Number of intrinsic calls."""
        return prod(loop.extent for loop in self.loops)

    @cached_property
    def _split(self) -> dict[str, tuple[Group, tuple[str, ...]]]:
        extents = self.mapping.operator.extents
        split = {}
        for it in self.mapping.intrinsic.iterations:
            members = self.mapping.groups[it.name]
            fused = _varying_members(members, extents, it.extent)
            radices = tuple(extents[name] for name in fused)
            group = Group(it.name, it.kind, it.extent, fused, radices)
            split[it.name] = (group, members[: len(members) - len(fused)])
        return split


def _varying_members(
    members: tuple[str, ...], extents: MappingType[str, int], lanes: int
) -> tuple[str, ...]:
    """Return the trailing members that vary within a call."""
    start = 0
    while start + 1 < len(members):
        trailing = prod(extents[name] for name in members[start + 1 :])
        if trailing % lanes and extents[members[start]] > 1:
            break
        start += 1
    return members[start:]
