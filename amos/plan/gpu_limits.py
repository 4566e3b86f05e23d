"""What bounds the plan of a CUDA kernel: the architecture, and counts of 32 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amos.errors import BuildError
from amos.ir import dtype
from amos.machine.gpu_costs import ASYNC, MAX_THREADS, ROW_ALIGNMENT, capability

if TYPE_CHECKING:
    from amos.plan.gpu_plan import GpuPlan

__all__ = ["check"]

#: Blocks along the second dimension of a grid (CUDA C++ Programming Guide, Technical
#: Specifications per Compute Capability), and the largest ``int``.
_GRID_Y, _INT = 65535, 2**31 - 1
#: Accumulators that ``atomicAdd`` takes on every architecture.
_ATOMIC = ("float32", "float64", "int32")


def check(plan: GpuPlan) -> None:
    """Refuse what no kernel can do.

    Raises:
        BuildError: the architecture lacks the instruction, or the plan exceeds a limit.
    """
    intrinsic, where = plan.mapping.intrinsic, f"{plan.mapping.name} on {plan.architecture}"
    here = capability(plan.architecture)
    if intrinsic.family not in ("wmma", "mma"):
        raise BuildError(f"{intrinsic.name}: CUDA kernels use intrinsics of Tensor Cores only")
    if here < intrinsic.architecture:
        raise BuildError(
            f"{intrinsic.name} needs sm_{intrinsic.architecture}, which {plan.architecture} is not"
        )
    for name in intrinsic.dtypes:
        if dtype(name).bits % 8:
            raise BuildError(
                f"{where}: CUDA kernels have no elements of type {dtype(name).short}, which "
                "fill no whole bytes"
            )
    for name in ("steps", "stages", "split"):
        if getattr(plan, name) < 1:
            raise BuildError(f"{where}: {name}: expected at least 1, got {getattr(plan, name)}")
    if plan.stages > 2 and here < ASYNC:
        raise BuildError(f"{where}: {plan.stages} stages need cp.async, which begins with sm_80")
    if plan.threads > MAX_THREADS:
        raise BuildError(
            f"{where}: {plan.threads} threads in a block, but {MAX_THREADS} are allowed"
        )
    _check_split(plan, where)
    _check_rows(plan, where)
    if plan.shared_bytes > plan.unit.block_shared:
        raise BuildError(
            f"{where}: {plan.shared_bytes} bytes of shared memory in a block, but "
            f"{plan.unit.block_shared} are there"
        )
    _check_counts(plan, where)


def _check_counts(plan: GpuPlan, where: str) -> None:
    """What is counted in integers of 32 bits, and the launch, stay within their limits."""
    for count, most, what in (
        (plan.grid[0], _INT, "blocks along x"),
        (plan.grid[1], _GRID_Y, "blocks along y"),
        (plan.sequence * plan.staged, _INT, "steps of the reduction"),
        *(
            (loop.extent + plan.spans.get(loop.name, 1), _INT, f"steps of {loop.name}")
            for loop in plan.nest.spatial
        ),
        *(
            (
                group.size + 2 * group.lanes * plan.spans.get(group.tile, 1),
                _INT,
                f"places along {name}",
            )
            for name, group in plan.nest.groups.items()
        ),
    ):
        if count > most:
            raise BuildError(f"{where}: {count} {what}, but a kernel counts to {most}")


def _check_split(plan: GpuPlan, where: str) -> None:
    if plan.split == 1:
        return
    if plan.mapping.operator.epilogue is not None:
        raise BuildError(
            f"{where}: a split reduction has no whole sum in any block, which the epilogue "
            f"{plan.mapping.operator.epilogue} needs"
        )
    if plan.accumulator not in _ATOMIC:
        short = dtype(plan.accumulator).short
        raise BuildError(f"{where}: a split reduction cannot add to {short} atomically")


def _check_rows(plan: GpuPlan, where: str) -> None:
    for source in plan.sources:
        if not plan.mapping.intrinsic.open_registers and source.padding < 0:
            raise BuildError(
                f"{where}: WMMA reads rows as they lie; rows of {source.name} cannot be swizzled"
            )
        if source.row * source.size % ROW_ALIGNMENT:
            raise BuildError(
                f"{where}: rows of {source.name} with {source.padding} elements of "
                f"padding do not begin at multiples of {ROW_ALIGNMENT} bytes"
            )
