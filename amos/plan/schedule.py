"""Schedules: the decisions of a search about a kernel (AMOS, Table 3a), typed for each target.

Each field has a unit and a default, and a key under which records and JSON hold it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np

from amos._display import Shown
from amos.errors import ScheduleError
from amos.machine.machine import Machine
from amos.mapping.mapping import Mapping
from amos.plan.nest import Loop, Nest
from amos.plan.structure import LoopBatch, Structure
from amos.plan.variables import Defaulted, Value, names_of, variable, variables_of


@dataclass(frozen=True, eq=False, kw_only=True)
class Schedule(ABC):
    """A value for every schedule variable; equal to another that is written the same.

    Attributes:
        tile: steps of each spatial loop that live in registers at once, by default 1;
            they need not divide the loop, whose last tile is then padded.
        order: the spatial loops around the reduction, outermost first; ``None`` for
            the order of the nest.
        reduce: the reduction loops, outermost first; ``None`` likewise.
        split: parts of the outermost reduction loop that run at the same time, each
            with accumulators of its own which are added up in the end.

    Raises:
        ScheduleError: a value is of another type, or none that its field may have.
    """

    #: The field with the number of register tiles inside the outer loops, if there is one.
    _blocks: ClassVar[str] = ""
    #: Class of many schedules as arrays.
    _batch: ClassVar[type[LoopBatch]] = LoopBatch
    #: Key of earlier records → key of today. Candidates are identified by the earlier ones, so that
    #: a run resumes from earlier records.
    earlier_keys: ClassVar[MappingType[str, str]] = {}

    tile: MappingType[str, int] = variable("tile", 1, per="spatial", always=True)
    order: tuple[str, ...] | None = variable("order", None)
    reduce: tuple[str, ...] | None = variable("reduce", None)
    split: int = variable("split", 1)

    def __post_init__(self) -> None:
        for name, kind in variables_of(type(self)).items():
            object.__setattr__(self, name, kind.normalize(name, getattr(self, name)))

    @classmethod
    def of(cls, values: MappingType[str, Value]) -> Self:
        """Read a dictionary of variables, of earlier records as well.

        Of :class:`Schedule` itself, it becomes one of the target that has most of the
        variables that a CPU does not have, of a CPU if there are none.

        Raises:
            ScheduleError: a variable is unknown, has no value that it may have, or stands
                there twice, under its present and an earlier key.
        """
        if cls is Schedule:
            from amos.plan.target import targets

            heads = {key.partition(".")[0] for key in values} - CpuSchedule.keys()
            kinds = [target.schedule for target in targets()]
            return cast(Self, max(kinds, key=lambda kind: len(kind.keys() & heads)).of(values))
        if not cls.earlier_keys:
            return cls._read(values)
        named = {key: value for key, value in values.items() if cls.rename_key(key) == key}
        for key, value in values.items():
            if named.setdefault(cls.rename_key(key), value) != value:
                raise ScheduleError(
                    f"{key} = {value!r}: expected it once, got {cls.rename_key(key)} too"
                )
        return cls._read(named)

    @classmethod
    def keys(cls) -> frozenset[str]:
        """Return the keys that a dictionary of the target may have, before a dot."""
        return frozenset({kind.key for kind in variables_of(cls).values()} | {*cls.earlier_keys})

    @classmethod
    def rename_key(cls, key: str) -> str:
        """Return today's name of a key of an earlier record; other keys stay."""
        head, dot, name = key.partition(".")
        return f"{cls.earlier_keys.get(head, head)}{dot}{name}"

    @classmethod
    def record_key(cls, key: str) -> str:
        """Return a key of today as in the earliest records; the inverse of :meth:`rename_key`."""
        head, dot, name = key.partition(".")
        first = {today: earlier for earlier, today in cls.earlier_keys.items()}
        return f"{first.get(head, head)}{dot}{name}"

    @classmethod
    def _read(cls, values: MappingType[str, Value]) -> Self:
        names, kinds = names_of(cls), variables_of(cls)
        arguments: dict[str, Any] = {}
        for key, value in values.items():
            head, dot, suffix = key.partition(".")
            kind = kinds[names[head]] if head in names else None
            if kind is None or bool(kind.per) != bool(dot):
                raise ScheduleError(
                    f"{key} = {value!r}: unknown variable {key!r}; expected {', '.join(names)}"
                )
            if kind.per:
                arguments.setdefault(names[head], {})[suffix] = value
            else:
                ordered = kind.default is None and isinstance(value, str)
                arguments[names[head]] = tuple(str(value).split()) if ordered else value
        return cls(**arguments)

    def as_dict(self) -> dict[str, Value]:
        """Return the variables as in records and JSON, sorted; most defaults are left out."""
        return dict(self.values)

    def as_recorded(self) -> dict[str, Value]:
        """Return the variables under the keys that identify candidates in all records."""
        return {self.record_key(key): value for key, value in self.values}

    @cached_property
    def values(self) -> tuple[tuple[str, Value], ...]:
        """The entries of :meth:`as_dict`."""
        return tuple(sorted(self._entries()))

    def _entries(self) -> Iterator[tuple[str, Value]]:
        for name, kind in variables_of(type(self)).items():
            companion = getattr(self, kind.written_with) if kind.written_with else None
            yield from kind.entries(getattr(self, name), companion)

    def __eq__(self, value: object) -> bool:
        return isinstance(value, Schedule) and self.values == value.values

    def __hash__(self) -> int:
        return hash(self.values)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values)

    @property
    def blocks(self) -> MappingType[str, int]:
        """Register tiles of each spatial loop inside the outer loops, by default 1."""
        return getattr(self, self._blocks) if self._blocks else Defaulted({}, 1)

    def rename_loops(self, name: Callable[[str], str]) -> Self:
        """Rename the loops of a schedule."""
        changed: dict[str, Any] = {
            key: {name(loop): size for loop, size in getattr(self, key).items()}
            for key, kind in variables_of(type(self)).items()
            if kind.per in ("spatial", "reduce")
        }
        for key, order in (("order", self.order), ("reduce", self.reduce)):
            changed[key] = order and tuple(map(name, order))
        return replace(self, **changed)

    def canonical(self, nest: Nest) -> Schedule:
        """Return the schedule of the same kernel that stands for all such; itself by default."""
        return self

    @abstractmethod
    def _row(self, structure: Structure) -> dict[str, Any]:
        """Return the row of :class:`LoopBatch` for this schedule, without tiles and orders."""

    def spatial_order(self, nest: Nest) -> tuple[Loop, ...]:
        """List the spatial loops from the outermost to the innermost; extent 1 is left out."""
        return _order_loops(nest.spatial, self.order, "order")

    def reduce_order(self, nest: Nest) -> tuple[Loop, ...]:
        """List the reduction loops from the outermost to the innermost; extent 1 is left out."""
        return _order_loops(nest.reduce, self.reduce, "reduce")

    def batch(self, structure: Structure) -> LoopBatch:
        """Return the schedule as the model takes it: a batch of one row.

        Raises:
            ScheduleError: a tile is larger than its loop, an order does not name the mapping's
                loops, something has a value that the mapping does not have, or there is no
                reduction to divide.
        """
        owners = {
            "spatial": [loop.name for loop in structure.spatial],
            "reduce": [loop.name for loop in structure.reduce],
            "operand": [operand.name for operand in structure.operands],
        }
        kinds = variables_of(type(self))
        for name, kind in kinds.items():
            names = owners.get(kind.per, [])
            values = getattr(self, name) if kind.per else {}
            if unknown := [f"{kind.key}.{key}" for key in values if key not in names]:
                raise ScheduleError(
                    f"unknown variable {unknown[0]!r}; {kind.key} is of {', '.join(names)}"
                )
        if self.split > 1 and not structure.reduce:
            raise ScheduleError(f"split = {self.split}: expected 1, no reduction is a loop")
        for loop in structure.spatial:
            for name, kind in kinds.items():
                size = getattr(self, name)[loop.name] if kind.per == "spatial" else 1
                if size > loop.extent:
                    raise ScheduleError(
                        f"{kind.key}.{loop.name} = {size} is more than the extent {loop.extent}"
                    )
        return batch_of(structure, [self])


