"""A compiled kernel that takes NumPy arrays."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from amos.codegen.amx.tiles import ask_for_tiles
from amos.codegen.scheduling import schedule_candidate
from amos.codegen.tir.program import Program
from amos.codegen.tir.tensor_intrin import implementation
from amos.errors import BuildError
from amos.ir import Operator
from amos.machine.cpu import cpu
from amos.machine.limits import CpuLimits
from amos.mapping import enumerate_mappings
from amos.mapping.mapping import Mapping
from amos.plan import Candidate, Schedule
from amos.runtime.compiled import CompiledKernel
from amos.runtime.compiling import compile_function
from amos.schedule import candidate_of


class Kernel(CompiledKernel):
    """A candidate compiled for this CPU, called as :class:`CompiledKernel` says.

    Attributes:
        implementation: ``"native"`` if the instruction itself is emitted,
            ``"generic"`` if its meaning is emitted as plain loops.
        source: the scheduled TensorIR, as TVMScript.
    """

    def __init__(self, candidate: Candidate, program: Program, kind: str, module: Any) -> None:
        self.candidate, self.implementation = candidate, kind
        self.source = str(module.script())
        tiled = program.plan.tiled
        library = compile_function(str(candidate), kind, module, larger=tiled)
        super().__init__(candidate.mapping.operator, program.arguments, library)

    @cached_property
    def assembly(self) -> str:
        """Machine code of the kernel as text."""
        return str(self._library.mod.inspect_source("s"))


def build(
    candidate: Candidate | Mapping | Any,
    schedule: Schedule | None = None,
    *,
    implementation: str | None = None,
) -> Kernel:
    """Compile a candidate, a trial of an exploration, or a mapping for this CPU.

    Args:
        candidate: the candidate to build; a mapping may come with a schedule, and without
            one takes the simplest of its space.
        schedule: schedule of a bare mapping.
        implementation: ``"native"`` or ``"generic"``; by default native where
            the CPU has the instruction.

    Raises:
        BuildError: TVM refuses the program, or the intrinsic has no such
            implementation here.
        MappingError: this is no mapping, candidate or trial.
        ScheduleError: the schedule is not one of the mapping's space.
    """
    # A candidate measured with the instruction must not run as loops here without notice.
    measured = getattr(candidate, "measurement", None)
    implementation = implementation or getattr(measured, "implementation", None)
    candidate = candidate_of(candidate, schedule)
    kind = implementation_of(candidate, implementation)
    program, module = schedule_candidate(candidate, kind, CpuLimits.here())
    if program.plan.tiled:
        ask_for_tiles()
    return Kernel(candidate, program, kind, module)


def implementation_of(candidate: Candidate, requested: str | None) -> str:
    """Return ``"native"`` or ``"generic"``: as requested, or the best that this CPU has.

    Raises:
        BuildError: there is no such implementation, or it needs what this CPU lacks.
    """
    intrinsic = candidate.mapping.intrinsic
    here = implementation(intrinsic, cpu().features)
    if requested not in (None, "native", "generic"):
        raise BuildError(f"implementation {requested!r}: expected 'native' or 'generic'")
    if requested == "native" and here != "native":
        raise BuildError(
            f"{intrinsic.name}: no native implementation here; it needs "
            f"{', '.join(intrinsic.requires) or 'an implementation'}, which this CPU lacks"
        )
    return requested or here


def warm_up() -> None:
    """Build a kernel ahead: TVM's first build loads its parts, which takes about a second.

    Nothing is run, so that no threads are started and the process can be forked.

    Raises:
        ToolchainError: TVM is missing, known not to work, or does not load.
    """
    op = Operator.parse("out[i,j] += a[i,k] * b[j,k]", extents=dict(i=1, j=16, k=4))
    build(enumerate_mappings(op, "vnni_dpbusd_m16k4_u8_s8_s32")[0], implementation="generic")
