"""Every operator of Table 6 as a CUDA kernel: compiled, inspected, executed on the host.

For each operator, type and architecture the model alone picks mapping and schedule on
a machine of that architecture. The kernel of the whole operator is compiled, and the
compiler's report is compared with the space. The result of the kernel is checked on a
smaller operator: its kernel has the same matching and the nearest schedule, and its
source is executed on the host (:mod:`amos.cuda.codegen.emulate`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np

from amos import intrinsics, machines, operators
from amos.cuda.codegen.emulate import HEADERS, compiler, draw_inputs, emulate
from amos.cuda.codegen.kernel import KernelText
from amos.cuda.codegen.toolchain import compiler_for
from amos.cuda.plan import GpuPlan
from amos.cuda.registers import grant_registers
from amos.errors import AmosError, BuildError, UnknownNameError
from amos.ir import Operator
from amos.machine.gpu_costs import REGISTER_FILE, capability
from amos.mapping import Mapping
from amos.schedule import ScheduleSpace

#: Architecture of a row, and the machine that its schedule is made for.
ARCHITECTURES = {"sm_70": "v100", "sm_80": "a100", "sm_90": "h200"}
#: Requested type of a row's operator, and the intrinsic.
_TYPES = {"f16": "wmma_m16n16k16_f16_f32", "s8": "wmma_m16n16k16_s8_s32"}
#: Bytes that a thread of a kernel may store and load for want of registers: eight words
#: each way, next to the kilobytes that it computes. A row with more fails.
SPILL_LIMIT = 64
#: Candidates that the model compares for a row.
_TRIALS = 16
#: Largest number of scalar statements that is executed on the host for a row.
_POINTS = 300_000


@dataclass(frozen=True)
class CudaRow:
    """One kernel.

    Attributes:
        dtype: types of sources and result, as ``"f16->f32"``.
        compiled: whether the compiler accepted it.
        registers: of one thread, as the compiler reports.
        space_registers: most registers of a thread by the plan, with ``space_blocks`` resident.
        counted_registers: registers that a thread needs by the plan, at most as many.
        blocks: resident on one multiprocessor, as limited by the compiled kernel's registers.
        space_blocks: resident blocks by the plan.
        spills: bytes of registers kept in memory, stores and loads.
        stack: bytes of local memory of a thread: spills, and arrays out of registers.
        shared_bytes: shared memory of a block, as compiled or requested at launch.
        agree: whether the compiled kernel needs no more registers than its plan says, and
            no fewer blocks are resident; ``None`` if it was not compiled.
        tensor_core_instructions: in the machine code.
        simulated_equal: whether its source, executed on the host on a smaller
            operator, gives the operator's result; ``None`` without a C++ compiler.
        problem: why it failed; empty if it did not.
    """

    operator: str
    dtype: str
    arch: str
    intrinsic: str
    mapping: str = ""
    compiled: bool = False
    registers: int = 0
    space_registers: int = 0
    counted_registers: int = 0
    blocks: int = 0
    space_blocks: int = 0
    spills: int = 0
    stack: int = 0
    shared_bytes: int = 0
    agree: bool | None = None
    tensor_core_instructions: int = 0
    simulated_equal: bool | None = None
    compiler: str = ""
    problem: str = ""


#: Operator, type, architecture.
Job = tuple[str, str, str]


def cuda_jobs(
    names: Iterable[str] = (), types: Iterable[str] = (), architectures: Iterable[str] = ()
) -> list[Job]:
    """List the rows to make: all, or those of some operators, types and architectures.

    There is no row where the instruction does not exist on an architecture.
    """
    chosen = [operators.builder(n).name for n in names] or list(operators.TABLE_6)
    for arch in architectures:
        if arch not in ARCHITECTURES:
            raise UnknownNameError("architecture", arch, ARCHITECTURES)
    jobs = []
    for name in chosen:
        for kind in tuple(types) or tuple(_TYPES):
            unit = intrinsics.get(_TYPES[kind])
            for arch in tuple(architectures) or tuple(ARCHITECTURES):
                if capability(arch) >= unit.architecture:
                    jobs.append((name, kind, arch))
    return jobs


def cuda(
    jobs: Sequence[Job] | None = None,
    *,
    workers: int = 2,
    progress: Callable[[CudaRow], None] | None = None,
) -> list[CudaRow]:
    """Make one row a job; see :func:`cuda_jobs`.

    Results of earlier runs, by the same compilers from the same source, come from the user's cache.

    Raises:
        BuildError: there is no row to make.
        ToolchainError: there is no compiler for an architecture; said before any work.
    """
    requested = cuda_jobs() if jobs is None else list(jobs)
    if not requested:
        raise BuildError("no row to make: none of the instructions exists on that architecture")
    for arch in {arch for _, _, arch in requested}:
        compiler_for(arch)
    with ExitStack() as stack:
        rows: Iterable[CudaRow] = map(cuda_row, requested)
        if workers > 1 and len(requested) > 1:
            pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
            rows = stack.enter_context(pool).map(cuda_row, requested)
        done = []
        for row in rows:
            done.append(row)
            if progress is not None:
                progress(row)
    return done


def cuda_row(job: Job) -> CudaRow:
    """Make one row; a failure is part of it."""
    name, kind, arch = job
    unit = intrinsics.get(_TYPES[kind])
    source, result = unit.name.rsplit("_", 2)[1:]
    row = CudaRow(name, f"{source}->{result}", arch, unit.name)
    try:
        plan = _choose_plan(operators.get(name, dtype=kind), unit.name, arch)
        most, promised = plan.granted
        row = replace(
            row,
            mapping=plan.mapping.name,
            shared_bytes=plan.shared_bytes,
            space_registers=most,
            counted_registers=plan.registers,
            space_blocks=promised,
        )
        row = replace(row, **_compile(plan))
        _, blocks = grant_registers(plan.threads, row.registers, capability(arch))
        agree = row.registers <= most and blocks >= promised
        row = replace(row, blocks=blocks, agree=agree)
        return replace(row, **_execute(_shrink_plan(plan, name, kind)))
    except AmosError as error:
        return replace(row, problem=str(error))


def _choose_plan(op: Operator, unit: str, arch: str) -> GpuPlan:
    """Choose the model's best plan, with the widest copies that the space has."""
    import amos

    machine = ARCHITECTURES[arch]
    # Processes share the terminal; the rows show their progress.
    best = amos.explore(op, unit, machine=machine, trials=_TRIALS, seed=0, progress=False).best
    space = ScheduleSpace(best.mapping, machines.get(machine))
    values = best.schedule.as_dict()
    if "copy_bytes" in space.variables:
        values["copy_bytes"] = max(int(n) for n in space.variables["copy_bytes"])
    return GpuPlan.of(best.mapping, space.check(space.target.schedule.of(values)), arch)


