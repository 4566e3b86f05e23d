"""The plan of an OpenCL kernel: work-groups, local memory, registers.

>>> import amos
>>> from amos.opencl import OpenClSchedule
>>> op = amos.operators.get("gemm", dtype="f32", m=64, n=64, k=64)
>>> mapping = amos.enumerate_mappings(op, "opencl_mad_m8_f32")[0]
>>> schedule = OpenClSchedule(tile={"m": 4}, items={"i1.tile": 4}, place={"Src2": "local"}, steps=8)
>>> print(OpenClPlan.of(mapping, schedule, amos.machines.get("pocl")))
n of gemm on opencl_mad_m8_f32 (pocl)
  groups    m 16, i1.tile 2: 32
  items     i1.tile 4: 4, 192 bytes of registers, 1024 bytes of local memory
  tile      m 4: 4 accumulators, all fragments of Src2 at once
  reduction k 64: 8 steps a stage, 8 stages
  Src1      a: direct, 1 element at once
  Src2      b: local, 8 elements at once
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from amos.errors import BuildError, ScheduleError
from amos.intrinsics import Implementation, implementations
from amos.ir import dtype
from amos.machine.machine import Machine
from amos.machine.opencl_unit import OpenClUnit
from amos.mapping.mapping import Mapping as LoopMapping
from amos.opencl.groups import VECTORS, VectorFragment, WorkGroups, fragments_of, is_serial
from amos.opencl.schedule import OpenClSchedule
from amos.plan.device_plan import DevicePlan, narrow_results
from amos.plan.nest import Nest
from amos.plan.schedule import Schedule, batch_of

#: OpenCL C of elements in memory; those of 16-bit floats are their bits.
TYPES = {
    "float32": "float",
    "float16": "ushort",
    "bfloat16": "ushort",
    "int32": "int",
    "uint32": "uint",
    "int16": "short",
    "uint16": "ushort",
    "int8": "char",
    "uint8": "uchar",
}
#: Groups of a launch, and steps of a loop, which kernels count with ``int``.
_INT = 2**31 - 1


def unit_of(machine: Machine) -> OpenClUnit:
    """Return the compute units of an OpenCL machine; raise BuildError if it is none."""
    if machine.opencl is None:
        raise BuildError(f"machine {machine.name!r} has no [opencl], expected an OpenCL device")
    return machine.opencl


def list_problems(mapping: LoopMapping) -> Iterator[str]:
    """Yield reasons why there are no OpenCL kernels of a mapping."""
    intrinsic, operator = mapping.intrinsic, mapping.operator
    if "opencl" not in implementations(intrinsic.name):
        yield f"{intrinsic.name} has no implementation in OpenCL C"
    if (kind := intrinsic.compute.arithmetic) != "multiply-add" or len(intrinsic.sources) != 2:
        yield f"OpenCL kernels add up products of two sources, {intrinsic.name} is {kind}"
    if intrinsic.staged_dtypes != intrinsic.dtypes:
        yield f"{intrinsic.name}: OpenCL kernels stage sources in their own dtypes"
    for load in intrinsic.operands:
        if load.tensor.elements not in VECTORS:
            yield (
                f"{load.tensor.name} of {intrinsic.name} has {load.tensor.elements} elements, but "
                f"vectors of OpenCL C have {', '.join(map(str, VECTORS))}"
            )
    tensors = (*operator.inputs, *(result for result in operator.results))
    kinds = {dtype(str(x.dtype)).name for x in tensors if x.dtype} | {*intrinsic.dtypes}
    for prologue in operator.prologues:
        kinds.add(prologue.dtype)
    # Accumulators and fragments are vectors, and 16-bit floats have none without an extension.
    missing = (kinds - TYPES.keys()) | ({"float16", "bfloat16"} & {*intrinsic.dtypes})
    for kind in sorted(missing):
        yield f"OpenCL kernels have no elements of type {dtype(kind).short}"
    yield from narrow_results(mapping, "OpenCL")


@dataclass(frozen=True)
class OpenClPlan(DevicePlan):
    """A kernel of one mapping under one schedule on an OpenCL device.

    Attributes:
        machine: whose limits it keeps to.

    The others are the numbers of :class:`amos.opencl.groups.WorkGroups` under the same names.

    Raises:
        BuildError: there is no such kernel, or it exceeds a limit of the machine.
        ScheduleError: an order does not name the mapping's loops.
    """

    schedule: OpenClSchedule
    machine: Machine
    items: int = field(init=False)
    register_bytes: int = field(init=False)
    local_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self._refuse(list_problems(self.mapping))
        self._set_numbers()
        self._refuse(self._excess())

    @classmethod
    def of(cls, mapping: LoopMapping, schedule: Schedule, machine: Machine) -> OpenClPlan:
        """Plan the kernel of any schedule.

        Raises:
            BuildError: there is no such kernel, or it exceeds a limit of the machine.
            ScheduleError: the schedule is of another target, or divides the reduction.
        """
        where = f"schedule of {mapping.name}"
        if not isinstance(schedule, OpenClSchedule):
            if any(loop.extent > 1 for loop in Nest(mapping).loops) or schedule.as_dict():
                got = type(schedule).__name__
                raise ScheduleError(f"{where}: expected one of work-groups, got a {got}")
            # Without a loop, a dictionary does not tell its target.
            schedule = OpenClSchedule()
        if schedule.split > 1:
            raise ScheduleError(f"{where}: split = {schedule.split}: expected 1, of work-groups")
        return cls(mapping, schedule, machine)

    @property
    def device(self) -> str:
        """The machine."""
        return self.machine.name

    @cached_property
    def unit(self) -> OpenClUnit:
        """Limits of the device."""
        return unit_of(self.machine)

    @property
    def is_serial(self) -> bool:
        """Whether a core computes the work-items of a group one after another."""
        return is_serial(self.machine)

    @cached_property
    def counts(self) -> WorkGroups:
        """All numbers of the plan, as a batch of one."""
        return WorkGroups(self.structure, batch_of(self.structure, [self.schedule]), self.machine)

    @property
    def groups(self) -> int:
        """Work-groups of the launch."""
        return prod(self.blocks.values())

    @cached_property
    def fragments(self) -> tuple[VectorFragment, ...]:
        """Fragments of the sources in the intrinsic's order, then of the destination."""
        return fragments_of(self.structure)

    @property
    def sources(self) -> tuple[VectorFragment, ...]:
        """Fragments of the sources."""
        return self.fragments[:-1]

    @property
    def implementation(self) -> Implementation:
        """The intrinsic in OpenCL C."""
        return implementations(self.mapping.intrinsic.name)["opencl"]

    def is_local(self, source: VectorFragment) -> bool:
        """Return whether a source is staged in local memory."""
        return self.schedule.place[source.staged.name] == "local"

    def _excess(self) -> Iterator[str]:
        """Yield quantities beyond a limit of the device, or counts of 32 bits."""
        limits = {
            "work-items in a group": (self.items, self.unit.group_items),
            "bytes of local memory in a group": (self.local_bytes, self.unit.local_bytes),
            "work-items": (self.groups * self.items, _INT),
            "steps of the reduction": (self.sequence * self.staged, _INT),
        }
        limits |= {
            f"steps of {loop.name}": (loop.extent + self.spans[loop.name], _INT)
            for loop in self.spatial
        }
        for what, (count, most) in limits.items():
            if count > most:
                yield f"{count} {what}, but {most} at most"

    def __str__(self) -> str:
        whole = self.sources[self.whole_source].staged.name
        local = f", {self.local_bytes} bytes of local memory" if self.local_bytes else ""
        reduction = " ".join(f"{x.name} {x.extent}" for x in self.reduce_loops)
        fragments = "interleaved " * (self.schedule.fragments == "interleaved")
        lines = [
            f"{self.mapping.title} ({self.machine.name})",
            f"  groups    {_along(self.blocks)}{self.groups}"
            + f", {self.raster} rows take turns" * (self.raster > 1),
            f"  items     {_along(self.schedule.items)}{self.items}, "
            f"{self.register_bytes} bytes of registers{local}",
            f"  tile      {_along(self.schedule.tile)}{self.accumulators} {fragments}accumulators, "
            f"all fragments of {whole} at once",
            f"  reduction {reduction or 'none'}: {self.staged} steps a stage, "
            f"{self.sequence} stages",
        ]
        for source in self.sources:
            plural = "s" * (source.width > 1)
            lines.append(
                f"  {source.staged.name:9} {source.staged.load.tensor.name}: "
                f"{self.schedule.place[source.staged.name]}, {source.width} element{plural} at once"
            )
        return "\n".join(lines)


def _along(counts: Mapping[str, int]) -> str:
    """Format counts along loops, and a colon; empty if there are none beyond 1."""
    several = [f"{name} {count}" for name, count in counts.items() if count > 1]
    return f"{', '.join(several)}: " if several else ""
