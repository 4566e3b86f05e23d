"""Registers: one count in the space and the plan, which compilers keep to."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

import amos
from amos import operators
from amos.cuda import GpuSchedule
from amos.cuda.codegen import KernelText, compiler_for, compilers
from amos.cuda.plan import GpuPlan
from amos.cuda.registers import blocks_by_registers, fragment_registers, grant_registers
from amos.machine.gpu_costs import capability
from amos.mapping import Mapping
from amos.plan import Schedule
from amos.reproduce.cuda import SPILL_LIMIT
from amos.schedule import ScheduleSpace

MACHINES = {"sm_70": "v100", "sm_80": "a100", "sm_90": "h200"}
#: Every type, both families, fragments that are not square.
UNITS = (
    "wmma_m16n16k16_f16_f32",
    "wmma_m32n8k16_f16_f16",
    "wmma_m8n32k16_bf16_f32",
    "wmma_m16n16k8_tf32_f32",
    "wmma_m16n16k16_s8_s32",
    "wmma_m8n8k4_f64_f64",
    "mma_sync_m16n8k16_f16_f32",
    "mma_sync_m16n8k8_bf16_f32",
    "mma_sync_m16n8k8_tf32_f32",
    "mma_sync_m16n8k32_s8_s32",
    "mma_sync_m8n8k4_f64_f64",
    "mma_sync_m16n8k32_e5m2_f32",
)


def drawn(
    unit: str, rng: np.random.Generator, names: tuple[str, ...] = tuple(operators.TABLE_6)
) -> tuple[Mapping, Schedule, str]:
    """Any operator, mapping and schedule for a unit, on any architecture that has it."""
    intrinsic = amos.intrinsics.get(unit)
    least = max(capability(name) for name in intrinsic.requires if name.startswith("sm_"))
    while True:
        arch = str(rng.choice([a for a in MACHINES if capability(a) >= least]))
        op = operators.get(str(rng.choice(names)), dtype=tuple(intrinsic.dtypes))
        rule = str(rng.choice(["paper", "access", "gather"]))
        mappings = amos.enumerate_mappings(op, intrinsic, rule=rule)
        if mappings:
            mapping = mappings[int(rng.integers(len(mappings)))]
            space = ScheduleSpace(mapping, amos.machines.get(MACHINES[arch]))
            return mapping, space.draw(1, rng)[0], arch


@pytest.mark.parametrize("unit", UNITS)
def test_space_and_plan_count_the_same(unit: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):
        mapping, schedule, arch = drawn(unit, rng)
        machine = amos.machines.get(MACHINES[arch])
        program = GpuPlan.of(mapping, schedule, arch)
        values = ScheduleSpace(mapping, machine).values(schedule)
        assert values["registers.thread"] == program.registers <= 255
        blocks = program.granted[1]
        assert program.counts.occupancy[0] <= blocks
        assert f"__launch_bounds__({program.threads}, {blocks})" in KernelText(program).source


def test_fragments_by_hand() -> None:
    """PTX ISA: 8 pairs of halves; 256 floats, bytes or half as many on 32 threads."""
    sizes = {unit: fragment_registers(amos.intrinsics.get(unit)) for unit in UNITS}
    assert sizes["wmma_m16n16k16_f16_f32"] == (8, 8, 8)
    assert sizes["wmma_m32n8k16_f16_f16"] == (8, 8, 4)
    assert sizes["wmma_m8n32k16_bf16_f32"] == (2, 8, 8)
    assert sizes["wmma_m16n16k16_s8_s32"] == (2, 2, 8)
    assert sizes["mma_sync_m16n8k16_f16_f32"] == (4, 2, 4)
    assert sizes["mma_sync_m8n8k4_f64_f64"] == (2, 2, 4)


def test_a_warp_holds_the_cheaper_source() -> None:
    op = operators.resolve("gemm", extents=dict(m=256, n=256, k=64))
    unit = amos.intrinsics.get("mma_sync_m16n8k16_f16_f32")
    (mapping,) = amos.enumerate_mappings(op, unit)
    for tile, resident, tiles in (
        # Accumulators of 4; either all of A by 4 and one of B by 2, or the other way.
        ({"i1.tile": 2, "i2.tile": 8}, 0, 2 * 8 * 4 + 2 * 4 + 2),
        ({"i1.tile": 4, "i2.tile": 2}, 1, 4 * 2 * 4 + 2 * 2 + 4),
    ):
        program = GpuPlan(mapping, GpuSchedule(tile=tile), "sm_80")
        assert program.whole_source == resident
        assert program.registers == tiles + 56
        streamed = "ba"[resident]
        assert f"Fragment{streamed.upper()} {streamed}[1];" in KernelText(program).source


@pytest.mark.parametrize(
    ("threads", "counted", "most", "blocks"),
    [
        (256, 104, 128, 2),  # two warps of each of two blocks on a sub-core of 16384
        (256, 128, 128, 2),
        (256, 129, 255, 1),
        (512, 80, 128, 1),
        (64, 170, 255, 4),  # ten warps would fit 65536 registers, but not four times 16384
        (64, 168, 168, 6),
        (32, 60, 64, 32),  # no more blocks are resident
        (1024, 64, 64, 1),
    ],
)
def test_what_a_count_leaves(threads: int, counted: int, most: int, blocks: int) -> None:
    assert grant_registers(threads, counted, 80) == (most, blocks)
    # The promise holds for whatever is granted, and would not for more.
    assert grant_registers(threads, most, 80)[1] == blocks
    assert most == 255 or grant_registers(threads, most + 1, 80)[1] < blocks or blocks == 1


def test_too_many_registers_leave_no_block() -> None:
    assert blocks_by_registers(np.array([32, 32]), np.array([255, 256])).tolist() == [8, 0]


def compiled(mapping: Mapping, schedule: Schedule, arch: str) -> tuple[int, int]:
    """Registers that the compiler used and those counted; fails if it was given too few."""
    program = GpuPlan.of(mapping, schedule, arch)
    done = compiler_for(arch).compile(KernelText(program).source, arch)
    where = f"{mapping.operator.name}, {mapping.intrinsic.name}, {arch}, {schedule.as_dict()}"
    most, blocks = program.granted
    assert done.registers <= most, where
    assert grant_registers(program.threads, done.registers, capability(arch))[1] >= blocks, where
    assert max(done.spills, done.stack) <= SPILL_LIMIT, where
    return done.registers, program.registers


def needs(*architectures: str) -> None:
    targets = {a for compiler in compilers() for a in compiler.architectures}
    if missing := set(architectures) - targets:
        pytest.skip(f"no CUDA compiler for {', '.join(sorted(missing))} here")


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        ("wmma_m16n16k16_f16_f32", "gemm"),
        ("wmma_m16n16k16_s8_s32", "conv2d"),
        ("mma_sync_m16n8k16_f16_f32", "transposed_conv2d"),
    ],
)
def test_compilers_keep_to_the_count(unit: str, name: str) -> None:
    needs(*MACHINES)
    mapping, schedule, arch = drawn(unit, np.random.default_rng(3), (name,))
    compiled(mapping, schedule, arch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_any_candidate_keeps_to_the_count(seed: int) -> None:
    """Sixty candidates that nothing was calibrated on."""
    needs(*MACHINES)
    rng = np.random.default_rng(1000 + seed)
    pairs = [compiled(*drawn(unit, rng)) for unit in UNITS]
    assert median(used / counted for used, counted in pairs) > 0.6
