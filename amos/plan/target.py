"""A target: schedules, rules, plan, model, executor and exports of one kind of machine.

A target is a class of one package, registered by one line of :data:`TARGETS`, as search methods
are. Rooms ask the target of a machine for all of these.

>>> from amos.machine import catalogue
>>> target_of(catalogue.get("a100")).name, target_of(catalogue.get("xeon_6240")).name
('cuda', 'cpu')
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from amos.errors import BuildError, MeasureError
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine
from amos.mapping.mapping import Mapping as LoopMapping
from amos.plan.schedule import Plan, Schedule
from amos.plan.structure import LoopBatch, Structure

if TYPE_CHECKING:
    from amos.measure.executor import Executor
    from amos.perfmodel.bound import Bound, Optimum
    from amos.perfmodel.terms import BatchPrediction
    from amos.plan.schedule import Candidate
    from amos.runtime.simulated import SimulatedKernel
    from amos.schedule.draft import Rule
    from amos.schedule.space import ScheduleSpace

#: Name → class, by its module. Machines that no target claims are of the first one.
TARGETS: dict[str, str] = {
    "cpu": "amos.targets.cpu.Cpu",
    "cuda": "amos.cuda.target.Cuda",
    "stream": "amos.streams.target.Streams",
    "opencl": "amos.opencl.target.OpenCl",
}


@dataclass(frozen=True)
class ExecutorRequest:
    """A request for an executor.

    Attributes:
        address: ``"model"`` for nothing, ``None`` for whatever there is, or an address or an
            executor of the target's.
        intrinsic: the only one of the search; ``None`` if there are several.
        notify: receives messages about unexpected choices.
    """

    machine: Machine
    address: str | Executor | None = None
    intrinsic: Intrinsic | None = None
    timeout: float = 60.0
    memory: int | None = None
    notify: Callable[[str], None] = lambda _: None


class Target(ABC):
    """One kind of machine; a subclass states what differs from cores under memory levels.

    Attributes:
        name: key in :data:`TARGETS`.
        schedule: class of its schedules.
        exports: format of an export → function that makes its files, by its module.
        templates: file of learned schedules in ``schedule/data``, for ``tiling="few"``; empty if
            schedules are drawn instead.
        selfcheck: function that holds implementations of intrinsics against their meaning, by
            its module; empty if there are none of its own.
        chains: package with ``search.list_options`` and ``candidate.candidate_from``, for searches
            and records of :mod:`amos.chains`; empty if chains have no kernels of its own.
        needs_machine: whether its schedules only make sense for a known machine.
        checks_spaces: whether a mapping may have no schedule at all, as where buffers are
            small; such mappings are left out of a search.
        has_engine: whether onnxruntime runs there, and computes operators that AMOS lacks.
        counts_accesses: whether its model counts accesses of each level, from which energy follows.
        has_simulator: whether :meth:`load_simulated` returns kernels.
    """

    name: ClassVar[str]
    schedule: ClassVar[type[Schedule]]
    exports: ClassVar[Mapping[str, str]] = {}
    templates: ClassVar[str] = ""
    selfcheck: ClassVar[str] = ""
    chains: ClassVar[str] = ""
    needs_machine: ClassVar[bool] = True
    checks_spaces: ClassVar[bool] = False
    has_engine: ClassVar[bool] = True
    counts_accesses: ClassVar[bool] = False
    has_simulator: ClassVar[bool] = False

    @abstractmethod
    def claims(self, machine: Machine) -> bool:
        """Return whether a machine is of this target."""

    def takes_units(self, machine: Machine) -> bool:
        """Return whether a machine takes any unit whose description states its buffers."""
        return False

    def runs(self, structure: Structure, machine: Machine) -> bool:
        """Return whether rules and model of this target hold for a mapping on a machine of it.

        Otherwise those of cores under memory levels hold.
        """
        return True

    @property
    @abstractmethod
    def rules(self) -> Sequence[Rule]:
        """The rules of its schedule space, in the order of their application."""

    @abstractmethod
    def plan(self, mapping: LoopMapping, schedule: Schedule, machine: Machine | None) -> Plan:
        """Decide everything about a kernel.

        Args:
            machine: where it runs; ``None`` for this computer, which is not measured for it.

        Raises:
            BuildError: the target has no such kernel.
            MachineError: nothing is generated for the machine.
            ScheduleError: the schedule is not one of the mapping's, or for another target.
        """

    @abstractmethod
    def emit(self, plan: Plan) -> str:
        """Print the code of a plan, the same text everywhere, or raise BuildError."""

    @abstractmethod
    def predict(
        self, structure: Structure, machine: Machine, batch: LoopBatch, *, refined: bool
    ) -> BatchPrediction:
        """Predict every schedule of a batch.

        Args:
            refined: with the terms that the paper's equation lacks.
        """

    def workspace_bytes(
        self, structure: Structure, machine: Machine | None, batch: LoopBatch
    ) -> np.ndarray:
        """Return the bytes in memory that kernels need beside inputs and results: schedules.

        Raises:
            BuildError: the target does not say.
        """
        raise BuildError(f"target {self.name!r}: no workspace is computed for its kernels")

    @abstractmethod
    def overflows(self, structure: Structure, machine: Machine, batch: LoopBatch) -> Iterable[str]:
        """Describe overflows of memories by the first schedule of a batch, in words."""

    def explain(
        self, prediction: BatchPrediction, row: int, sources: Sequence[str]
    ) -> tuple[tuple[str, str], ...]:
        """Explain the terms of a row: term (as ``"shared read"``) and words."""
        return ()

    def bound(self, mappings: Sequence[LoopMapping], machine: Machine) -> Bound | None:
        """Return a lower bound of all schedules of the mappings; ``None`` if unknown."""
        return None

    def floor_seconds(self, structure: Structure, machine: Machine) -> float:
        """Return the model's lower bound of all schedules of a mapping; 0 if unknown."""
        return 0.0

    def find_optimum(
        self,
        spaces: Sequence[ScheduleSpace],
        machine: Machine,
        objective: str,
        limit_seconds: float,
    ) -> Optimum | None:
        """Find the model's best candidate of some mappings; ``None`` if none can be proven."""
        return None

    def executes(self, intrinsic: Intrinsic, machine: Machine) -> bool:
        """Return whether a machine that has no rate of an instruction can execute it."""
        return {*intrinsic.requires} <= {*machine.features}

    def list_missing(self, intrinsic: Intrinsic, machine: Machine) -> list[str]:
        """List what a described machine lacks to run an intrinsic; nothing if it runs it."""
        if intrinsic.name in machine.peaks:
            return []
        return [
            f"{intrinsic.name}: expected a rate on {machine.name!r}, [peak.{intrinsic.name}] or "
            "the intrinsic's timing"
        ]

    def check_operator(  # noqa: B027 - by default nothing is refused
        self, operator: Operator, intrinsic: Intrinsic, machine: Machine
    ) -> None:
        """Raise BuildError, in one line, for an operator for which the target has no kernel."""

    def load_simulated(self, candidate: Candidate, machine: Machine) -> SimulatedKernel | None:
        """Load a candidate into a simulator of the machine; ``None`` if the target has none."""
        return None

    def open_executor(self, request: ExecutorRequest) -> Executor | None:
        """Open the executor of candidates of a described machine.

        Returns:
            the executor; ``None`` for the model alone.

        Raises:
            MeasureError: there is nothing to measure with, or no such address.
            ExploreError: the machine has no such instruction.
        """
        if isinstance(request.address, str) and request.address != "model":
            raise MeasureError(
                f"executor {request.address!r}: machine {request.machine.name!r} is a description; "
                "expected 'model'"
            )
        return None


def targets() -> Iterator[Target]:
    """Yield every registered target, the CPU first."""
    return map(_load, TARGETS.values())


def target_of(machine: Machine | None, structure: Structure | None = None) -> Target:
    """Return the target of a machine, and of a mapping on it."""
    default, *special = targets()
    if machine is not None:
        for target in special:
            if target.claims(machine):
                return target if structure is None or target.runs(structure, machine) else default
    return default


def load(place: str) -> Any:
    """Load an object by its place: module, dot, name."""
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)


@cache
def _load(place: str) -> Target:
    target: Target = load(place)()
    return target
