"""OpenCL devices: work-groups, with operands in local memory or in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from amos.machine import Machine
from amos.mapping.mapping import Mapping as LoopMapping
from amos.opencl.groups import WorkGroups
from amos.opencl.model import predict_groups
from amos.opencl.plan import OpenClPlan, unit_of
from amos.opencl.rules import OPENCL_RULES
from amos.opencl.schedule import OpenClSchedule
from amos.perfmodel.batch import describe_overflows, predict_cores
from amos.perfmodel.terms import BatchPrediction
from amos.plan.schedule import Plan, Schedule
from amos.plan.structure import LoopBatch, Structure
from amos.plan.target import ExecutorRequest, Target
from amos.schedule.draft import Rule

if TYPE_CHECKING:
    from amos.measure.executor import Executor


class OpenCl(Target):
    """Machines that are described as devices of OpenCL."""

    name: ClassVar[str] = "opencl"
    schedule: ClassVar[type[Schedule]] = OpenClSchedule
    templates: ClassVar[str] = "few_opencl.json"
    chains: ClassVar[str] = "amos.opencl.chains"
    exports: ClassVar[Mapping[str, str]] = {"opencl": "amos.opencl.export.files"}
    has_engine: ClassVar[bool] = False

    def claims(self, machine: Machine) -> bool:
        """Return whether a machine describes compute units."""
        return machine.opencl is not None

    @property
    def rules(self) -> Sequence[Rule]:
        """Those of a work-group."""
        return OPENCL_RULES

    def plan(self, mapping: LoopMapping, schedule: Schedule, machine: Machine | None) -> OpenClPlan:
        """Plan the kernel of work-groups."""
        assert machine is not None
        return OpenClPlan.of(mapping, schedule, machine)

    def emit(self, plan: Plan) -> str:
        """Emit the kernel in OpenCL C."""
        from amos.opencl.codegen import KernelText

        assert isinstance(plan, OpenClPlan)
        return KernelText(plan).source

    def predict(
        self, structure: Structure, machine: Machine, batch: LoopBatch, *, refined: bool
    ) -> BatchPrediction:
        """Predict work-groups, or the paper's equation: cores under caches."""
        if refined:
            return predict_groups(structure, machine, batch)
        return predict_cores(structure, machine, batch, refined=False)

    def workspace_bytes(
        self, structure: Structure, machine: Machine | None, batch: LoopBatch
    ) -> np.ndarray:
        """Return 0: copies are in local memory, and each work-item stores its own results."""
        return np.zeros(len(batch))

    def overflows(self, structure: Structure, machine: Machine, batch: LoopBatch) -> list[str]:
        """Return what exceeds the local memory of a group."""
        groups = WorkGroups(structure, batch, machine)
        return describe_overflows(
            machine, {"local memory": (groups.local_bytes, unit_of(machine).local_bytes)}
        )

    def open_executor(self, request: ExecutorRequest) -> Executor | None:
        """Open a device that pyopencl finds: ``opencl``, or ``opencl:WORDS`` of its name."""
        from amos.opencl.executor import OpenClExecutor

        return OpenClExecutor.open(request)
