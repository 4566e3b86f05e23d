"""One schedule: a value for every schedule variable (AMOS, Table 3a)."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass
from typing import Any

from amos.errors import ScheduleError
from amos.mapping.nest import Loop, Nest
from amos.perfmodel.loops import ScheduledLoop

__all__ = ["Schedule", "Value"]

Value = int | str


@dataclass(frozen=True)
class Schedule:
    """An assignment of schedule variables.

    Variables:

    * ``tile.LOOP``: how many steps of a spatial loop live in registers at once;
    * ``order``: the spatial loops around the reduction, outermost first;
    * ``reduce``: the order of the reduction loops, outermost first;
    * ``parallel``: how many of the outermost loops are divided over the cores;
    * ``unroll``: steps of the innermost reduction loop unrolled into one;
    * ``stage.OPERAND``: where a gathered source is staged, ``whole`` (ahead of
      the nest) or ``tile`` (inside the outermost loops).
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
        return int(self.get(f"tile.{loop}", 1))

    def order(self, nest: Nest) -> tuple[Loop, ...]:
        """Spatial loops from the outermost to the innermost; extent 1 left out."""
        return _ordered(nest.spatial, self.get("order"), "order")

    def reduce_order(self, nest: Nest) -> tuple[Loop, ...]:
        """Reduction loops from the outermost to the innermost; extent 1 left out."""
        return _ordered(nest.reduce, self.get("reduce"), "reduce")

    def loops(self, nest: Nest) -> tuple[ScheduledLoop, ...]:
        """Scheduled loops from the outermost to the innermost."""
        outer, inner = [], []
        parallel = int(self.get("parallel", 1))
        for number, loop in enumerate(self.order(nest)):
            factor = self.tile(loop.name)
            if loop.extent % factor:
                raise ScheduleError(
                    f"tile.{loop.name} = {factor} does not divide the extent {loop.extent}"
                )
            role = "parallel" if number < parallel else "serial"
            outer.append(ScheduledLoop(loop.name, loop.extent // factor, factor, role))  # type: ignore[arg-type]
            inner.append(ScheduledLoop(loop.name, factor, 1, "register"))
        steps = [ScheduledLoop(x.name, x.extent, 1, "serial") for x in self.reduce_order(nest)]
        return (*outer, *steps, *inner)

    def stages_ahead(self, operand: str) -> bool:
        """True if a gathered source is staged before the nest, not tile by tile."""
        return bool(self.get(f"stage.{operand}", "whole") == "whole")

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values)


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
