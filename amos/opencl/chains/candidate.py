"""A kernel of a chain before it is written: tiles, memories, and what each loop is (Lift)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from amos.chains import Loop, LoopNest, ParallelSpace, Tiling
from amos.chains.group_limits import GroupLimits, enclosed_allocations, has_items
from amos.chains.tiling import TiledStep, read_tiles
from amos.errors import AmosError, RecordError
from amos.intrinsics import Intrinsic
from amos.ir import BufferLoad, Chain
from amos.machine import Machine
from amos.opencl.chains.product import VectorProduct, product_from
from amos.opencl.plan import unit_of


@dataclass(frozen=True, repr=False)
class ParallelCandidate:
    """A chain in tiles whose loops run on work-groups and work-items.

    Attributes:
        choices: what each loop is, such as ``"group 0"``.
        memory: of temporaries, ``"local"`` where omitted.
        copies: inputs of which each tile has a copy, and its memory.
        items: work-items of a group along a dimension at most.
        products: those that instructions on vectors compute, by what they write; loops compute
            the others.

    Raises:
        UnknownNameError: a name is no temporary, or no input.
        ScheduleError: there is no such memory, or rows roll.
    """

    tiling: Tiling
    choices: Mapping[str, str] = field(hash=False)
    memory: Mapping[str, str] = field(default_factory=dict, hash=False)
    copies: Mapping[str, str] = field(default_factory=dict, hash=False)
    items: int = 16
    products: Mapping[str, VectorProduct] = field(default_factory=dict, hash=False)

    @property
    def chain(self) -> Chain:
        """What is computed."""
        return self.tiling.chain

    @property
    def intrinsics(self) -> tuple[Intrinsic, ...]:
        """Those of its products."""
        return tuple(each.mapping.intrinsic for each in self.products.values())

    @cached_property
    def nest(self) -> LoopNest:
        """Its loops."""
        spans = {
            f"{name}.{loop}": span
            for name, each in self.products.items()
            for loop, span in each.spans.items()
        }
        return LoopNest.of(self.tiling, self.memory, self.copies, spans)

    def limits_on(self, machine: Machine | None) -> GroupLimits:
        """Return the limits of a group on a machine; without one only those of its work-items."""
        if machine is None:
            return GroupLimits(self.items)
        unit = unit_of(machine)
        return GroupLimits(self.items, unit.group_items, unit.local_bytes, unit.item_bytes)

    def violations(self, machine: Machine | None = None) -> tuple[str, ...]:
        """Explain what is wrong, each with the rule; empty if it is valid.

        Args:
            machine: that limits memory and work-items.

        Raises:
            UnknownNameError: there is no such loop.
            ScheduleError: a loop has no value, or one that there is not.
        """
        if self.items < 1:
            return (f"rule work-items: expected 1 or more along a dimension, got {self.items}",)
        for name, product in self.products.items():
            if problems := tuple(product.problems(self.step_of(name))):
                return problems
        space = ParallelSpace(self.nest, limits=self.limits_on(machine))
        return space.violations(self.choices)

    def _extents(self, *levels: str) -> dict[int, int]:
        """Return the longest loop of some levels along each dimension."""
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
        """Return the difference of a loop's values between trips of a work-item."""
        level, _, d = self.choices[loop.name].partition(" ")
        items = self.group_shape.get(int(d), 1) if level in ("local", "global") else 1
        return items * (self.grid.get(int(d), 1) if level in ("group", "global") else 1)

    def stride_between(self, load: BufferLoad, iteration: str) -> int:
        """Return the elements between a load's elements for neighbouring values of an iteration."""
        name = load.tensor.name
        buffer = f"{name}.copy" if name in self.copies else name
        in_tile = buffer in {each.buffer for each in self.nest.allocations}
        shape = self.tiling.size(name) if in_tile else self._whole_shapes[name]
        return sum(
            index.coefficient(iteration) * prod(shape[d + 1 :])
            for d, index in enumerate(load.indices)
        )

    @cached_property
    def _whole_shapes(self) -> dict[str, tuple[int, ...]]:
        tensors = (*self.chain.inputs, *(tiled.step.output.tensor for tiled in self.tiling.steps))
        return {tensor.name: tensor.shape for tensor in tensors}

    def owners_of(self, loops: Iterable[Loop]) -> dict[int, int]:
        """Count work-items, by dimension, that each have local memory of their own inside loops."""
        limits, owners = self.limits_on(None), dict[int, int]()
        for loop in loops:
            if has_items(choice := self.choices[loop.name]):
                owners[int(choice[-1])] = limits.items_of(loop.extent)
        return owners

    @property
    def local_bytes(self) -> int:
        """Local memory of a group."""
        return sum(
            allocation.nbytes * prod(self.owners_of(loops).values())
            for allocation, loops in enclosed_allocations(self.nest.body)
            if allocation.memory == "local"
        )

    def step_of(self, name: str) -> TiledStep:
        """Return the step that writes a tensor."""
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
        """Return flat values, from which :func:`candidate_from` restores it."""
        tiles = self.tiling.tiles_text
        values: dict[str, int | str] = {"target": "opencl", "tiles": tiles, "items": self.items}
        values |= {f"memory.{name}": memory for name, memory in self.memory.items()}
        values |= {f"copy.{name}": memory for name, memory in self.copies.items()}
        for name, product in self.products.items():
            values |= product.values(name)
        return values | {f"map.{name}": choice for name, choice in self.choices.items()}

    def row(self) -> dict[str, Any]:
        """Return columns of a table of trials, beside the tiles."""
        values = self.values()
        return {name: values[name] for name in values if name not in ("target", "tiles")}

    @property
    def table(self) -> tuple[tuple[str, ...], ...]:
        """What each product and loop is, behind a row of names."""
        products = ((name, str(each)) for name, each in self.products.items())
        return (("loop or product", "is"), *products, *self.choices.items())

    def as_dict(self) -> dict[str, Any]:
        """Return plain values: tiles, memories, and the kind of each loop."""
        return {
            "tiles": self.tiling.tiles,
            "memory": dict(self.memory),
            "copies": dict(self.copies),
            "items": self.items,
            "products": {name: each.as_dict() for name, each in self.products.items()},
            "map": dict(self.choices),
        }

    def __str__(self) -> str:
        mapped = ", ".join(f"{name} {choice}" for name, choice in self.choices.items())
        own = [f"{name} {memory}" for name, memory in self.memory.items()]
        own += [f"copy of {name} {memory}" for name, memory in self.copies.items()]
        own += [f"{name} {each}" for name, each in self.products.items()]
        return "; ".join([f"tiles {self.tiling}", mapped or "no loops", *own])

    def __repr__(self) -> str:
        return f"<kernel of {self.chain.name}: {self}>"


