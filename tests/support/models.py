"""What tests of the model predict: small operators, and machines of round numbers."""

from __future__ import annotations

import amos
from amos.ir import Operator
from amos.machine import Level, Machine, Peak, fitted_costs
from amos.machine.limits import CpuLimits
from amos.mapping import Mapping
from amos.perfmodel.traffic import LoopNestBatch
from amos.plan import CpuSchedule, LoopBatch, Schedule, Structure
from amos.plan.cpu_blocks import CpuBlocks
from amos.plan.cpu_plan import CpuPlan
from amos.schedule import ScheduleSpace

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
#: Constants of a CPU that was measured.
COSTS = fitted_costs("GenuineIntel")
LEVELS = (Level("L1", 200, 64.0, 32.0), Level("DRAM", 0, 16.0, 8.0))


def gemm() -> Mapping:
    """Two rows of 16 lanes, two steps of four bytes: four calls."""
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=2, j=16, k=8))
    return amos.enumerate_mappings(op, VNNI)[0]


def machine_of(*levels: Level, cores: int = 1) -> Machine:
    """Calls take 5 seconds and start every second; a parallel region takes half of one."""
    peak = Peak(latency=5.0, interval=1.0)
    return Machine("paper", cores, 1.0, levels, {VNNI.name: peak}, launch=0.5, line=1)


def convolution(
    p: int, values: dict[str, int | str], lanes: tuple[str, ...] = ("c",), **extents: int
) -> tuple[Mapping, Schedule]:
    """A padded window under the smallest schedule of its space, but for some values."""
    whole = dict(n=1, p=p, q=8, k=32, c=16, r=3, s=3) | extents
    op = Operator.parse(
        "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
        extents=whole,
        shapes=dict(image=(1, p, whole["q"], whole["c"])),
    )
    mapping = next(
        m for m in amos.enumerate_mappings(op, VNNI, rule="access") if m.groups["r1"] == lanes
    )
    return mapping, Schedule.of(ScheduleSpace(mapping).smallest().as_dict() | values)


def nest_of(
    structure: Structure, batch: LoopBatch, cores: int = 1, *, cut_tiles: bool = False
) -> LoopNestBatch:
    """The loops of schedules on cores with a cache of 256 KiB each."""
    blocks = CpuBlocks(structure, CpuLimits(cores, cache=1 << 18), batch)
    return LoopNestBatch(blocks, cut_tiles=cut_tiles)


def plan_of(mapping: Mapping, schedule: Schedule) -> CpuPlan:
    """The plan of a kernel for two cores with such caches."""
    limits = CpuLimits(cores=2, cache=1 << 18)
    return CpuPlan(mapping, CpuSchedule.of(schedule.as_dict()), limits)