@dataclass(frozen=True, eq=False, kw_only=True)
class CpuSchedule(Schedule):
    """A schedule for the cores of a CPU.

    Attributes:
        block: consecutive register tiles of each spatial loop inside the outer loops, by default 1.
        parallel: how many of the outermost loops are divided over the cores.
        unroll: steps of the innermost reduction loop unrolled into one.
        stage: where each gathered source is staged: ``whole``, ahead of the nest, the
            default, or ``tile``, inside the outermost loops; ``none``, the default of a source
            that can be read in place, does that.
        copy_width: elements that one vectorized step of a copy moves at most; key
            ``vector``.
        copy: ``vectors`` stages whole fragments by vector loads and permutations, where
            a source allows it; ``elements`` moves element by element.
    """

    _blocks: ClassVar[str] = "block"

    block: MappingType[str, int] = variable("block", 1, per="spatial")
    parallel: int = variable("parallel", 1, written_with="order")
    unroll: int = variable("unroll", 1, written_with="reduce")
    stage: MappingType[str, Literal["whole", "tile", "none"]] = variable(
        "stage", "whole", words=("whole", "tile", "none"), per="operand", always=True
    )
    copy_width: int = variable("vector", 64)
    copy: Literal["elements", "vectors"] = variable(
        "copy", "elements", words=("elements", "vectors")
    )

    def _row(self, structure: Structure) -> dict[str, Any]:
        stage = {op.name: self.stage.get(op.name, "none" if op.optional else "whole")
                 for op in structure.sources if op.choice}  # fmt: skip
        return {
            # A kernel of a single call has no loop to divide.
            "parallel": min(self.parallel, len(structure.spatial)),
            "unroll": self.unroll,
            "block": [self.block[loop.name] for loop in structure.spatial],
            "copy_width": self.copy_width,
            "vectors": self.copy == "vectors",
            "ahead": [place == "whole" for place in stage.values()],
            "copied": [place != "none" for place in stage.values()],
        }

    def batch(self, structure: Structure) -> LoopBatch:
        """Return the schedule as the model takes it; see :meth:`Schedule.batch`."""
        for op in structure.sources:
            if op.choice and not op.optional and self.stage[op.name] == "none":
                raise ScheduleError(
                    f"stage.{op.name} = 'none': expected whole or tile; it cannot be read in place"
                )
        return super().batch(structure)


