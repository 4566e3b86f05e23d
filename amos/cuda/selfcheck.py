"""CUDA implementations: compiled for every architecture, run on a GPU if there is one.

As a program, ``python -m amos.cuda.selfcheck LIBRARY IMAGE NAME SIZES…`` makes calls on the
GPU: what it reads and writes is said in :mod:`amos.selfcheck.program`. A kernel harms that
process alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from amos._processes import python
from amos.codegen.c.calls import parameters
from amos.cuda.codegen.toolchain import Compiler, compilers, image_for
from amos.cuda.runtime.driver import Device, KernelError, describe_gpu
from amos.cuda.runtime.loader import Kernel
from amos.errors import BuildError
from amos.intrinsics import Implementation, Intrinsic, implementations
from amos.machine.gpu_costs import WARP, capability
from amos.selfcheck.data import draw_fragments
from amos.selfcheck.program import run_program
from amos.selfcheck.report import Report

_TYPES = {
    "float16": "half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "tfloat32": "float",
    "float64": "double",
    "int32": "int",
}
_HEADERS = ("#include <cuda_bf16.h>", "#include <cuda_fp16.h>")
#: NVIDIA's driver, and seconds that it may take to say which GPU is there.
_DRIVER, _PATIENCE = "libcuda.so.1", 30.0

Pair = tuple[Intrinsic, Implementation]


def check_cuda(intrinsics: Sequence[Intrinsic], rng: np.random.Generator) -> dict[str, Report]:
    """Compile all kernels together, once for each architecture that they list.

    Architectures that ``nvcc`` lacks are left to NVRTC, if pip has installed it. A
    failure is traced to the kernels that cause it by compiling them one by one.
    """
    reports = {unit.name: Report(unit.name, described=True) for unit in intrinsics}
    sources = [(unit, implementations(unit.name).get("cuda")) for unit in intrinsics]
    pairs = [(unit, source) for unit, source in sources if source is not None]
    installed = compilers()
    if not installed:
        missing = "cuda: nvcc is not installed, nor is NVRTC (pip: nvidia-cuda-nvrtc)"
        _skip(pairs, reports, missing)
        return reports
    for architecture in sorted({a for _, s in pairs for a in s.architectures}, key=capability):
        users = [pair for pair in pairs if architecture in pair[1].architectures]
        able = next((c for c in installed if architecture in c.architectures), None)
        if able is None:
            names = " and ".join(c.name for c in installed)
            _skip(users, reports, f"cuda: {architecture} is unknown to {names}")
        else:
            _compile(able, architecture, users, reports)
    if pairs:
        _run(pairs, reports, rng)
    return reports


def _skip(pairs: Sequence[Pair], reports: dict[str, Report], reason: str) -> None:
    for unit, _ in pairs:
        reports[unit.name].skipped.append(reason)


def cuda_source(pairs: Sequence[Pair]) -> str:
    """Write one file of kernels; the warp of block b makes call b."""
    headers = dict.fromkeys((*_HEADERS, *(s.headers for _, s in pairs if s.headers)))
    return "\n".join([*headers, *(_kernel(unit, source) for unit, source in pairs)])


def _kernel(unit: Intrinsic, source: Implementation) -> str:
    moved = []
    for load in unit.operands:
        constant = "" if load is unit.destination else "const "
        kind = _TYPES.get(str(load.tensor.dtype), "unsigned char")
        moved.append(
            f"{load.tensor.name} = ({constant}{kind} *)((const unsigned char *){load.tensor.name}"
            f" + (size_t)blockIdx.x * {unit.fragment_bytes(load)});\n"
        )
    return (
        f'extern "C" __global__ void __launch_bounds__({WARP}) '
        f"{unit.name}({parameters(unit, _TYPES)}) {{\n{''.join(moved)}{source.source}\n}}"
    )


def _compile(
    able: Compiler, architecture: str, users: Sequence[Pair], reports: dict[str, Report]
) -> None:
    problem = _complaint(able, cuda_source(users), architecture)
    for pair in users:
        report = reports[pair[0].name]
        alone = problem and len(users) > 1
        complaint = _complaint(able, cuda_source([pair]), architecture) if alone else problem
        if complaint:
            report.problems.append(
                f"cuda: {architecture}: {able.name} does not compile: {complaint}"
            )
        else:
            label = "cuda" if able.kind == "nvcc" else f"cuda by {able.name}"
            report.compiled_for.append(f"{label}: {architecture}")


def _complaint(able: Compiler, source: str, architecture: str) -> str:
    """Return why a compiler refuses a file of kernels; empty if it does not."""
    try:
        able.compile(source, architecture, "kernels")
    except BuildError as error:
        return str(error).partition("refuses it: ")[2] or str(error)
    return ""


def _run(pairs: Sequence[Pair], reports: dict[str, Report], rng: np.random.Generator) -> None:
    try:
        here = int(describe_gpu(_DRIVER, _PATIENCE)["capability"])
    except (KernelError, subprocess.TimeoutExpired) as error:
        _skip(pairs, reports, f"cuda run: no GPU: {error}")
        return
    able, least = [], 0
    for unit, source in pairs:
        needed = min(map(capability, source.architectures))
        if here < needed:
            _skip([(unit, source)], reports, f"cuda run: the GPU is sm_{here}, too old for it")
        elif not reports[unit.name].problems:
            able.append((unit, source))
            least = max(least, needed)
    if not able:
        return
    try:
        image = image_for(cuda_source(able), f"sm_{least}", here, "kernels")
    except BuildError as error:
        for unit, _ in able:
            reports[unit.name].problems.append(f"cuda run: does not compile: {error}")
        return
    with tempfile.NamedTemporaryFile(prefix="amos-") as file:
        file.write(image)
        file.flush()
        for unit, _ in able:
            sizes = [str(unit.fragment_bytes(load)) for load in unit.operands]
            command = [*python(__name__), _DRIVER, file.name, unit.name, *sizes]
            inputs = draw_fragments(unit, rng)
            got = run_program(command, unit, inputs)
            reports[unit.name].judge(f"cuda: GPU sm_{here}", unit, inputs, got)


def main(library: str, image: str, name: str, *sizes: str) -> None:
    """Make the calls that standard input holds by a kernel of an image."""
    (calls,) = np.frombuffer(sys.stdin.buffer.read(4), np.uint32)
    rows = np.frombuffer(sys.stdin.buffer.read(), np.uint8).reshape(calls, -1)
    parts = np.split(rows, np.cumsum([int(size) for size in sizes])[:-1], axis=1)
    operands = [operand.copy() for operand in parts]
    try:
        device = Device(library)
        launch = {
            "kernel": name,
            "architecture": f"sm_{device.capability}",
            "dynamic_shared_bytes": 0,
            "grid": (int(calls), 1, 1),
            "block": (WARP, 1, 1),
            "arguments": [],
        }
        kernel = Kernel(name, device, launch=launch, image=Path(image).read_bytes())
        with device.holding(operands) as pointers:
            kernel.run(pointers)
            device.call("cuCtxSynchronize")
            device.download(operands[-1], pointers[-1])
    except KernelError as error:
        raise SystemExit(str(error)) from None
    sys.stdout.buffer.write(operands[-1].tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
