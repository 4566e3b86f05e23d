"""A chain in tiles: shared loops, the box of each tensor in a tile, and the depth of each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from amos.chains.boxes import Box, Range, load_box, local_iterations, local_load, origins_of, unite
from amos.chains.rolling import RollingRows, roll_rows
from amos.chains.rows import Phases, cut_rows
from amos.errors import ScheduleError
from amos.ir import Affine, Assignment, BufferLoad, Chain, Operator, Tensor, dtype
from amos.ir.chain import Step, loads_of, result_of
from amos.ir.transforms import Transform, unrolled_loops


@dataclass(frozen=True)
class SharedLoop:
    """A loop around all statements of a chain.

    Attributes:
        name: the iteration.
        extent: of the iteration.
        tile: how many of its values a step has; the last tile begins earlier if that does not
            divide the extent.
    """

    name: str
    extent: int
    tile: int

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return -(-self.extent // self.tile)

    def __str__(self) -> str:
        return f"{self.name}:{self.tile}"


@dataclass(frozen=True)
class TiledStep:
    """A step on a tile.

    Attributes:
        step: with its own values of iterations, and tensors as a whole.
        ranges: of its iterations within a tile.
        depth: how many of the shared loops it depends on, counted from the outermost.
        phase: ``"before"`` the parts of a cut row, in their ``"body"``, or ``"after"`` them.
        boxes: what it sees of each tensor.
        rows: how the rows that it writes roll; its ranges and boxes are then those of a unit.
    """

    step: Step
    ranges: Mapping[str, Range]
    depth: int
    phase: str
    boxes: Mapping[str, Box]
    rows: RollingRows | None = None

    def size(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of what a step sees of a tensor."""
        return tuple(place.size for place in self.boxes[tensor])

    def nbytes_of(self, tensor: Tensor) -> int:
        """Count bytes of what a step sees of a tensor."""
        return _nbytes(tensor, self.size(tensor.name))

    @property
    def nbytes(self) -> int:
        """Bytes of all that it reads and writes."""
        read = (load.tensor for load in loads_of(self.step))
        return sum(map(self.nbytes_of, dict.fromkeys((*read, result_of(self.step)))))


@dataclass(frozen=True)
class Layout:
    """What a tile has of tensors.

    Attributes:
        boxes: of each tensor; of inputs those parts that units of rolling rows do not read.
        rolling: the rows of temporaries that roll.
    """

    boxes: Mapping[str, Box]
    rolling: Mapping[str, RollingRows]


