"""The hierarchical performance model (AMOS, section 5.3).

``L_l = (prod S_l) * max(L_{l-1}, R_{l-1}, W_{l-1})`` with ``R = DataIn / bandwidth``
and ``W = DataOut / bandwidth``; level 0 is the intrinsic. The loops of a level
are those between the point where the data of one execution fits the level's
memory and the point where it fits the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amos.errors import MachineError
from amos.mapping.mapping import Mapping
from amos.mapping.nest import Nest
from amos.mapping.staging import StagedOperand, staged_destination, staged_sources
from amos.perfmodel.loops import (
    LoopSchedule,
    ScheduledLoop,
    element_bytes,
    executions,
    footprint,
    traffic,
)
from amos.perfmodel.machine import Level, Machine

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LevelTime", "Prediction", "predict"]


@dataclass(frozen=True)
class LevelTime:
    """What one level costs over the whole computation, in seconds for one core.

    Attributes:
        level: name of the memory that feeds this level (``"intrinsic"`` for 0).
        trips: ``prod S_l``, executions of this level's loops.
        compute: seconds spent by everything inside.
        read: seconds to bring the sources in.
        write: seconds to take the destination out.
        bytes_in: bytes read into the level by one core.
        bytes_out: bytes written out of it by one core.
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
    return predict_loops(nest, machine, schedule.loops(nest))


def predict_loops(nest: Nest, machine: Machine, loops: tuple[ScheduledLoop, ...]) -> Prediction:
    """Predict the latency of a scheduled nest; see :func:`predict`."""
    sources, destination = staged_sources(nest), staged_destination(nest)
    cores = max(1, min(machine.cores, _parallel(loops)))
    rows = [_intrinsic_row(nest, machine, loops, destination, cores)]
    inside = rows[0].compute
    previous = len(loops)
    for number, level in enumerate(machine.levels):
        if number == 0:
            depth = _register_depth(loops)
        else:
            depth = _fitting_depth(loops, (*sources, destination), machine.levels[number - 1])
        depth = min(depth, previous)
        row = _memory_row(level, loops, depth, sources, destination, cores, inside, nest)
        rows.append(row)
        inside = max(inside, row.read, row.write)
        previous = depth
    staging, regions = _staging(nest, machine, sources, destination)
    launch = machine.launch * (regions + 1)
    return Prediction(inside + staging + launch, tuple(rows), staging, launch)


def _parallel(loops: tuple[ScheduledLoop, ...]) -> int:
    total = 1
    for loop in loops:
        total *= loop.extent if loop.role == "parallel" else 1
    return total


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
    chains = 1
    for loop in loops:
        if loop.role == "register" and loop.loop in indexed:
            chains *= loop.extent
    calls = executions(loops, cores)
    seconds = calls * max(peak.interval, peak.latency / chains)
    return LevelTime("intrinsic", calls, seconds, 0.0, 0.0, 0.0, 0.0, "")


def _memory_row(
    level: Level,
    loops: tuple[ScheduledLoop, ...],
    depth: int,
    sources: tuple[StagedOperand, ...],
    destination: StagedOperand,
    cores: int,
    inside: float,
    nest: Nest,
) -> LevelTime:
    share = level.share(cores)
    moved = {op.name: traffic(op, loops, depth, cores) for op in sources}
    if all(loop.role == "register" for loop in loops[depth:]):
        # A replicated fragment takes as long to load as the register it fills.
        moved = {op.name: moved[op.name] * _replication(nest, op) for op in sources}
    bytes_in, bytes_out = sum(moved.values()), traffic(destination, loops, depth, cores)
    return LevelTime(
        level.name,
        executions(loops[:depth], cores),
        inside,
        bytes_in / (level.read_bandwidth * share),
        bytes_out / (level.write_bandwidth * share),
        bytes_in,
        bytes_out,
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
    nest: Nest,
    machine: Machine,
    sources: tuple[StagedOperand, ...],
    destination: StagedOperand,
) -> tuple[float, int]:
    """Seconds and number of parallel regions of the copies around the main nest.

    Each copy streams through the level that holds both its ends.
    """
    constants = nest.mapping.operator.constants
    seconds, regions = 0.0, 0
    for op in (*sources, destination):
        if op.in_place or op.load.tensor.name in constants:
            continue
        size = element_bytes(op)
        staged, tensor = op.elements * size, op.load.tensor.elements * size
        home = next(
            (lv for lv in machine.levels if lv.capacity and lv.capacity >= staged + tensor),
            machine.levels[-1],
        )
        rate = min(home.read_bandwidth, home.write_bandwidth)
        busy = min(machine.cores, max(1, home.units * machine.cores // machine.cores))
        seconds += (staged + tensor) / (rate * busy)
        regions += 1
    return seconds, regions


def check_machine(machine: Machine, intrinsic: str) -> None:
    """Refuse early a machine that has no figures for an intrinsic.

    Raises:
        MachineError: no rate is known.
    """
    machine.peak(intrinsic)
    if not machine.levels:
        raise MachineError(f"machine {machine.name!r} has no levels")
