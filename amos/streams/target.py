"""Units that streams of instructions drive, as VTA and Gemmini."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine
from amos.mapping.mapping import Mapping as LoopMapping
from amos.perfmodel.bound import Bound, Optimum
from amos.perfmodel.terms import BatchPrediction
from amos.plan.schedule import Candidate, Plan, Schedule
from amos.plan.structure import LoopBatch, Structure
from amos.plan.target import ExecutorRequest, Target
from amos.schedule.draft import Rule
from amos.streams.model import predict_streams
from amos.streams.plan import StreamPlan
from amos.streams.rules import STREAM_RULES
from amos.streams.schedule import StreamSchedule
from amos.streams.tiles import StreamTiles, runs_streams

if TYPE_CHECKING:
    from amos.measure.executor import Executor
    from amos.schedule.space import ScheduleSpace
    from amos.streams.runtime import StreamKernel


class Streams(Target):
    """Machines with a stream unit."""

    name: ClassVar[str] = "stream"
    schedule: ClassVar[type[Schedule]] = StreamSchedule
    exports: ClassVar[Mapping[str, str]] = {
        "stream": "amos.streams.export.files",
        "vta": "amos.streams.export.vta_files",
    }
    checks_spaces: ClassVar[bool] = True
    has_engine: ClassVar[bool] = False
    counts_accesses: ClassVar[bool] = True
    has_simulator: ClassVar[bool] = True

    def claims(self, machine: Machine) -> bool:
        """Return whether a machine's description has a table ``stream``."""
        return machine.stream is not None

    def takes_units(self, machine: Machine) -> bool:
        """Return whether its streams are loops around calls."""
        return machine.stream is not None and machine.stream.encoding == "calls"

    def runs(self, structure: Structure, machine: Machine) -> bool:
        """Return whether the unit has a rate for the intrinsic."""
        return runs_streams(structure, machine)

    @property
    def rules(self) -> Sequence[Rule]:
        """Rules of tiles in buffers."""
        return STREAM_RULES

    def plan(self, mapping: LoopMapping, schedule: Schedule, machine: Machine | None) -> StreamPlan:
        """Plan the tiles in buffers, and when each is loaded."""
        assert machine is not None
        return StreamPlan.of(mapping, schedule, machine)

    def emit(self, plan: Plan) -> str:
        """Print the instructions by queue."""
        from amos.streams.runtime.encodings import encoder_of

        assert isinstance(plan, StreamPlan)
        return str(encoder_of(plan.unit).program(plan))

    def predict(
        self, structure: Structure, machine: Machine, batch: LoopBatch, *, refined: bool
    ) -> BatchPrediction:
        """Predict transfers that overlap products; there is only the refined model."""
        return predict_streams(structure, machine, batch)

    def overflows(self, structure: Structure, machine: Machine, batch: LoopBatch) -> list[str]:
        """List the buffers that tiles exceed."""
        buffers = StreamTiles(structure, batch).find_overfull(machine).items()
        return [f"the tiles in buffer {name} exceed it" for name, over in buffers if over[0]]

    def floor_seconds(self, structure: Structure, machine: Machine) -> float:
        """Bound a mapping's seconds by its calls, and by what they touch in DRAM."""
        from amos.streams.tilings import Tilings

        return Tilings(structure.mapping, machine).floor_seconds

    def bound(self, mappings: Sequence[LoopMapping], machine: Machine) -> Bound | None:
        """Find the least traffic that buffers allow, and its time and energy."""
        from amos.streams.bounds import bound_of

        return bound_of(mappings, machine)

    def find_optimum(
        self,
        spaces: Sequence[ScheduleSpace],
        machine: Machine,
        objective: str,
        limit_seconds: float,
    ) -> Optimum | None:
        """Find it by branch and bound over mappings and tilings."""
        from amos.streams.optimum import find_optimum

        return find_optimum(spaces, machine, objective, limit_seconds)

    def list_missing(self, intrinsic: Intrinsic, machine: Machine) -> list[str]:
        """List what is missing: a rate, or buffers that fit one fragment of each operand."""
        from amos.streams.executor import missing_of_buffers

        return super().list_missing(intrinsic, machine) + missing_of_buffers(intrinsic, machine)

    def check_operator(self, operator: Operator, intrinsic: Intrinsic, machine: Machine) -> None:
        """Refuse operations that the unit cannot do besides products."""
        from amos.streams.runtime.encodings import encoder_of

        assert machine.stream is not None
        encoder_of(machine.stream).check(operator, machine.stream, intrinsic.name)

    def load_simulated(self, candidate: Candidate, machine: Machine) -> StreamKernel:
        """Write the candidate as a stream."""
        from amos.streams.runtime import StreamKernel

        return StreamKernel(candidate, machine)

    def open_executor(self, request: ExecutorRequest) -> Executor | None:
        """Open a simulator of the unit."""
        from amos.streams.executor import SimulatorExecutor

        if request.address is None:
            return SimulatorExecutor(request.machine, request.timeout, request.memory)
        return super().open_executor(request)
