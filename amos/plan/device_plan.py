"""Shared parts of plans of parallel devices: groups along loops, arguments, results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import prod

from amos.errors import BuildError, TaskMappingError
from amos.ir import Tensor, dtype
from amos.ir.index_text import Value
from amos.ir.tasks import TaskMapping, repeat, spatial
from amos.mapping.mapping import Mapping
from amos.plan.device_schedule import DeviceSchedule
from amos.plan.groups import Groups
from amos.plan.schedule import Plan
from amos.plan.staging import staged_sources

#: Bits of an element that reductions are put together in.
_TOGETHER = 32


def narrow_results(mapping: Mapping, language: str) -> Iterator[str]:
    """Explain which reductions of the output a kernel cannot combine in their own result."""
    for result in mapping.operator.further:
        kind = dtype(str(result.tensor(mapping.intrinsic.dtypes[-1]).dtype))
        if result.reduces and kind.bits < _TOGETHER:
            yield (
                f"{language} kernels put a reduction together in its own result, as s32 or f32, "
                f"and {result} leaves {kind.short}"
            )


@dataclass(frozen=True)
class DevicePlan(Plan):
    """A kernel of groups that stage the steps of a reduction together.

    Fields without a value of their own are the numbers of :attr:`counts` under the same names.
    """

    schedule: DeviceSchedule
    staged: int = field(init=False)
    sequence: int = field(init=False)
    raster: int = field(init=False)
    accumulators: int = field(init=False)
    whole_source: int = field(init=False)

    @property
    @abstractmethod
    def counts(self) -> Groups:
        """All numbers of the plan, as a batch of one."""

    @property
    @abstractmethod
    def device(self) -> str:
        """Name of the device, for messages."""

    def _set_numbers(self) -> None:
        for number in fields(self):
            if not number.init:
                value = int(getattr(self.counts, number.name)[0])
                object.__setattr__(self, number.name, value)

    @cached_property
    def spans(self) -> dict[str, int]:
        """Steps that a group makes along each spatial loop."""
        return self._along(self.counts.span)

    @cached_property
    def blocks(self) -> dict[str, int]:
        """Groups along each spatial loop."""
        return self._along(self.counts.blocks)

    @property
    def grid_tasks(self) -> TaskMapping:
        """Assignment of tiles to groups, along the spatial loops in order."""
        counts, raster = tuple(self.blocks.values()), self.raster
        if raster == 1:
            return spatial(*counts)
        *outer, rows, columns = counts
        ones = (1,) * len(outer)
        turns = spatial(*outer, rows // raster, 1) * spatial(*ones, 1, columns)
        return turns * spatial(*ones, raster, 1)

    def check_grid(self, grid: TaskMapping | None) -> None:
        """Raise TaskMappingError for other tiles, or groups that do not compute one each."""
        tiles = self.grid_tasks
        if grid and (grid.shape, grid.workers, grid.turns) != (tiles.shape, tiles.workers, 1):
            raise TaskMappingError(
                f"grid of {self.mapping.title}: expected {tiles.workers} blocks and a tile of "
                f"{tiles.shape} for each, got {grid.workers} blocks in {grid.turns} "
                f"turn{'s' * (grid.turns > 1)} and {grid.shape}: {grid}"
            )

    @property
    def worker_tasks(self) -> TaskMapping:
        """Assignment of register tiles to the workers of a group, along the spatial loops in order.

        If fragments are interleaved, it assigns fragments of every tile.
        """
        return spatial(*(self.schedule.blocks[loop.name] for loop in self.spatial))

    @property
    def tasks(self) -> TaskMapping:
        """Assignment of the result's fragments to the workers of the launch."""
        tile = repeat(*(self.schedule.tile[loop.name] for loop in self.spatial))
        interleaved = self.schedule.fragments == "interleaved"
        group = tile * self.worker_tasks if interleaved else self.worker_tasks * tile
        extents = (loop.extent for loop in self.spatial)
        return (self.grid_tasks * group).clip(*extents)

    def distances(self, loop: str) -> tuple[int, int]:
        """Return the steps of a loop between neighbouring workers, and between fragments of one."""
        if self.schedule.fragments == "interleaved":
            return 1, self.schedule.blocks[loop]
        return self.schedule.tile[loop], 1

    @property
    def reach(self) -> dict[str, int]:
        """Steps from a worker's first fragment to the end of its last, along each spatial loop."""
        return {
            loop.name: (self.schedule.tile[loop.name] - 1) * self.distances(loop.name)[1] + 1
            for loop in self.spatial
        }

    def step(self, loop: str, worker: Value, fragment: Value) -> Value:
        """Return the step of a loop within the group that a worker's fragment belongs to."""
        workers, fragments = self.distances(loop)
        return worker * workers + fragment * fragments

    @property
    def reduction(self) -> int:
        """Steps of the whole reduction."""
        return prod(x.extent for x in self.reduce_loops)

    @property
    def accumulator(self) -> str:
        """Canonical type of an element of an accumulator."""
        return self.mapping.intrinsic.dtypes[-1]

    @property
    def stored_dtype(self) -> str:
        """Canonical type of an element of the output."""
        epilogue = self.mapping.operator.epilogue
        return self.accumulator if epilogue is None else epilogue.result(self.accumulator)

    @cached_property
    def arguments(self) -> dict[str, str]:
        """Canonical type of each argument of the kernel: inputs in order, then the results."""
        op = self.mapping.operator
        kinds = {x.load.tensor.name: x.tensor_kind for x in staged_sources(self.nest)}
        for load in (load for each in (*op.prologues, *op.epilogues) for load in each.loads):
            kinds[load.tensor.name] = str(load.tensor.dtype)
        inputs = {tensor.name: kinds[tensor.name] for tensor in op.inputs}
        return inputs | {tensor.name: str(tensor.dtype) for tensor in self.results}

    @cached_property
    def results(self) -> tuple[Tensor, ...]:
        """The stored tensors, the output first, with the dtypes of their elements."""
        op = self.mapping.operator
        first = replace(op.result, dtype=self.stored_dtype)
        return (first, *(each.tensor(self.accumulator) for each in op.further))

    @cached_property
    def zeroed(self) -> bool:
        """Whether the output must be zero before the launch, as it is not written whole."""
        operator = self.mapping.operator
        return not (operator.fills(operator.stored) or self.keeps_elements)

    @cached_property
    def keeps_elements(self) -> bool:
        """Whether elements of the output that are not written keep their values."""
        operator = self.mapping.operator
        return operator.store is not None and not operator.fills(operator.store)

    def _refuse(self, problems: Iterable[str]) -> None:
        for problem in problems:
            raise BuildError(f"{self.mapping.name} on {self.device}: {problem}")
