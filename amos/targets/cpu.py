"""Cores under memory levels: CPUs, and described machines that only the model supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from amos.errors import MachineError
from amos.intrinsics import Intrinsic, implementations
from amos.machine import Machine
from amos.machine.cpu import cpu
from amos.machine.limits import CpuLimits
from amos.mapping.mapping import Mapping as LoopMapping
from amos.perfmodel.batch import find_overflows, floor_of_calls, predict_cores
from amos.perfmodel.bound import Optimum
from amos.perfmodel.terms import BatchPrediction
from amos.plan.cpu_blocks import CpuBlocks
from amos.plan.cpu_plan import CpuPlan
from amos.plan.schedule import Candidate, CpuSchedule, Plan, Schedule
from amos.plan.structure import LoopBatch, Structure
from amos.plan.target import Target
from amos.schedule.draft import Rule
from amos.schedule.rules import RULES

if TYPE_CHECKING:
    from amos.schedule.space import ScheduleSpace


class Cpu(Target):
    """The target of each machine that no other one claims."""

    name: ClassVar[str] = "cpu"
    schedule: ClassVar[type[Schedule]] = CpuSchedule
    templates: ClassVar[str] = "few_cpu.json"
    exports: ClassVar[Mapping[str, str]] = {
        "c": "amos.export.c.files",
        "so": "amos.export.c.library",
    }
    needs_machine: ClassVar[bool] = False

    def claims(self, machine: Machine) -> bool:
        """Return ``True``: any machine may be a CPU."""
        return True

    @property
    def rules(self) -> Sequence[Rule]:
        """Those of a register tile."""
        return RULES

    def plan(self, mapping: LoopMapping, schedule: Schedule, machine: Machine | None) -> CpuPlan:
        """Plan the kernel with the instruction itself, or with loops where this CPU lacks it."""
        if machine is not None and not machine.cached:
            raise MachineError(
                f"machine {machine.name!r}: expected a CPU, a CUDA machine or a stream unit"
            )
        cpu_schedule = CpuSchedule.of(schedule.as_dict())
        cpu_schedule.batch(Structure(mapping))
        native = "llvm" in implementations(mapping.intrinsic.name)
        if machine is None:
            native = native and {*mapping.intrinsic.requires} <= cpu().features
        limits = CpuLimits.here() if machine is None else CpuLimits.of(machine)
        return CpuPlan(mapping, cpu_schedule, limits, "native" if native else "generic")

    def emit(self, plan: Plan) -> str:
        """Print the kernel in C."""
        from amos.codegen.c.source import c_kernel

        assert isinstance(plan, CpuPlan)
        kernel = c_kernel(Candidate(plan.mapping, plan.schedule), plan.limits)
        return kernel.helpers + kernel.body

    def predict(
        self, structure: Structure, machine: Machine, batch: LoopBatch, *, refined: bool
    ) -> BatchPrediction:
        """Evaluate the equation of the paper, level by level."""
        return predict_cores(structure, machine, batch, refined=refined)

    def floor_seconds(self, structure: Structure, machine: Machine) -> float:
        """Return the time of a mapping's calls, dealt out evenly."""
        return floor_of_calls(structure, machine)

    def find_optimum(
        self,
        spaces: Sequence[ScheduleSpace],
        machine: Machine,
        objective: str,
        limit_seconds: float,
    ) -> Optimum | None:
        """Find it by branch and bound over mappings, tiles and loops."""
        from amos.targets.optimum import find_cpu_optimum

        return find_cpu_optimum(spaces, machine, limit_seconds) if machine.cached else None

    def workspace_bytes(
        self, structure: Structure, machine: Machine | None, batch: LoopBatch
    ) -> np.ndarray:
        """Return the bytes of copied sources, and of results that are staged or come in parts."""
        if machine is not None:
            return CpuBlocks.of(structure, machine, batch).workspace_bytes
        return CpuBlocks(structure, CpuLimits.here(), batch).workspace_bytes

    def list_missing(self, intrinsic: Intrinsic, machine: Machine) -> list[str]:
        """List a missing rate, and missing queues to fill the buffers of an intrinsic."""
        missing = super().list_missing(intrinsic, machine)
        if intrinsic.scratchpads:
            missing.append(
                f"{intrinsic.name}: expected a [stream] table of {machine.name!r}, whose queues "
                f"fill buffer {intrinsic.scratchpads[0].name}"
            )
        return missing

    def overflows(self, structure: Structure, machine: Machine, batch: LoopBatch) -> list[str]:
        """Describe the registers and scratchpads that overflow."""
        return find_overflows(structure, machine, batch)
