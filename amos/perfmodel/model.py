"""The hierarchical performance model (AMOS, section 5.3).

``L_l = (prod S_l) * max(L_{l-1}, R_{l-1}, W_{l-1})`` with ``R = DataIn / bandwidth``
and ``W = DataOut / bandwidth``; level 0 is the intrinsic. The loops of a level
are those between the point where the data of one execution fits the level's
memory and the point where it fits the next one.

Caches are taken as warm, as they are when a kernel is timed repeatedly: what fits
a level as a whole is not loaded into it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from amos.mapping.mapping import Mapping
from amos.mapping.nest import Nest
from amos.mapping.staging import StagedOperand, staged_destination, staged_sources
from amos.perfmodel.loops import (
    LoopSchedule,
    ScheduledLoop,
    divided,
    element_bytes,
    footprint,
    traffic,
    trips,
)
from amos.perfmodel.machine import Level, Machine

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LevelTime", "Prediction", "predict"]


@dataclass(frozen=True)
class LevelTime:
    """What one level costs over the whole computation, in seconds.

    Attributes:
        level: name of the memory that feeds this level (``"intrinsic"`` for 0).
        trips: ``prod S_l``, executions of this level's loops.
        compute: seconds spent by everything inside.
        read: seconds to bring the sources in.
        write: seconds to take the destination out.
        bytes_in: bytes read through the level by one group of cores.
        bytes_out: bytes written out through it by one group.
        slowest: name of the operand with the most traffic.
    """

    level: str
    trips: int
    compute: float
    read: float
    write: float
    bytes_in: float
    bytes_out: float
    slowest: str


@dataclass(frozen=True)
class Prediction:
    """A predicted run time and where it goes.

    Attributes:
        seconds: predicted latency of the whole operator.
        rows: one :class:`LevelTime` a level, the intrinsic first.
        staging: seconds spent moving operands into their staged form.
        launch: seconds spent starting parallel regions.
    """

    seconds: float
    rows: tuple[LevelTime, ...]
    staging: float
    launch: float

    @property
    def levels(self) -> pd.DataFrame:
        """One row a level: compute, read, write in seconds, and which one binds."""
        import pandas as pd

        frame = pd.DataFrame([vars(row) for row in self.rows]).set_index("level")
        frame["binding"] = [row.level == self._binding[0] for row in self.rows]
        return frame

    @property
    def bound(self) -> str:
        """What limits the run, in words."""
        level, kind, seconds = self._binding
        kernel = max(row.compute for row in self.rows[:1])
        if max(self.staging, self.launch) > seconds:
            return "staging of operands" if self.staging >= self.launch else "parallel launch"
        if kind == "compute":
            return "issue of the intrinsic"
        row = next(row for row in self.rows if row.level == level)
        what = f"{level} {kind}s of `{row.slowest}`"
        return f"{what}: {seconds / kernel:.2g}x the compute time"

    @property
    def _binding(self) -> tuple[str, str, float]:
        best = (self.rows[0].level, "compute", self.rows[0].compute)
        for row in self.rows[1:]:
            for kind in ("read", "write"):
                if getattr(row, kind) > best[2]:
                    best = (row.level, kind, getattr(row, kind))
        return best


def predict(mapping: Mapping, machine: Machine, schedule: LoopSchedule) -> Prediction:
    """Predict the latency of a mapping under a schedule.

    Args:
        mapping: what goes where.
        machine: memory levels and the rate of the mapping's intrinsic.
        schedule: order, tiling and parallel loops.

    Raises:
        MachineError: the machine has no rate for the intrinsic.
    """
    nest = Nest(mapping)
    loops = schedule.loops(nest)
    sources, destination = staged_sources(nest), staged_destination(nest)
    cores = min(machine.cores, _parallel(loops))
    rows = [_intrinsic_row(nest, machine, loops, destination, cores)]
    inside = rows[0].compute
    for number, level in enumerate(machine.levels):
        # Cores that share the memory which this level fills work as one group.
        groups = cores if number == 0 else min(cores, machine.levels[number - 1].units)
        shared_out = divided(loops, groups)
        if number == 0:
            depth = _register_depth(shared_out)
        else:
            inner = machine.levels[number - 1]
            depth = _fitting_depth(shared_out, (*sources, destination), inner)
        row = _memory_row(level, shared_out, depth, sources, destination, groups, inside, nest)
        rows.append(row)
        inside = max(inside, row.read, row.write)
    staging, regions = _staging(machine, loops, sources, destination, schedule)
    launch = machine.launch * (regions + 1)
    return Prediction(inside + staging + launch, tuple(rows), staging, launch)


def _parallel(loops: tuple[ScheduledLoop, ...]) -> int:
    return prod(loop.extent for loop in loops if loop.role == "parallel")


def _register_depth(loops: tuple[ScheduledLoop, ...]) -> int:
    return next((i for i, loop in enumerate(loops) if loop.role == "register"), len(loops))


def _fitting_depth(
    loops: tuple[ScheduledLoop, ...], operands: tuple[StagedOperand, ...], level: Level
) -> int:
    """Outermost depth whose data fits the level; the whole nest if it all fits."""
    for depth in range(len(loops) + 1):
        if sum(footprint(op, loops[depth:]) for op in operands) <= level.capacity:
            return depth
    return len(loops)


def _intrinsic_row(
    nest: Nest,
    machine: Machine,
    loops: tuple[ScheduledLoop, ...],
    destination: StagedOperand,
    cores: int,
) -> LevelTime:
    """Level 0: calls issue at full rate only with enough independent accumulators."""
    peak = machine.peak(nest.mapping.intrinsic.name)
    indexed = {name for dim in destination.dims for name in dim.index.names}
    chains = prod(x.extent for x in loops if x.role == "register" and x.loop in indexed)
    calls = trips([x for x in loops if x.role != "parallel"]) * -(-_parallel(loops) // cores)
    seconds = calls * max(peak.interval, peak.latency / chains)
    return LevelTime("intrinsic", calls, seconds, 0.0, 0.0, 0.0, 0.0, "")


def _memory_row(
    level: Level,
    loops: tuple[ScheduledLoop, ...],
    depth: int,
    sources: tuple[StagedOperand, ...],
    destination: StagedOperand,
    groups: int,
    inside: float,
    nest: Nest,
) -> LevelTime:
    """What one group of cores moves through a level, and how long that takes."""
    share = level.share(groups)
    moved = {op.name: traffic(op, loops, depth) for op in sources}
    written = traffic(destination, loops, depth)
    if depth == 0:
        # All of it stays in the memory inside from one run to the next.
        moved, written = dict.fromkeys(moved, 0.0), 0.0
    if all(loop.role == "register" for loop in loops[depth:]):
        # A replicated fragment takes as long to load as the register it fills.
        moved = {op.name: moved[op.name] * _replication(nest, op) for op in sources}
    bytes_in = sum(moved.values())
    return LevelTime(
        level.name,
        trips(loops[:depth]),
        inside,
        bytes_in / (level.read_bandwidth * share),
        written / (level.write_bandwidth * share),
        bytes_in,
        written,
        max(moved, key=lambda name: moved[name], default=""),
    )


def _replication(nest: Nest, operand: StagedOperand) -> int:
    """How many copies of a fragment the hardware makes in one register."""
    factor = 1
    for statement in nest.mapping.intrinsic.memory:
        if statement.operand == operand.name:
            for target in statement.broadcast:
                factor *= nest.groups[target].lanes
    return factor


def _staging(
    machine: Machine,
    loops: tuple[ScheduledLoop, ...],
    sources: tuple[StagedOperand, ...],
    destination: StagedOperand,
    schedule: LoopSchedule,
) -> tuple[float, int]:
    """Seconds spent on copies, and the number of parallel regions they add.

    A copy streams through the innermost level that holds both its ends. One that
    is made tile by tile needs no region, but repeats what tiles share.
    """
    seconds, regions = 0.0, 0
    cores = min(machine.cores, _parallel(loops))
    shared_out = divided(loops, cores)
    inside = sum(loop.role == "parallel" for loop in loops)
    for op in (*sources, destination):
        if op.in_place or op.load.tensor.name in op.nest.mapping.operator.constants:
            continue
        if op is destination or schedule.stages_ahead(op.name):
            moved = (op.elements + op.load.tensor.elements) * element_bytes(op)
            home = _holding(machine, moved)
            seconds += moved / (_copy_rate(home) * min(machine.cores, home.units))
            regions += 1
        else:
            moved = 2 * footprint(op, shared_out[inside:])
            home = _holding(machine, moved)
            seconds += moved * trips(shared_out[:inside]) / (_copy_rate(home) * home.share(cores))
    return seconds, regions


def _holding(machine: Machine, size: float) -> Level:
    """The innermost level that holds ``size`` bytes."""
    fitting = (level for level in machine.levels if level.capacity >= size)
    return next(fitting, machine.levels[-1])


def _copy_rate(level: Level) -> float:
    return min(level.read_bandwidth, level.write_bandwidth)