@dataclass(frozen=True, repr=False)
class Tiling:
    """How a chain is cut into tiles.

    Attributes:
        chain: the chain.
        loops: the shared loops, by iterations of the result, the outermost first; parallel.
        cut: the loop over parts of a row within a tile; ``None`` if rows stay whole.
        rolls: whether tiles keep rows for the next one of the innermost shared loop.

    Raises:
        ScheduleError: a loop is no iteration of the result, a tile is larger than its loop,
            parts of rows would change the result, a statement reads a tensor both as a whole
            and tile by tile, or no rows roll.
    """

    chain: Chain
    loops: tuple[SharedLoop, ...]
    cut: SharedLoop | None = None
    rolls: bool = False

    def __post_init__(self) -> None:
        whole = unrolled_loops(self.chain)
        indices = self.chain.steps[-1].output.indices
        own = [name for index in indices for name in index.names if name not in whole]
        for loop in self.loops:
            if loop.name not in own:
                raise ScheduleError(
                    f"tile.{loop.name}: expected an iteration of the result "
                    f"{self.chain.result.name!r}, {', '.join(own)}"
                )
        for loop in (*self.loops, *([self.cut] if self.cut else [])):
            if not 1 <= loop.tile <= loop.extent:
                raise ScheduleError(f"tile.{loop.name} = {loop.tile}: expected 1 to {loop.extent}")
        if self.cut is not None and self.cut.extent % self.cut.tile:
            raise ScheduleError(
                f"tile.{self.cut.name} = {self.cut.tile}: expected a divisor of {self.cut.extent}, "
                "as parts of rows are summed"
            )
        if (self.cut or self.rolls) and whole:
            raise ScheduleError(
                f"{self.chain.name}: rows of chains with literals stay whole, and do not roll"
            )
        if self.rolls and (self.cut is not None or not self.loops):
            raise ScheduleError(f"rows that roll: expected shared loops and whole rows, got {self}")
        if self.rolls and not self.layout.rolling:
            raise ScheduleError(f"tile.{self.rolling_loop}: no rows roll along it")
        for tiled in self.steps:
            for load in loads_of(tiled.step):
                name = load.tensor.name
                if not self._is_whole(tiled.step, name):
                    local_load(load, tiled.ranges, tiled.boxes[name], tiled.size(name))

    @staticmethod
    def of(chain: Chain, tiles: Mapping[str, int], rolling: str = "") -> Tiling:
        """Return the tiling with these tile sizes; other iterations stay whole.

        Args:
            tiles: by iteration, in the order of the shared loops; one that the result does not
                have is cut into parts.
            rolling: the iteration along which tiles keep rows for the next one; it becomes the
                innermost.
        """
        own = {n for index in chain.steps[-1].output.indices for n in index.names}
        if unknown := [name for name in tiles if name not in chain.extents]:
            raise ScheduleError(
                f"tile.{unknown[0]}: no iteration of {chain.name}; these are "
                f"{', '.join(chain.extents)}"
            )
        loops = [SharedLoop(name, chain.extents[name], size) for name, size in tiles.items()]
        cuts = [loop for loop in loops if loop.name not in own and loop.tile < loop.extent]
        if len(cuts) > 1:
            raise ScheduleError(
                f"tiles cut {cuts[0].name} and {cuts[1].name}: one of the iterations that "
                f"{chain.result.name!r} lacks can be cut"
            )
        shared = [loop for loop in loops if loop.name in own]
        if rolling and rolling not in [loop.name for loop in shared]:
            names = ", ".join(loop.name for loop in shared) or "none"
            raise ScheduleError(
                f"rolling {rolling}: expected a loop of the result's tiles, {names}"
            )
        shared.sort(key=lambda loop: loop.name == rolling)
        return Tiling(chain, tuple(shared), cuts[0] if cuts else None, rolls=bool(rolling))

    @property
    def rolling_loop(self) -> str:
        """The shared loop along which rows roll; empty if none do."""
        return self.loops[-1].name if self.rolls and self.loops else ""

    @property
    def tiles(self) -> dict[str, int]:
        """The tile of each loop, as :meth:`of` takes it."""
        return {loop.name: loop.tile for loop in (*self.loops, *([self.cut] if self.cut else []))}

    @property
    def tiles_text(self) -> str:
        """The tile of each loop as text, which :func:`read_tiles` reads."""
        return ",".join(f"{name}:{size}" for name, size in self.tiles.items())

    @property
    def count(self) -> int:
        """How many tiles the result has."""
        return prod(loop.count for loop in self.loops)

    @cached_property
    def phases(self) -> Phases:
        """The steps before, in and behind the parts of a row."""
        if self.cut is not None:
            return cut_rows(self.chain, self.cut.name, self.cut.count)
        for axis in () if unrolled_loops(self.chain) else _rows_of(self.chain):
            try:
                return cut_rows(self.chain, axis, 1)
            except ScheduleError:  # quotients stay where they are
                continue
        return Phases((), self.chain.steps, ())

    @property
    def boxes(self) -> Mapping[str, Box]:
        """What a tile needs of each tensor."""
        return self.layout.boxes

    @cached_property
    def layout(self) -> Layout:
        """What a tile has of each tensor, and which rows roll."""
        last = self.chain.steps[-1].output
        ranges = {name: self._shared_range(name, size) for name, size in self.chain.extents.items()}
        boxes = {last.tensor.name: load_box(last, ranges)}
        rolling, reads = dict[str, RollingRows](), defaultdict[str, list[BufferLoad]](list)
        once = {step.output.tensor.name for step in (*self.phases.before, *self.phases.after)}
        written = {step.output.tensor.name for step in self.phases.steps}
        for step in reversed(self.phases.steps):
            own, target = self._ranges(step, boxes), step.output.tensor.name
            if isinstance(step, Transform):
                boxes[target] = load_box(step.output, own)
            if self.rolls and target != last.tensor.name and target in boxes:
                loop = self.loops[-1]
                rows = roll_rows(
                    step, boxes[target], loop.name, loop.extent, loop.tile, reads[target]
                )
                rolling |= {target: rows} if rows else {}
            for load in loads_of(step):
                name = load.tensor.name
                if name not in written and target in rolling:
                    continue  # a unit sees what it needs
                inner = self.rolling_loop if name in written else ""
                box = load_box(load, own, step.extents, inner)
                if self._is_whole(step, name):
                    box = tuple(map(Range.whole, load.tensor.shape))
                if self.cut is not None and name in once:
                    box = _drop_offsets(box, self.cut.name, load.tensor.shape)
                boxes[name] = unite(boxes[name], box, load.tensor.shape) if name in boxes else box
                reads[name].append(load)
        return Layout(boxes, rolling)

    def _shared_range(self, name: str, size: int) -> Range:
        """Return the values of an iteration of the result within a tile."""
        tile = next((loop.tile for loop in self.loops if loop.name == name), None)
        return Range.whole(size) if tile is None else Range(Affine(((name, 1),)), tile)

    def _unit(
        self, step: Step, ranges: dict[str, Range]
    ) -> tuple[dict[str, Range], Mapping[str, Box]]:
        """Return the values of a step's iterations in a unit of rolling rows, and its inputs."""
        name = step.output.tensor.name
        if (rows := self.layout.rolling.get(name)) is None:
            return ranges, self.boxes
        ranges = ranges | {rows.iteration: rows.unit_of(ranges[rows.iteration], name)}
        boxes = {name: load_box(step.output, ranges)}
        written = {each.output.tensor.name for each in self.phases.steps}
        for load in loads_of(step):
            own, shape = load.tensor.name, load.tensor.shape
            inner = self.rolling_loop if own in written else ""
            box = load_box(load, ranges, step.extents, inner)
            boxes[own] = unite(boxes[own], box, shape) if own in boxes else box
        return ranges, boxes

    def _is_whole(self, step: Step, tensor: str) -> bool:
        """Return whether a step sees a tensor whole, as transforms see inputs and the result."""
        is_temporary = tensor in [each.name for each in self.chain.temporaries]
        return isinstance(step, Transform) and not is_temporary

    def _ranges(self, step: Step, boxes: Mapping[str, Box]) -> dict[str, Range]:
        """Return the values of a step's iterations within a tile."""
        if isinstance(step, Transform) and step.output.tensor.name == self.chain.result.name:
            return {name: self._shared_range(name, size) for name, size in step.extents.items()}
        ranges = {name: Range.whole(size) for name, size in step.extents.items()}
        if self.cut is not None and self.cut.name in ranges:
            ranges[self.cut.name] = Range(Affine(((self.cut.name, 1),)), self.cut.tile)
        box = boxes.get(step.output.tensor.name)
        for index, place in zip(step.output.indices, box or (), strict=bool(box)):
            if index.terms and index.coefficient(index.names[0]) == 1 and len(index.terms) == 1:
                ranges[index.names[0]] = Range(place.start + -index.constant, place.size)
            else:
                raise ScheduleError(
                    f"{step.output} is written: expected one iteration as an index of each "
                    "dimension"
                )
        if isinstance(step, Transform):
            ranges |= {name: Range.whole(step.extents[name]) for name in step.unrolled}
        return ranges

    @cached_property
    def steps(self) -> tuple[TiledStep, ...]:
        """All steps on a tile, in order."""
        order = {loop.name: n for n, loop in enumerate(self.loops, 1)}
        if self.cut is not None:
            order[self.cut.name] = len(order) + 1
        steps = []
        for phase in ("before", "body", "after"):
            for step in getattr(self.phases, phase):
                ranges, boxes = self._unit(step, self._ranges(step, self.boxes))
                used = origins_of(step, ranges, boxes)
                depth = max((order[n] for n in used if n in order), default=0)
                # What is filled anew for each tile, or depends on what is.
                depth = len(self.loops) if phase != "body" and self.cut else depth
                rows = self.layout.rolling.get(step.output.tensor.name)
                steps.append(TiledStep(step, ranges, depth, phase, boxes, rows))
        return _hoist(steps, len(self.loops))

    @property
    def temporaries(self) -> tuple[Tensor, ...]:
        """What steps on a tile write for others, in order."""
        own = {tensor.name: tensor for tensor in (result_of(tiled.step) for tiled in self.steps)}
        own.pop(self.chain.result.name, None)
        return tuple(own.values())

    def size(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor's tile."""
        return tuple(place.size for place in self.boxes[tensor])

    def nbytes(self, tensor: Tensor) -> int:
        """Count bytes of a tensor's tile."""
        return _nbytes(tensor, self.size(tensor.name))

    def localize(self, tiled: TiledStep, shapes: Mapping[str, tuple[int, ...]]) -> Step:
        """Return a step on tensors that begin where the box of a tile does.

        Args:
            tiled: the step.
            shapes: of tensors in memory; others have the box's.
        """

        def local(load: BufferLoad) -> BufferLoad:
            name = load.tensor.name
            shape = shapes.get(name, tiled.size(name))
            return local_load(load, tiled.ranges, tiled.boxes[name], shape)

        step, iterations = tiled.step, local_iterations(tiled.step, tiled.ranges)
        if isinstance(step, Transform):
            return step.with_loads(
                lambda x: x if self._is_whole(step, x.tensor.name) else local(x), iterations
            )
        if isinstance(step, Assignment):
            expression, target = step.expression.with_loads(local), local(step.destination)
            return replace(step, expression=expression, destination=target, iterations=iterations)
        compute = replace(step.compute.with_loads(local), iterations=iterations)
        epilogue = step.epilogue and step.epilogue.with_loads(local)
        return Operator(compute, step.name, step.constants, epilogue=epilogue)

    def __str__(self) -> str:
        text = ", ".join(map(str, (*self.loops, *([self.cut] if self.cut else [])))) or "whole"
        return f"{text} rolling" if self.rolls else text

    def __repr__(self) -> str:
        return f"<tiling of {self.chain.name}: {self}>"


def _nbytes(tensor: Tensor, size: Sequence[int]) -> int:
    return prod(size) * dtype(str(tensor.dtype)).numpy.itemsize


def _drop_offsets(box: Box, axis: str, shape: tuple[int, ...]) -> Box:
    """Return a box that is written once for all parts of a row: whole where parts move it."""
    return tuple(
        Range.whole(size) if axis in place.start.names else place
        for place, size in zip(box, shape, strict=True)
    )


def _rows_of(chain: Chain) -> list[str]:
    """Return iterations that a step reduces and another keeps, to divide or scale rows."""
    reduced = {it.name for step in chain.steps for it in step.reduce}
    spatial = {it.name for step in chain.steps[:-1] for it in step.spatial}
    return [name for name in chain.extents if name in reduced & spatial]


def _hoist(steps: list[TiledStep], most: int) -> tuple[TiledStep, ...]:
    """Return the steps, each no less deep than the steps it reads."""
    depths: dict[str, int] = {}
    placed = []
    for tiled in steps:
        read = (depths.get(load.tensor.name, 0) for load in loads_of(tiled.step))
        own = tiled.step.output.tensor.name
        depth = max([tiled.depth, depths.get(own, 0), *read])
        depths[own] = depth
        placed.append(replace(tiled, depth=min(depth, most)))
    return tuple(placed)


def read_tiles(text: str) -> dict[str, int]:
    """Read the tile of each loop from :attr:`Tiling.tiles_text`.

    Raises:
        ValueError: a size is no whole number.
    """
    pairs = (each.partition(":") for each in text.split(",") if each)
    return {name: int(size) for name, _, size in pairs}
