"""CUDA implementations: compiled for every architecture, run on a GPU if there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from amos.codegen.c.calls import parameters
from amos.codegen.cuda.toolchain import Compiler, compilers
from amos.errors import BuildError
from amos.intrinsics import Implementation, Intrinsic, implementations
from amos.selfcheck.data import compare, fragments
from amos.selfcheck.program import run_program, tool
from amos.selfcheck.report import Report

__all__ = ["check_cuda", "cuda_program", "cuda_source"]

_TYPES = {
    "float16": "half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "tfloat32": "float",
    "float64": "double",
    "int32": "int",
}
_HEADERS = ("#include <cuda_bf16.h>", "#include <cuda_fp16.h>")

Pair = tuple[Intrinsic, Implementation]


def check_cuda(intrinsics: Sequence[Intrinsic], rng: np.random.Generator) -> dict[str, Report]:
    """Compile all kernels together, once for each architecture that they list.

    Whatever ``nvcc`` does not know is left to NVRTC, if pip has installed it. A
    failure is traced to the kernels that cause it by compiling them one by one.
    """
    reports = {unit.name: Report(unit.name, described=True) for unit in intrinsics}
    pairs = [
        (unit, source)
        for unit in intrinsics
        if (source := implementations(unit.name).get("cuda")) is not None
    ]
    if not pairs:
        return reports
    known = compilers()
    if not known:
        for unit, _ in pairs:
            reports[unit.name].skipped.append(
                "cuda: nvcc is not installed, nor is NVRTC (pip: nvidia-cuda-nvrtc)"
            )
        return reports
    for architecture in sorted({a for _, s in pairs for a in s.architectures}, key=_number):
        users = [pair for pair in pairs if architecture in pair[1].architectures]
        able = next((c for c in known if architecture in c.architectures), None)
        if able is None:
            names = " and ".join(c.name for c in known)
            for unit, _ in users:
                reports[unit.name].skipped.append(f"cuda: {architecture} is unknown to {names}")
            continue
        _compile(able, architecture, users, reports)
    _run(next((c for c in known if c.kind == "nvcc"), None), pairs, reports, rng)
    return reports


def _number(architecture: str) -> int:
    return int("".join(filter(str.isdigit, architecture)) or 0)


def cuda_source(pairs: Iterable[Pair]) -> str:
    """One file of kernels; the warp of block b makes call b."""
    chosen = list(pairs)
    headers = dict.fromkeys((*_HEADERS, *(s.headers for _, s in chosen if s.headers)))
    return "\n".join([*headers, *(_kernel(unit, source) for unit, source in chosen)])


def _kernel(unit: Intrinsic, source: Implementation) -> str:
    moved = "\n".join(
        f"{load.tensor.name} = ({_pointer(unit, load.tensor.name, str(load.tensor.dtype))})"
        f"((const unsigned char *){load.tensor.name} + "
        f"(size_t)blockIdx.x * {unit.fragment_bytes(load)});"
        for load in unit.operands
    )
    return (
        f'extern "C" __global__ void {unit.name}({parameters(unit, _TYPES)}) {{\n'
        f"{moved}\n{source.source}\n}}"
    )


def _pointer(unit: Intrinsic, name: str, kind: str) -> str:
    constant = "" if name == unit.destination.tensor.name else "const "
    return f"{constant}{_TYPES.get(kind, 'unsigned char')} *"


def _compile(
    able: Compiler, architecture: str, users: Sequence[Pair], reports: dict[str, Report]
) -> None:
    problem = _complaint(able, cuda_source(users), architecture)
    for pair in users:
        report = reports[pair[0].name]
        alone = problem and len(users) > 1
        found = _complaint(able, cuda_source([pair]), architecture) if alone else problem
        if found:
            report.problems.append(f"cuda: {architecture}: {able.name} does not compile: {found}")
        else:
            label = "cuda" if able.kind == "nvcc" else f"cuda by {able.name}"
            report.compiled_for.append(f"{label}: {architecture}")


def _complaint(able: Compiler, source: str, architecture: str) -> str:
    """Why a compiler refuses a file of kernels; nothing if it does not."""
    try:
        able.compile(source, architecture, "kernels")
    except BuildError as error:
        return str(error).partition("refuses it: ")[2] or str(error)
    return ""


_PROGRAM = """
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
static int failed(cudaError_t error) {
  if (error != cudaSuccess) fprintf(stderr, "%s\\n", cudaGetErrorString(error));
  return error != cudaSuccess;
}
"""


def cuda_program(pairs: Sequence[Pair]) -> str:
    """A program that makes the calls of the intrinsic it is told, on a GPU.

    What it reads and writes is said in :mod:`amos.selfcheck.program`.
    """
    choice = "\n".join(
        f'  if (!strcmp(argv[1], "{unit.name}")) return run_{unit.name}();' for unit, _ in pairs
    )
    return "\n".join(
        [
            cuda_source(pairs),
            _PROGRAM,
            *(_host(unit) for unit, _ in pairs),
            "int main(int argc, char **argv) {\n  if (argc != 2) return 2;",
            f"{choice}\n  return 2;\n}}",
        ]
    )


def _host(unit: Intrinsic) -> str:
    sizes = [unit.fragment_bytes(load) for load in unit.operands]
    types = [_pointer(unit, load.tensor.name, str(load.tensor.dtype)) for load in unit.operands]
    arguments = ", ".join(f"({t})device[{n}]" for n, t in enumerate(types))
    count, last = len(sizes), len(sizes) - 1
    return f"""
