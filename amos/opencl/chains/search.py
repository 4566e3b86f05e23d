"""Searching the kernels of a chain on an OpenCL device: tiles, memories, and what each loop is.

The solver draws mappings that keep Lift's rules and the device's limits. The model ranks them;
around the best ones further mappings are drawn, which differ in some loops. The most promising
ones are measured (:mod:`amos.chains.trials`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import numpy as np

from amos.chains import ParallelSpace, Tiling
from amos.chains.loop_nest import MEMORIES
from amos.chains.model import rough_seconds
from amos.chains.tiling import TiledStep
from amos.chains.tilings import tilings_of
from amos.chains.trials import ChainOption, ListedOptions
from amos.errors import ExploreError, ScheduleError, UnknownNameError
from amos.intrinsics import Intrinsic
from amos.ir import Chain
from amos.ir.chain import loads_of
from amos.machine import Machine
from amos.opencl.chains.candidate import ParallelCandidate
from amos.opencl.chains.model import predict_parallel, step_cycles
from amos.opencl.chains.product import VectorProduct, list_products
from amos.opencl.codegen.parallel import list_problems
from amos.opencl.plan import unit_of
from amos.plan import Value

#: Tilings that are looked at closely, by the rough account and drawn; mappings drawn of each nest.
_BEST, _DRAWN, _MAPPINGS = 8, 4, 12
#: Work-items along a dimension, on a CPU and on a GPU.
_ITEMS = {True: (8, 16), False: (16, 64)}
#: Tiles and memories that are looked at.
_FRAMES = 20
#: Candidates predicted this many times slower than the best are not measured.
_SLOWER = 8.0
#: Candidates around which others are drawn, how often, and how many each time.
_LEADERS, _ROUNDS, _NEIGHBOURS = 6, 2, 12
#: What can be fixed besides tiles.
_VARIABLES = ["map.LOOP", "memory.TENSOR", "copy.INPUT", "items", "intrinsic.TENSOR"]
#: Ways to compute a product by instructions that are looked at.
_PRODUCTS = 3
#: Reasons that are told.
_REASONS = 8


@dataclass(frozen=True)
class Fixed:
    """What every candidate has.

    Attributes:
        copies: inputs that tiles copy; ``"none"`` for those that they do not.
        items: work-items along a dimension, if that is fixed.
        units: instructions of products by what these write; ``"loops"`` for none.
    """

    loops: dict[str, str]
    memory: dict[str, str]
    copies: dict[str, str]
    items: int | None
    units: dict[str, str]

    @staticmethod
    def of(values: Sequence[tuple[str, Value]]) -> Fixed:
        """Read ``SearchOptions.fix``.

        Raises:
            UnknownNameError: there is no such variable.
            ScheduleError: ``items`` is no number from 1 on, or a variable has two values.
        """
        kinds = ("map", "memory", "copy", "intrinsic")
        named: dict[str, dict[str, str]] = {kind: {} for kind in kinds}
        items, seen = None, dict[str, Value]()
        for name, value in values:
            if seen.setdefault(name, value) != value:
                raise ScheduleError(f"{name}: fixed as {seen[name]!r} and as {value!r}")
            kind, _, own = name.partition(".")
            if name == "items":
                if not isinstance(value, int) or value < 1:
                    raise ScheduleError(f"items: expected a number from 1 on, got {value!r}")
                items = value
            elif kind not in named or not own:
                raise UnknownNameError("variable of a chain", name, _VARIABLES)
            else:
                named[kind][own] = str(value)
        return Fixed(
            loops=named["map"],
            memory=named["memory"],
            copies=named["copy"],
            items=items,
            units=named["intrinsic"],
        )


def list_options(
    chain: Chain,
    machine: Machine,
    tiles: Mapping[str, int],
    fix: Sequence[tuple[str, Value]],
    rng: np.random.Generator,
    *,
    units: Sequence[Intrinsic],
    is_named: bool,
) -> ListedOptions:
    """List promising kernels of a chain: drawn by the solver, predicted by the model.

    Args:
        fix: ``map.LOOP``, ``memory.TENSOR``, ``copy.INPUT``, ``items`` and ``intrinsic.TENSOR`` of
            every candidate.
        is_named: whether loops compute only what these do not.

    Raises:
        ExploreError: no candidate keeps the rules, or the chain has no kernels of OpenCL.
        UnknownNameError: a loop or tensor that is fixed is none.
        MachineError: the machine has no rate of an instruction that is named.
        ScheduleError: what is fixed is no tile, memory or level.
    """
    for unit in units if is_named else ():
        machine.peak(unit.name)
    rated = [unit for unit in units if unit.name in machine.peaks]
    drawing = _Drawing(chain, machine, Fixed.of(fix), rng, rated, is_named)
    tilings, options = drawing.options(dict(tiles))
    refused = tuple(
        f"{count} of the tiles and memories: {reason}"
        for reason, count in drawing.refused.most_common(_REASONS)
    )
    return ListedOptions(options, tilings, refused)


@dataclass
class _Drawing:
    """Draws candidates.

    Attributes:
        is_named: whether loops compute only what these do not.
        refused: how many tiles and memories have none, by why, in words with the rule.
        counted: reasons, and the tiles and memories that were counted for them.
    """

    chain: Chain
    machine: Machine
    fixed: Fixed
    rng: np.random.Generator
    units: Sequence[Intrinsic]
    is_named: bool
    refused: Counter[str] = field(default_factory=Counter)
    counted: set[tuple[str, str]] = field(default_factory=set)

    def options(self, tiles: dict[str, int]) -> tuple[int, list[ChainOption]]:
        """Count the tilings, and rank candidates of some; raise ExploreError if there are none."""
        for problem in list_problems(Tiling.of(self.chain, {})):
            raise ExploreError(f"{self.chain.name} on {self.machine.name}: {problem}")
        inputs = [tensor.name for tensor in self.chain.inputs]
        for name in self.fixed.copies:
            if name not in inputs:
                raise UnknownNameError("input", name, inputs)
        tilings = [
            tiling
            for tiling in tilings_of(self.chain, self.machine, tiles)[0]
            if tiling.cut is None and not tiling.rolls
        ]
        if not tilings:
            raise ExploreError(f"{self.chain.name}: OpenCL kernels of chains keep rows whole")
        frames = [*self._frames(self._choose(tilings))]
        if self.is_named and not any(frame.products for frame in frames):
            units = ", ".join(unit.name for unit in self.units)
            raise ExploreError(f"{self.chain.name}: {units} can compute no product of it")
        drawn, used = dict[str, ChainOption](), 0
        for number in self.rng.permutation(len(frames)):
            frame, before = frames[int(number)], len(drawn)
            if not self._is_possible(frame):
                continue
            for dimensions in (1, 2):
                self._add(drawn, frame, self._draw(frame, dimensions, self.fixed.loops, _MAPPINGS))
            used += len(drawn) > before
            if used == _FRAMES:
                break
        if not drawn:
            raise ExploreError(
                f"{self.chain.name} on {self.machine.name}: {self._conflict(frames)}"
            )
        for _ in range(_ROUNDS):
            ranked = sorted(drawn.values(), key=lambda option: option.prediction.seconds)
            for leader in ranked[:_LEADERS]:
                frame = leader.candidate
                names = [name for name in frame.choices if self.rng.random() < 0.5]
                retained = {name: frame.choices[name] for name in names} | self.fixed.loops
                self._add(drawn, frame, self._draw(frame, 3, retained, _NEIGHBOURS))
        most = _SLOWER * min(option.prediction.seconds for option in drawn.values())
        return len(tilings), [x for x in drawn.values() if x.prediction.seconds <= most]

    def _choose(self, tilings: Sequence[Tiling]) -> list[Tiling]:
        """Return promising tilings, and some that are drawn."""
        ranked = sorted(tilings, key=lambda tiling: rough_seconds(tiling, self.machine))
        second = ranked[_BEST:]
        drawn = [second[int(n)] for n in self.rng.permutation(len(second))[:_DRAWN]]
        return ranked[:_BEST] + drawn

    def _frames(self, tilings: Sequence[Tiling]) -> Iterator[ParallelCandidate]:
        """Yield tiles and memories whose loops are still open."""
        serial = unit_of(self.machine).serial
        items = _ITEMS[serial] if self.fixed.items is None else (self.fixed.items,)
        for tiling in tilings:
            own = [tensor.name for tensor in tiling.temporaries]
            memories = [dict.fromkeys(own, kind) | self.fixed.memory for kind in MEMORIES]
            copied = [dict[str, str](), dict.fromkeys(_list_reused(tiling), "local")]
            copies = [_without_none(each | self.fixed.copies) for each in copied]
            own_products = self._products(tiling)
            for memory, copy, count, products in product(
                _unique(memories), _unique(copies), items, own_products
            ):
                yield ParallelCandidate(tiling, {}, memory, copy, count, products)

    def _products(self, tiling: Tiling) -> list[dict[str, VectorProduct]]:
        """List what instructions compute: the ways that are predicted fastest, then loops."""
        ranked: dict[str, list[VectorProduct]] = {}
        for tiled in tiling.steps:
            name = tiled.step.output.tensor.name
            named = self.fixed.units.get(name)
            units = [unit for unit in self.units if named in (None, unit.name)]

            def cost(option: VectorProduct, tiled: TiledStep = tiled) -> float:
                cycles = step_cycles(ParallelCandidate(tiling, {}), option, self.machine)
                sizes = ((tiled.ranges[loop].size, span) for loop, span in option.spans.items())
                return cycles * prod(-(-size // span) / size for size, span in sizes)

            listed = list_products(tiling, tiled, self.machine, units)
            if best := sorted(listed, key=cost)[:_PRODUCTS]:
                ranked[name] = best
        ways = [
            {name: best[min(n, len(best) - 1)] for name, best in ranked.items()}
            for n in range(max(map(len, ranked.values()), default=0))
        ]
        has_loops = not self.is_named and {*self.fixed.units.values()} <= {"loops"}
        return [*ways, {}] if has_loops or not ways else ways

    def _is_possible(self, frame: ParallelCandidate) -> bool:
        """Return whether loops may have these kinds; if not, count why."""
        loops = {loop.name for loop in frame.nest.loops}
        missing = [name for name in self.fixed.loops if name not in loops]
        reasons = [f"there is no loop {name!r}" for name in missing]
        for reason in reasons or self._space(frame).impossible(self.fixed.loops):
            key = (reason, str(replace(frame, products={})))
            self.refused[reason] += key not in self.counted
            self.counted.add(key)
            return False
        return True

    def _draw(
        self, frame: ParallelCandidate, dimensions: int, fixed: Mapping[str, str], count: int
    ) -> list[dict[str, str]]:
        space = self._space(frame, dimensions)
        if not {*fixed.values()} <= {*space.choices}:
            space = self._space(frame)
        return space.draw(count, self.rng, fixed, patience=1)

    def _space(self, frame: ParallelCandidate, dimensions: int = 3) -> ParallelSpace:
        return ParallelSpace(frame.nest, dimensions, frame.limits_on(self.machine))

    def _add(
        self,
        drawn: dict[str, ChainOption],
        frame: ParallelCandidate,
        mappings: Sequence[Mapping[str, str]],
    ) -> None:
        for choices in mappings:
            own = choices if self.fixed.loops else _renumber(choices)
            candidate = replace(frame, choices=own)
            # Code of the two is the same.
            key = str(candidate).replace("fused", "sequential")
            if key not in drawn:
                prediction = predict_parallel(candidate, self.machine)
                products = ", ".join(map(str, frame.products.values()))
                keys = ((str(frame.tiling), frame.items, products), candidate.parallel)
                drawn[key] = ChainOption(candidate, prediction, len(mappings), keys)

    def _conflict(self, frames: Sequence[ParallelCandidate]) -> str:
        """Say why nothing keeps the rules."""
        names = {loop.name: None for frame in frames for loop in frame.nest.loops}
        for name in self.fixed.loops:
            if name not in names:
                raise UnknownNameError("loop", name, names)
        for frame in sorted(frames, key=lambda frame: "private" in frame.memory.values()):
            has_loops = {*self.fixed.loops} <= {loop.name for loop in frame.nest.loops}
            if has_loops and (broken := self._space(frame).explain(self.fixed.loops)):
                return "; ".join(broken)
        return "no tiles have all loops that are fixed, or nothing was drawn that keeps the rules"


def _list_reused(tiling: Tiling) -> list[str]:
    """List inputs whose elements a tile reads several times."""
    reads = dict[str, int]()
    for tiled in tiling.steps:
        points = prod(run.size for run in tiled.ranges.values())
        for load in loads_of(tiled.step):
            reads[load.tensor.name] = reads.get(load.tensor.name, 0) + points
    inputs = [tensor.name for tensor in tiling.chain.inputs if tensor.name in tiling.boxes]
    return [name for name in inputs if reads.get(name, 0) > prod(tiling.size(name))]


def _without_none(copies: Mapping[str, str]) -> dict[str, str]:
    return {name: memory for name, memory in copies.items() if memory != "none"}


def _unique(choices: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    return [each for n, each in enumerate(choices) if each not in choices[:n]]


def _renumber(choices: Mapping[str, str]) -> dict[str, str]:
    """Return the same mapping on the first dimensions: others would be the same kernel."""
    used = sorted({choice.partition(" ")[2] for choice in choices.values()} - {""})
    place = {name: str(n) for n, name in enumerate(used)}
    return {
        name: f"{level} {place[d]}" if d else level
        for name, (level, _, d) in ((n, c.partition(" ")) for n, c in choices.items())
    }
