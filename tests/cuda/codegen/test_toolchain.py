"""Kernels compiled without a GPU: what the compiler reports, what the machine code holds."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import amos
from amos import machines, operators
from amos.cuda import GpuSchedule
from amos.cuda.codegen import KernelText, compiler_for, compilers
from amos.cuda.codegen.sass import tensor_core_instructions
from amos.cuda.codegen.toolchain import portable_code
from amos.cuda.plan import GpuPlan, architecture_of
from amos.errors import BuildError, ScheduleError, ToolchainError
from amos.plan import Candidate, Schedule
from amos.schedule import ScheduleSpace


def supported(architecture: str) -> None:
    """Skip where no compiler knows the architecture."""
    try:
        compiler_for(architecture)
    except ToolchainError as error:
        pytest.skip(str(error))


def chosen(machine: str, seed: int = 0) -> tuple[ScheduleSpace, Candidate]:
    op = operators.get("conv2d", dtype="f16", c=32, k=32, p=14, q=14)
    unit = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    rng = np.random.default_rng(seed)
    mappings = amos.enumerate_mappings(op, unit)
    mapping = mappings[int(rng.integers(len(mappings)))]
    space = ScheduleSpace(mapping, machines.get(machine))
    return space, Candidate(mapping, space.sample(rng))


@pytest.mark.parametrize("machine", ["v100", "a100", "h200"])
def test_compiles_for(machine: str) -> None:
    architecture = architecture_of(machines.get(machine))
    supported(architecture)
    space, candidate = chosen(machine)
    program = GpuPlan.of(candidate.mapping, candidate.schedule, architecture)
    done = compiler_for(architecture).compile(KernelText(program).source, architecture)
    assert done.instructions["HMMA"] > 0
    assert 0 < done.registers <= 255
    assert done.stack == done.spills == 0
    assert done.static_shared == (program.shared_bytes - program.dynamic_bytes)


@pytest.mark.parametrize(
    ("name", "unit", "dtype", "instruction"),
    [
        ("gemm", "wmma_m16n16k16_s8_s32", "s8", "IMMA"),
        ("conv2d", "mma_sync_m16n8k16_f16_f32", "f16", "HMMA"),
        ("gemm", "mma_sync_m8n8k4_f64_f64", "f64", "DMMA"),
    ],
)
def test_instructions(name: str, unit: str, dtype: str, instruction: str) -> None:
    supported("sm_80")
    op = operators.get(name, dtype=dtype)
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get(unit))[0]
    program = GpuPlan(mapping, GpuSchedule(steps=2, stages=2), "sm_80")
    instructions = compiler_for("sm_80").compile(KernelText(program).source, "sm_80").instructions
    assert set(instructions) == {instruction}


def test_counts_are_the_disassembler_s(tmp_path: Path) -> None:
    tool = shutil.which("cuobjdump")
    if tool is None:
        pytest.skip("cuobjdump is not installed")
    supported("sm_80")
    _, candidate = chosen("a100")
    program = GpuPlan.of(candidate.mapping, candidate.schedule, "sm_80")
    cubin = compiler_for("sm_80").compile(KernelText(program).source, "sm_80").cubin
    (tmp_path / "kernel.cubin").write_bytes(cubin)
    command = [tool, "-sass", str(tmp_path / "kernel.cubin")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert tensor_core_instructions(cubin).total() == len(re.findall(r"\bHMMA\.", listing))


def test_shared_memory_agrees_with_the_space() -> None:
    """Exactly, where the reduction is as long as the stages that a schedule asks for."""
    swizzled = 0
    for unit in ("wmma_m16n16k16_f16_f32", "wmma_m16n16k16_s8_s32", "mma_sync_m16n8k32_s8_s32"):
        op = operators.get("gemm", dtype="s8" if "s8" in unit else "f16", m=256, n=256, k=8192)
        mapping = amos.enumerate_mappings(op, amos.intrinsics.get(unit))[0]
        for machine in ("a100", "h200"):
            space = ScheduleSpace(mapping, machines.get(machine))
            architecture = architecture_of(machines.get(machine))
            for schedule in space.draw(20, np.random.default_rng(0)):
                program = GpuPlan.of(mapping, schedule, architecture)
                values = space.values(schedule)
                counted = max(values["shared.used"], values.get("shared.Dst", 0))
                assert program.shared_bytes == counted
                swizzled += schedule.as_dict().get("align.Src1") == -1
    assert swizzled > 4


def test_every_schedule_of_the_space_fits() -> None:
    """No plan is refused."""
    for seed in range(4):
        space, _ = chosen("a100", seed)
        for schedule in space.draw(10, np.random.default_rng(seed)):
            GpuPlan.of(space.mapping, schedule, "sm_80")


def test_refusals() -> None:
    space, candidate = chosen("a100")
    plain = ScheduleSpace(space.mapping).smallest()
    with pytest.raises(ScheduleError, match="expected one of warps, got a CpuSchedule"):
        GpuPlan.of(space.mapping, plain, "sm_80")
    values = candidate.schedule.as_dict() | {"stage.Src1": "whole"}
    with pytest.raises(BuildError, match=r"stage\.Src1 = whole"):
        GpuPlan.of(space.mapping, Schedule.of(values), "sm_80")
    with pytest.raises(BuildError, match="'host'|no CUDA"):
        architecture_of(machines.get("xeon_4110"))
    with pytest.raises(BuildError, match="ELF"):
        tensor_core_instructions(b"text")


def test_arrays_out_of_registers_are_reported() -> None:
    """What is indexed by a variable lies in local memory: no spill, and as slow."""
    supported("sm_80")
    body = "float a[64]; for (int j = 0; j < n; ++j) a[j * n % 64] += o[j]; o[0] = a[o[1] > 0];"
    done = compiler_for("sm_80").compile(
        f'extern "C" __global__ void k(float *o, int n) {{ {body} }}', "sm_80"
    )
    assert done.spills == 0 and done.stack >= 256


def test_no_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amos.cuda.codegen.toolchain.compilers", lambda: ())
    with pytest.raises(ToolchainError, match="neither nvcc nor NVRTC") as caught:
        compiler_for("sm_80").compile("", "sm_80")
    assert "\n" not in str(caught.value)


def test_a_text_that_is_no_kernel() -> None:
    supported("sm_80")
    with pytest.raises(BuildError, match="kernel: .* refuses it: .*error"):
        compiler_for("sm_80").compile("nonsense;", "sm_80")
    assert all(compiler.architectures for compiler in compilers())


#: A wide convolution and product whose schedules use everything that sm_80 has.
FEATURES = {
    # kernel: what its PTX holds, and its machine code.
    "wmma": (
        ["cp.async.cg.shared.global", "wmma.mma", "bar.sync"],
        ["LDGSTS", "HMMA", "LDSM"],
    ),
    "mma": (
        ["cp.async.cg.shared.global", "ldmatrix.sync", "mma.sync", "red.global.add|atom.global"],
        ["LDGSTS", "HMMA", "LDSM", r"RED|ATOMG"],
    ),
    "edges": (["mma.sync", "setp.lt|setp.gt", "st.global"], ["HMMA", "ISETP", "STG"]),
    "s8": (["cp.async", "mma.sync"], ["LDGSTS", "IMMA"]),
}


def features(kernel: str, stages: int = 3) -> GpuPlan:
    """A kernel that has to use the instructions."""
    gemm = dict(m=256, n=256, k=1024)
    unit = {"wmma": "wmma_m16n16k16_f16_f32", "s8": "mma_sync_m16n8k32_s8_s32"}
    name = unit.get(kernel, "mma_sync_m16n8k16_f16_f32")
    if kernel == "edges":
        gemm = dict(m=250, n=37, k=100)
    op = operators.get("gemm", dtype="s8" if kernel == "s8" else "f16", **gemm)
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get(name))[0]
    tiles, warps = {"i1.tile": 2, "i2.tile": 2}, {"i1.tile": 2, "i2.tile": 2}
    split = 4 if kernel == "mma" else 1
    stages = 1 if kernel == "edges" else stages
    schedule = GpuSchedule(tile=tiles, warps=warps, steps=2, stages=stages, split=split)
    return GpuPlan(mapping, schedule, "sm_80")


@pytest.mark.parametrize("kernel", FEATURES)
def test_instructions_that_a_schedule_asks_for(kernel: str) -> None:
    """Asynchronous copies of 16 bytes, ldmatrix, products, split sums, predicates: in the PTX."""
    supported("sm_80")
    ptx = portable_code(KernelText(features(kernel)).source, "sm_80")
    for pattern in FEATURES[kernel][0]:
        assert re.search(pattern.replace(".", r"\."), ptx), pattern


def test_wide_loads_without_asynchronous_copies() -> None:
    """With one stage there is nothing to overlap: 16 bytes a thread, by way of registers."""
    supported("sm_80")
    ptx = portable_code(KernelText(features("wmma", stages=1)).source, "sm_80")
    assert "cp.async" not in ptx
    assert re.search(r"ld\.global(\.nc)?\.v4\.u32", ptx)
    assert re.search(r"st\.shared\.v4\.u32", ptx)


def disassembler() -> list[str]:
    """cuobjdump of the toolkit, or the one that Triton brings."""
    if (tool := shutil.which("cuobjdump")) is not None:
        return [tool]
    spec = importlib.util.find_spec("triton")
    root = Path(spec.origin).parent if spec and spec.origin else Path()
    program_path = root / "backends" / "nvidia" / "bin" / "cuobjdump"
    return [str(program_path)] if program_path.exists() else []


@pytest.mark.parametrize("kernel", FEATURES)
def test_machine_code_that_a_schedule_asks_for(kernel: str, tmp_path: Path) -> None:
    """The same in machine code: LDGSTS, LDSM, HMMA or IMMA, RED."""
    supported("sm_80")
    if not (tool := disassembler()):
        pytest.skip("cuobjdump is not installed; the PTX is looked at instead")
    done = compiler_for("sm_80").compile(KernelText(features(kernel)).source, "sm_80")
    (tmp_path / "kernel.cubin").write_bytes(done.cubin)
    command = [*tool, "-sass", str(tmp_path / "kernel.cubin")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for pattern in FEATURES[kernel][1]:
        assert re.search(rf"\b({pattern})\b", listing), pattern
    if kernel in ("wmma", "mma", "s8"):
        assert re.search(r"LDGSTS\.E(\.\w+)*\.128", listing)
    # What the product counts by itself is what the disassembler lists.
    mma = re.findall(r"\b[HI]MMA\.", listing)
    assert done.instructions.total() == len(mma) > 0
