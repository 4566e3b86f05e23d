"""A kernel of a chain before it is written: tiles, memories, and what each loop is (Lift)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from amos.chains import Loop, LoopNest, ParallelSpace, Tiling
from amos.chains.group_limits import GroupLimits
from amos.chains.tiling import TiledStep, read_tiles
from amos.errors import AmosError, RecordError
from amos.intrinsics import Intrinsic
from amos.ir import Chain
from amos.machine import Machine
from amos.opencl.plan import unit_of


@dataclass(frozen=True, repr=False)
class ParallelCandidate:
    """A chain in tiles whose loops run on work-groups and work-items.

    Attributes:
        tiling: the chain in tiles; rows are whole.
        choices: what each loop is, such as ``"group 0"``.
        memory: of temporaries, ``"local"`` where omitted.
        copies: inputs of which each tile has a copy, and its memory.
        items: work-items of a group along a dimension at most.

    Raises:
        UnknownNameError: a name is no temporary, or no input.
        ScheduleError: there is no such memory, or rows roll.
    """

    tiling: Tiling
    choices: Mapping[str, str] = field(hash=False)
    memory: Mapping[str, str] = field(default_factory=dict, hash=False)
    copies: Mapping[str, str] = field(default_factory=dict, hash=False)
    items: int = 16

    @property
    def chain(self) -> Chain:
        """What is computed."""
        return self.tiling.chain

    @property
    def intrinsics(self) -> tuple[Intrinsic, ...]:
        """None: loops compute products."""
        return ()

    @cached_property
    def nest(self) -> LoopNest:
        """Its loops."""
        return LoopNest.of(self.tiling, self.memory, self.copies)

    def limits_on(self, machine: Machine | None) -> GroupLimits:
        """What a group may have: the limits of a machine, or only its work-items."""
        if machine is None:
            return GroupLimits(self.items)
        unit = unit_of(machine)
        return GroupLimits(self.items, unit.group_items, unit.local_bytes, unit.item_bytes)

    def violations(self, machine: Machine | None = None) -> tuple[str, ...]:
        """What is wrong with it, in words with the rule; empty if it is valid.

        Args:
            machine: that limits memory and work-items.

        Raises:
            UnknownNameError: there is no such loop.
            ScheduleError: a loop has no value, or one that there is not.
        """
        if self.items < 1:
            return (f"rule work-items: expected 1 or more along a dimension, got {self.items}",)
        space = ParallelSpace(self.nest, limits=self.limits_on(machine))
        return space.violations(self.choices)

    def _extents(self, *levels: str) -> dict[int, int]:
        """The longest loop of some levels along each dimension."""
        longest: dict[int, int] = {}
        for loop in self.nest.loops:
            level, _, dimension = self.choices[loop.name].partition(" ")
            if level in levels:
                longest[int(dimension)] = max(longest.get(int(dimension), 1), loop.extent)
        return longest

    @cached_property
    def group_shape(self) -> dict[int, int]:
        """Work-items of a group along each dimension in use."""
        extents = sorted(self._extents("local", "global").items())
        return {d: self.limits_on(None).items_of(extent) for d, extent in extents}

    @cached_property
    def grid(self) -> dict[int, int]:
        """Work-groups along each dimension in use."""
        parts = {d: -(-n // self.group_shape[d]) for d, n in self._extents("global").items()}
        return dict(sorted((parts | self._extents("group")).items()))

    def stride_of(self, loop: Loop) -> int:
        """By how much a loop's values differ from trip to trip of a work-item."""
        level, _, d = self.choices[loop.name].partition(" ")
        items = self.group_shape.get(int(d), 1) if level in ("local", "global") else 1
        return items * (self.grid.get(int(d), 1) if level in ("group", "global") else 1)

    def step_of(self, name: str) -> TiledStep:
        """The step that writes a tensor."""
        return next(x for x in self.tiling.steps if x.step.output.tensor.name == name)

    @property
    def group_items(self) -> int:
        """Work-items of a group."""
        return prod(self.group_shape.values())

    @property
    def groups(self) -> int:
        """Work-groups."""
        return prod(self.grid.values())

    @property
    def shape(self) -> str:
        """Groups, work-items and what each tile has in which memory, in words."""
        items = " x ".join(map(str, self.group_shape.values())) or "1"
        memories = [f"{x.buffer} {x.memory}" for x in self.nest.allocations]
        return f"{self.groups} of {items} work-items; {', '.join(memories) or 'no memory'}"

    @property
    def parallel(self) -> str:
        """Loops that do not run one trip after another, in words."""
        return ", ".join(f"{name}: {c}" for name, c in self.choices.items() if " " in c) or "none"

    def values(self) -> dict[str, int | str]:
        """Flat values, from which :func:`candidate_from` makes it again."""
        tiles = self.tiling.tiles_text
        values: dict[str, int | str] = {"target": "opencl", "tiles": tiles, "items": self.items}
        values |= {f"memory.{name}": memory for name, memory in self.memory.items()}
        values |= {f"copy.{name}": memory for name, memory in self.copies.items()}
        return values | {f"map.{name}": choice for name, choice in self.choices.items()}

    def row(self) -> dict[str, Any]:
        """Columns of a table of trials, beside the tiles."""
        values = self.values()
        return {name: values[name] for name in values if name not in ("target", "tiles")}

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """What each loop is, behind a row of names."""
        return (("loop", "is"), *self.choices.items())

    def as_dict(self) -> dict[str, Any]:
        """Plain values: tiles, memories, and what each loop is."""
        return {
            "tiles": self.tiling.tiles,
            "memory": dict(self.memory),
            "copies": dict(self.copies),
            "items": self.items,
            "map": dict(self.choices),
        }

    def __str__(self) -> str:
        mapped = ", ".join(f"{name} {choice}" for name, choice in self.choices.items())
        own = [f"{name} {memory}" for name, memory in self.memory.items()]
        own += [f"copy of {name} {memory}" for name, memory in self.copies.items()]
        return "; ".join([f"tiles {self.tiling}", mapped or "no loops", *own])

    def __repr__(self) -> str:
        return f"<kernel of {self.chain.name}: {self}>"


def candidate_from(chain: Chain, values: Mapping[str, int | str]) -> ParallelCandidate:
    """The kernel of a chain whose ``values()`` these are.

    Raises:
        RecordError: the values describe no kernel.
    """
    named: dict[str, dict[str, str]] = {"map": {}, "memory": {}, "copy": {}}
    try:
        for key, value in values.items():
            kind, _, name = key.partition(".")
            if name:
                named[kind][name] = str(value)
        tiling = Tiling.of(chain, read_tiles(str(values["tiles"])))
        items = int(values["items"])
        again = ParallelCandidate(tiling, named["map"], named["memory"], named["copy"], items)
        problems = again.violations()
    except (KeyError, TypeError, ValueError, AmosError) as error:
        raise RecordError(f"the record describes no kernel of its chain: {error}") from error
    if problems:
        raise RecordError(f"the record describes no kernel of its chain: {problems[0]}")
    return again