static int run_{unit.name}() {{
  const size_t sizes[] = {{{", ".join(map(str, sizes))}}};
  uint32_t calls;
  if (fread(&calls, sizeof calls, 1, stdin) != 1) return 3;
  unsigned char *host[{count}], *device[{count}];
  for (int n = 0; n < {count}; ++n) {{
    host[n] = (unsigned char *)malloc(calls * sizes[n]);
    if (!host[n] || failed(cudaMalloc((void **)&device[n], calls * sizes[n]))) return 6;
  }}
  for (uint32_t i = 0; i < calls; ++i)
    for (int n = 0; n < {count}; ++n)
      if (fread(host[n] + i * sizes[n], sizes[n], 1, stdin) != 1) return 3;
  for (int n = 0; n < {count}; ++n)
    if (failed(cudaMemcpy(device[n], host[n], calls * sizes[n], cudaMemcpyHostToDevice))) return 6;
  {unit.name}<<<calls, 32>>>({arguments});
  // A kernel that cannot be launched is seen here only, one that fails at the next line.
  if (failed(cudaGetLastError()) || failed(cudaDeviceSynchronize())) return 5;
  if (failed(cudaMemcpy(host[{last}], device[{last}], calls * sizes[{last}],
                        cudaMemcpyDeviceToHost))) return 5;
  return fwrite(host[{last}], sizes[{last}], calls, stdout) == calls ? 0 : 4;
}}"""


def _run(
    nvcc: Compiler | None,
    pairs: Sequence[Pair],
    reports: dict[str, Report],
    rng: np.random.Generator,
) -> None:
    architecture = _device()
    if architecture is None:
        for unit, _ in pairs:
            reports[unit.name].skipped.append("cuda run: there is no NVIDIA GPU here")
        return
    if nvcc is None or architecture not in nvcc.architectures:
        for unit, _ in pairs:
            reports[unit.name].skipped.append(
                f"cuda run: there is no nvcc here that knows {architecture}"
            )
        return
    able = []
    for pair in pairs:
        report = reports[pair[0].name]
        if _number(architecture) < min(map(_number, pair[1].architectures)):
            report.skipped.append(f"cuda run: the GPU is {architecture}, too old for it")
        elif not report.problems:
            able.append(pair)
    with tempfile.TemporaryDirectory(prefix="amos-") as folder:
        text, program = Path(folder, "calls.cu"), Path(folder, "calls")
        text.write_text(cuda_program(able), encoding="utf-8")
        problem = tool([nvcc.path, f"-arch={architecture}", "-o", program, text], 300)
        for unit, _ in able:
            if problem:
                reports[unit.name].problems.append(f"cuda run: does not compile: {problem}")
            else:
                label = f"cuda: GPU {architecture}"
                _run_one([str(program), unit.name], label, unit, reports[unit.name], rng)


def _device() -> str | None:
    """Architecture of the first GPU."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    try:
        done = subprocess.run(
            [smi, "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"(\d+)\.(\d+)", done.stdout)
    return f"sm_{found.group(1)}{found.group(2)}" if found and not done.returncode else None


def _run_one(
    command: list[str], label: str, unit: Intrinsic, report: Report, rng: np.random.Generator
) -> None:
    given = fragments(unit, rng)
    got = run_program(command, unit, given)
    report.ran_on.append(label)
    if isinstance(got, str):
        report.differ(f"{label}: {got}")
        return
    report.compared += got.size
    if problem := compare(unit, given, got, exact=True):
        report.differ(f"{label}: {problem}")