def candidate_from(chain: Chain, values: Mapping[str, int | str]) -> ParallelCandidate:
    """Restore the kernel of a chain from its ``values()``; others are a RecordError."""
    kinds = ("map", "memory", "copy", "intrinsic", "mapping", "fragments")
    named: dict[str, dict[str, str]] = {kind: {} for kind in kinds}
    try:
        for key, value in values.items():
            kind, _, name = key.partition(".")
            if name:
                named[kind][name] = str(value)
        tiling = Tiling.of(chain, read_tiles(str(values["tiles"])))
        tiles = defaultdict[str, dict[str, int]](dict)
        for loop, count in named["fragments"].items():
            name, _, iteration = loop.rpartition(".")
            tiles[name][iteration] = int(count)
        products = {
            name: product_from(tiling, name, unit, named["mapping"][name], tiles[name])
            for name, unit in named["intrinsic"].items()
        }
        items, own = int(values["items"]), (named["map"], named["memory"], named["copy"])
        again = ParallelCandidate(tiling, *own, items, products)
        problems = again.violations()
    except (KeyError, TypeError, ValueError, AmosError) as error:
        raise RecordError(f"the record describes no kernel of its chain: {error}") from error
    if problems:
        raise RecordError(f"the record describes no kernel of its chain: {problems[0]}")
    return again
