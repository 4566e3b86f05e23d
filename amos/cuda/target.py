"""CUDA machines: warps on Tensor Cores, with operands in shared memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from amos.cuda.blocks import Blocks, runs_warps
from amos.cuda.explain import explain
from amos.cuda.model import predict_blocks
from amos.cuda.plan import GpuPlan, architecture_of
from amos.cuda.rules import GPU_RULES
from amos.cuda.schedule import GpuSchedule
from amos.errors import ExploreError
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.mapping.mapping import Mapping as LoopMapping
from amos.perfmodel.batch import describe_overflows, predict_cores
from amos.perfmodel.terms import BatchPrediction
from amos.plan.schedule import Plan, Schedule
from amos.plan.structure import LoopBatch, Structure
from amos.plan.target import ExecutorRequest, Target
from amos.schedule.draft import Rule

if TYPE_CHECKING:
    from amos.measure.executor import Executor


class Cuda(Target):
    """Machines with a CUDA architecture among their features."""

    name: ClassVar[str] = "cuda"
    schedule: ClassVar[type[Schedule]] = GpuSchedule
    templates: ClassVar[str] = "few_cuda.json"
    exports: ClassVar[Mapping[str, str]] = {"cuda": "amos.cuda.export.files"}
    selfcheck: ClassVar[str] = "amos.cuda.selfcheck.check_cuda"

    def claims(self, machine: Machine) -> bool:
        """Return whether a machine has an architecture such as ``sm_80``."""
        return bool(machine.architecture)

    def runs(self, structure: Structure, machine: Machine) -> bool:
        """Return whether the intrinsic reads matrices from shared memory."""
        return runs_warps(structure, machine)

    @property
    def rules(self) -> Sequence[Rule]:
        """Those of a thread block."""
        return GPU_RULES

    def plan(self, mapping: LoopMapping, schedule: Schedule, machine: Machine | None) -> GpuPlan:
        """Plan the kernel of thread blocks."""
        assert machine is not None
        return GpuPlan.of(mapping, schedule, architecture_of(machine))

    def emit(self, plan: Plan) -> str:
        """Emit the kernel in CUDA C++."""
        from amos.cuda.codegen.kernel import KernelText

        assert isinstance(plan, GpuPlan)
        return KernelText(plan).source

    def predict(
        self, structure: Structure, machine: Machine, batch: LoopBatch, *, refined: bool
    ) -> BatchPrediction:
        """Predict thread blocks, or the paper's equation: cores under caches."""
        if refined:
            return predict_blocks(structure, machine, batch)
        return predict_cores(structure, machine, batch, refined=False)

    def workspace_bytes(
        self, structure: Structure, machine: Machine | None, batch: LoopBatch
    ) -> np.ndarray:
        """Return 0: copies are in shared memory, and parts are added in the result."""
        return np.zeros(len(batch))

    def overflows(self, structure: Structure, machine: Machine, batch: LoopBatch) -> list[str]:
        """Return what exceeds registers and shared memory of a thread block."""
        blocks = Blocks(structure, machine.multiprocessor, batch)
        needs = {machine.levels[0].name: (blocks.shared_bytes, blocks.unit.block_shared)}
        if registers := structure.mapping.intrinsic.registers:
            fragments = batch.live_fragments(structure)
            needs = {"registers": (fragments, registers), **needs}
        return describe_overflows(machine, needs)

    def explain(
        self, prediction: BatchPrediction, row: int, sources: Sequence[str]
    ) -> tuple[tuple[str, str], ...]:
        """Explain effects of banks, stages, widths, waves and parts on a row."""
        return explain(prediction, row, sources)

    def executes(self, intrinsic: Intrinsic, machine: Machine) -> bool:
        """Return whether a machine runs an instruction of this or an older architecture."""
        return 0 < intrinsic.architecture <= machine.architecture

    def open_executor(self, request: ExecutorRequest) -> Executor | None:
        """Open this machine's GPU by its driver: ``gpu``, or ``gpu:LIBRARY``."""
        from amos.cuda.executor import GpuExecutor

        machine, intrinsic = request.machine, request.intrinsic
        if intrinsic is not None and 0 < machine.architecture < intrinsic.architecture:
            raise ExploreError(
                f"{intrinsic.name} needs sm_{intrinsic.architecture}, and machine "
                f"{machine.name!r} is sm_{machine.architecture}"
            )
        return GpuExecutor.open(request)
