"""One schedule: a value for every schedule variable (AMOS, Table 3a)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from typing import Any

import numpy as np

from amos.errors import ScheduleError
from amos.plan.nest import Loop, Nest
from amos.plan.structure import LoopBatch, Structure

__all__ = ["Schedule", "Value", "batch_of"]

#: What a schedule variable can be.
Value = int | str


@dataclass(frozen=True)
class Schedule:
    """An assignment of schedule variables.

    Variables:

    * ``tile.LOOP``: how many steps of a spatial loop live in registers at once;
      it need not divide the loop, whose last tile is then padded;
    * ``block.LOOP``: how many register tiles of a loop follow one another inside
      the outer loops, by default 1;
    * ``order``: the spatial loops around the reduction, outermost first;
    * ``reduce``: the order of the reduction loops, outermost first;
    * ``parallel``: how many of the outermost loops are divided over the cores;
    * ``unroll``: steps of the innermost reduction loop unrolled into one;
    * ``stage.OPERAND``: where a gathered source is staged, ``whole`` (ahead of
      the nest) or ``tile`` (inside the outermost loops);
    * ``vector``: bytes that one step of a copy moves, by default 64;
    * ``copy``: ``vectors`` stages whole fragments by vector loads and permutations, where
      a source allows it; ``elements``, the default, finds element by element;
    * ``split``: parts of the outermost reduction loop that run at the same time,
      each with accumulators of its own which are added up in the end, by default 1.

    Where warps of a GPU run the intrinsic:

    * ``tile.LOOP`` is what one warp holds, and ``block.LOOP`` how many tiles of the
      loop a thread block has; ``bind`` (``warps``) says that each is a warp's, all
      at the same time. The product of the blocks is the number of warps;
    * ``parallel`` is always all of the outer loops: in ``order`` they make the grid;
    * ``unroll``: steps of the innermost reduction loop that are staged in shared
      memory together, and unrolled;
    * ``align.OPERAND``: elements of padding behind each row of a fragment in shared
      memory, by default 0; -1 swizzles rows instead, which takes no memory;
    * ``pipeline``: buffers in shared memory, of which all but the one in use are
      being filled, by default 1;
    * ``vector``: bytes that one thread copies at once, by default 16;
    * ``stage.OPERAND``: ``whole`` (by a kernel of its own, in global memory), or
      ``tile`` (while copying to shared memory).
    """

    values: tuple[tuple[str, Value], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(sorted(self.values)))

    @staticmethod
    def of(values: MappingType[str, Value]) -> Schedule:
        """Build from a dictionary."""
        return Schedule(tuple(values.items()))

    def as_dict(self) -> dict[str, Value]:
        """The assignment as a dictionary, for records and JSON."""
        return dict(self.values)

    def get(self, name: str, default: Any = None) -> Any:
        """Value of a variable, or ``default``."""
        return dict(self.values).get(name, default)

    def tile(self, loop: str) -> int:
        """Register tile of a spatial loop."""
        return self._whole(f"tile.{loop}")

    def block(self, loop: str) -> int:
        """Register tiles of a spatial loop that follow one another inside the outer loops."""
        return self._whole(f"block.{loop}")

    def padded(self, nest: Nest) -> dict[str, int]:
        """Extent of each spatial loop that its tiles and blocks do not divide, rounded up."""
        spans = {x.name: self.tile(x.name) * self.block(x.name) for x in nest.spatial}
        return {
            x.name: -(-x.extent // spans[x.name]) * spans[x.name]
            for x in nest.spatial
            if x.extent % spans[x.name]
        }

    def order(self, nest: Nest) -> tuple[Loop, ...]:
        """Spatial loops from the outermost to the innermost; extent 1 left out."""
        return _ordered(nest.spatial, self.get("order"), "order")

    def reduce_order(self, nest: Nest) -> tuple[Loop, ...]:
        """Reduction loops from the outermost to the innermost; extent 1 left out."""
        return _ordered(nest.reduce, self.get("reduce"), "reduce")

    def batch(self, structure: Structure) -> LoopBatch:
        """The schedule as the model takes it: a batch of one row.

        Raises:
            ScheduleError: a tile is larger than its loop, a value that must be a
                whole number is not, or an order does not name the mapping's loops.
        """
        for loop in structure.spatial:
            for name, value in (("tile", self.tile(loop.name)), ("block", self.block(loop.name))):
                if not 1 <= value <= loop.extent:
                    raise ScheduleError(
                        f"{name}.{loop.name} = {value} is not between 1 and the extent "
                        f"{loop.extent}"
                    )
        self._whole("parallel")
        self._whole("unroll")
        return batch_of(structure, [self])

    def _whole(self, name: str) -> int:
        value = self.get(name, 1)
        if not isinstance(value, int):
            raise ScheduleError(f"{name} = {value!r}: expected a whole number")
        return value

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values)


def batch_of(structure: Structure, schedules: Sequence[Schedule]) -> LoopBatch:
    """Schedules of one mapping as arrays, one row each.

    Raises:
        ScheduleError: an order does not name the mapping's loops.
    """
    nest = structure.nest
    spatial = {loop.name: n for n, loop in enumerate(structure.spatial)}
    reduce = {loop.name: n + len(spatial) for n, loop in enumerate(structure.reduce)}

    def rows(values: list[list[int]], width: int) -> np.ndarray:
        return np.array(values, dtype=np.int64).reshape(len(schedules), width)

    return LoopBatch(
        tile=rows([[s.tile(name) for name in spatial] for s in schedules], len(spatial)),
        order=rows([[spatial[x.name] for x in s.order(nest)] for s in schedules], len(spatial)),
        reduce=rows(
            [[reduce[x.name] for x in s.reduce_order(nest)] for s in schedules], len(reduce)
        ),
        # Where one call does all the work, there is no loop to divide.
        parallel=np.array([min(int(s.get("parallel", 1)), len(spatial)) for s in schedules]),
        unroll=np.array([int(s.get("unroll", 1)) for s in schedules]),
        block=rows([_blocks(s, spatial) for s in schedules], len(spatial)),
        vector=np.array([int(s.get("vector", 64)) for s in schedules]),
        vectors=np.array([s.get("copy") == "vectors" for s in schedules]),
        ahead=np.array(
            [
                [s.get(f"stage.{name}", "whole") == "whole" for name in structure.choices]
                for s in schedules
            ],
            dtype=bool,
        ).reshape(len(schedules), len(structure.choices)),
        **_threads(structure, schedules, spatial),
    )


def _threads(
    structure: Structure, schedules: Sequence[Schedule], loops: Iterable[str]
) -> dict[str, np.ndarray]:
    """What a GPU has, warps, padded rows and stages, and parts of a reduction."""
    if not any(s.get("bind") or s.get("split") for s in schedules):
        return {}

    def rows(values: list[list[int]]) -> np.ndarray:
        return np.array(values, dtype=np.int64).reshape(len(schedules), -1)

    names = list(loops)
    bound = [s.get("bind") == "warps" for s in schedules]
    warps = [[s.block(n) if b else 1 for n in names] for s, b in zip(schedules, bound, strict=True)]
    padding = [[int(s.get(f"align.{op.name}", 0)) for op in structure.sources] for s in schedules]
    return {
        "warps": rows(warps).reshape(len(schedules), len(names)),
        "padding": rows(padding),
        "stages": np.array([int(s.get("pipeline", 1)) for s in schedules]),
        "split": np.array([int(s.get("split", 1)) for s in schedules]),
    }


def _blocks(schedule: Schedule, loops: Iterable[str]) -> list[int]:
    """Tiles that one core computes one after another; warps are cores of their own."""
    if schedule.get("bind") == "warps":
        return [1 for _ in loops]
    return [schedule.block(name) for name in loops]


def _ordered(loops: tuple[Loop, ...], order: str | None, variable: str) -> tuple[Loop, ...]:
    live = {loop.name: loop for loop in loops if loop.extent > 1}
    if order is None:
        return tuple(live.values())
    names = str(order).split()
    if sorted(names) != sorted(live):
        raise ScheduleError(
            f"{variable} = {order!r}: expected an order of {', '.join(live) or 'no loops'}"
        )
    return tuple(live[name] for name in names)