@dataclass(frozen=True)
class Candidate(Shown):
    """A mapping with a schedule, which is searched, predicted and measured."""

    mapping: Mapping
    schedule: Schedule

    @property
    def key(self) -> tuple[str, Schedule]:
        """Identity within one exploration."""
        return self.mapping.name, self.schedule

    @property
    def memory(self) -> int:
        """Bytes that its kernel needs on this computer beside inputs and results, if known."""
        return self.memory_on(None)

    def memory_on(self, machine: Machine | None) -> int:
        """Return the same on a machine; a core's copies count once for each core that has one."""
        from amos.plan.target import targets

        structure = Structure(self.mapping)
        target = next(x for x in targets() if x.schedule is type(self.schedule))
        batch = self.schedule.batch(structure)
        return int(target.workspace_bytes(structure, machine, batch)[0])

    def __str__(self) -> str:
        return f"{self.mapping}  {self.schedule}"


@dataclass(frozen=True)
class Plan:
    """The common part of the plans of all targets."""

    mapping: Mapping
    schedule: Schedule

    @cached_property
    def structure(self) -> Structure:
        """Loops and operands as numbers."""
        return Structure(self.mapping)

    @property
    def nest(self) -> Nest:
        """Loops of the mapping."""
        return self.structure.nest

    @cached_property
    def spatial(self) -> tuple[Loop, ...]:
        """Spatial loops with more than one step, outermost first."""
        return self.schedule.spatial_order(self.nest)

    @cached_property
    def reduce_loops(self) -> tuple[Loop, ...]:
        """Reduction loops with more than one step, outermost first."""
        return self.schedule.reduce_order(self.nest)

    def _along(self, counts: np.ndarray) -> dict[str, int]:
        """Name the counts of the spatial loops, outermost first: loops × 1 → by the loop's name."""
        number = {loop.name: n for n, loop in enumerate(self.structure.spatial)}
        return {loop.name: int(counts[number[loop.name], 0]) for loop in self.spatial}


def batch_of(structure: Structure, schedules: Sequence[Schedule]) -> LoopBatch:
    """Return schedules of one mapping and one target as arrays, one row each.

    Raises:
        ScheduleError: an order does not name the mapping's loops.
    """
    nest = structure.nest
    numbers = {x.name: n for n, x in enumerate((*structure.spatial, *structure.reduce))}
    rows = [
        schedule._row(structure)
        | {
            "tile": [schedule.tile[loop.name] for loop in structure.spatial],
            "order": [numbers[loop.name] for loop in schedule.spatial_order(nest)],
            "reduce": [numbers[loop.name] for loop in schedule.reduce_order(nest)],
            "split": schedule.split,
        }
        for schedule in schedules
    ]
    kind = type(schedules[0])._batch
    columns = {
        name: np.array(
            [row[name] for row in rows], dtype=np.bool_ if name in kind.flags else np.int64
        )
        for name in rows[0]
    }
    return kind(**columns)


def _order_loops(
    loops: tuple[Loop, ...], order: tuple[str, ...] | None, variable: str
) -> tuple[Loop, ...]:
    live = {loop.name: loop for loop in loops if loop.extent > 1}
    if order is None:
        return tuple(live.values())
    if sorted(order) != sorted(live):
        raise ScheduleError(
            f"{variable} = {' '.join(order)!r}: expected an order of "
            f"{', '.join(live) or 'no loops'}"
        )
    return tuple(live[name] for name in order)