def _shrink_plan(plan: GpuPlan, name: str, kind: str) -> GpuPlan:
    """Plan the same matching on a smaller operator, under the nearest schedule."""
    mapping, arch = plan.mapping, plan.architecture
    op = _shrink(name, kind)
    small = Mapping.of(op, mapping.intrinsic, mapping.matching, mapping.rule, mapping.order)
    space = ScheduleSpace(small, machines.get(ARCHITECTURES[arch]))
    near = space.repair(plan.schedule.as_dict(), np.random.default_rng(0))
    return GpuPlan.of(small, near, arch)


def _shrink(name: str, kind: str) -> Operator:
    """Shrink the extents of the library's operator, to odd ones, until it is quick."""
    builder = operators.builder(name)
    sizes = builder.sizes
    while (op := builder(dtype=kind, **sizes)).points > _POINTS:
        largest = max(sizes, key=lambda key: sizes[key])
        sizes[largest] = max(1, sizes[largest] * 2 // 3)
    return op


def _compile(plan: GpuPlan) -> dict[str, Any]:
    source, arch, name = KernelText(plan).source, plan.architecture, KernelText.name_of(plan)

    def compile_it() -> dict[str, Any]:
        done = compiler_for(arch).compile(source, arch, f"{name} for {arch}")
        declared = plan.shared_bytes - plan.dynamic_bytes
        if done.static_shared != declared:
            raise BuildError(
                f"{name}: {declared} bytes of shared memory were declared, but "
                f"{done.compiler} reports {done.static_shared}"
            )
        most = max(done.spills, done.stack)
        if most > SPILL_LIMIT or done.registers * plan.threads > REGISTER_FILE:
            raise BuildError(
                f"{name}: {done.registers} registers for each of {plan.threads} threads, "
                f"{done.spills} bytes spilled, {done.stack} bytes of local memory"
            )
        return {
            "compiled": True,
            "registers": done.registers,
            "spills": done.spills,
            "stack": done.stack,
            "tensor_core_instructions": done.instructions.total(),
            "compiler": done.compiler,
        }

    return _cache(f"compile {arch} {compiler_for(arch).name}\n{source}", compile_it)


def _execute(plan: GpuPlan) -> dict[str, Any]:
    if compiler() is None:
        return {}

    def execute() -> dict[str, Any]:
        problem = emulate(plan, draw_inputs(plan, np.random.default_rng(0))).problem
        return {"simulated_equal": not problem, "problem": problem}

    return _cache(f"emulate {_emulation()}\n{KernelText(plan).source}", execute)


@cache
def _emulation() -> str:
    """Hash the emulation: a change of it invalidates its results."""
    files = [*sorted(HEADERS.glob("*.h")), HEADERS.parent / "emulate.py"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _cache(key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    from platformdirs import user_cache_path

    folder = user_cache_path("amos", appauthor=False) / "cuda"
    file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError):
        earlier: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return earlier
    fresh = make()
    with suppress(OSError):  # a cache that cannot be written only costs time
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(fresh), encoding="utf-8")
    return fresh
