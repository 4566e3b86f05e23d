"""Compiling kernels without a GPU: nvcc, or the NVRTC library that pip installs.

CUDA 13 dropped sm_70. Where nvcc is that new, ``nvidia-cuda-nvrtc-cu12`` beside it
compiles for Volta; the two are asked in this order.

The wheels ``nvidia-cuda-nvrtc-cu12``, ``nvidia-cuda-runtime-cu12`` and
``nvidia-cuda-nvcc-cu12`` (headers of the warp matrix functions) each have a folder
below ``nvidia``; from CUDA 13 on, without a suffix and with ``nvidia-cuda-crt``, they
share one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from amos.cuda.codegen import nvrtc
from amos.cuda.codegen.sass import tensor_core_instructions
from amos.errors import BuildError, ToolchainError
from amos.machine.gpu_costs import capability

#: Seconds that one kernel may take.
_TIMEOUT = 600
#: Headers that kernels include; an NVRTC without them compiles none. Below them, the folders of
#: these headers in the wheels of CUDA 12.
_HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "mma.h")
_FOLDERS = ("cuda_runtime", "cuda_nvcc", "cuda_cccl")


@dataclass(frozen=True)
class Compiled:
    """A kernel for one architecture, and what its compiler said about it.

    Attributes:
        registers: of one thread.
        spills: bytes of registers that a thread keeps in memory, stores and loads.
        stack: bytes of local memory of a thread: what spills take, and arrays that are
            not held in registers.
        static_shared: bytes of shared memory that the kernel declares.
    """

    cubin: bytes
    registers: int
    spills: int
    stack: int
    static_shared: int
    compiler: str

    @property
    def instructions(self) -> Counter[str]:
        """Tensor Core instructions by mnemonic."""
        return tensor_core_instructions(self.cubin)


@dataclass(frozen=True)
class Compiler:
    """One compiler.

    Attributes:
        kind: ``"nvcc"`` or ``"nvrtc"``.
        version: as ``"13.0"``.
        architectures: what it compiles for.
        headers: folders with the headers of NVRTC's CUDA version; nvcc knows its own.
    """

    kind: str
    path: str
    version: str
    architectures: frozenset[str]
    headers: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """Kind and version."""
        return f"{self.kind} {self.version}"

    def compile(self, source: str, architecture: str, where: str = "kernel") -> Compiled:
        """Compile one kernel, ``where`` in messages, or raise BuildError if the text is refused."""
        cubin, log = self.image(source, architecture, where)
        numbers = {
            name: [int(n) for n in re.findall(pattern, log)] for name, pattern in _REPORT.items()
        }
        if not numbers["registers"]:
            raise BuildError(f"{where}: the compiler's report says nothing of registers")
        return Compiled(
            cubin,
            registers=max(numbers["registers"]),
            spills=sum(numbers["spills"]),
            stack=sum(numbers["stack"]),
            static_shared=max(numbers["shared"], default=0),
            compiler=self.name,
        )

    def image(self, source: str, architecture: str, where: str) -> tuple[bytes, str]:
        """Compile machine code for ``sm_80`` or PTX for ``compute_80``; return messages too."""
        run = _nvcc if self.kind == "nvcc" else _nvrtc
        try:
            image, log = run(self, source, architecture)
        except subprocess.TimeoutExpired:
            raise BuildError(f"{where}: {self.name} took more than {_TIMEOUT} seconds") from None
        if not image:
            lines = [line.strip() for line in log.splitlines() if line.strip()] or ["no reason"]
            reason = next((line for line in lines if "error" in line), lines[-1])
            raise BuildError(f"{where}: {self.name} refuses it: {reason}")
        return image, log


#: Numbers in a compiler's report of one kernel.
_REPORT = {
    "registers": r"Used (\d+) registers",
    "spills": r"(\d+) bytes spill (?:stores|loads)",
    "stack": r"(\d+) bytes stack frame",
    "shared": r"(\d+) bytes smem",
}


@cache
def compilers() -> tuple[Compiler, ...]:
    """List the CUDA compilers that are installed here, nvcc first."""
    installed = []
    if path := shutil.which("nvcc"):
        version = re.search(r"release (\d+\.\d+)", _output([path, "--version"]))
        architectures = frozenset(_output([path, "--list-gpu-code"]).split())
        if version and architectures:
            installed.append(Compiler("nvcc", path, version.group(1), architectures))
    return (*installed, *_libraries())


def compiler_for(architecture: str) -> Compiler:
    """Return the first compiler of an architecture; a ToolchainError says what is there."""
    capability(architecture)
    for compiler in compilers():
        if architecture in compiler.architectures:
            return compiler
    here = ", ".join(c.name for c in compilers()) or "neither nvcc nor NVRTC is installed"
    raise ToolchainError(
        f"no compiler for {architecture} here ({here}); "
        "pip install 'amos-mapper[cuda]' brings one for sm_70 and later"
    )


def portable_code(source: str, architecture: str, where: str = "kernel") -> str:
    """Compile a kernel to PTX, which drivers compile for this and later architectures.

    The oldest compiler here makes it: a driver knows the PTX of its own time and before.
    """
    compiler_for(architecture)
    fitting = [c for c in compilers() if architecture in c.architectures]
    compiler = min(fitting, key=lambda c: tuple(map(int, c.version.split("."))))
    virtual = architecture.replace("sm_", "compute_")
    return compiler.image(source, virtual, where)[0].rstrip(b"\0").decode()


def compiler_of_image(architecture: str, capability: int) -> Compiler:
    """Return the compiler of :func:`image_for`'s images."""
    exact = [c for c in compilers() if f"sm_{capability}" in c.architectures]
    return exact[0] if exact else compiler_for(architecture)


def image_for(source: str, architecture: str, capability: int, where: str = "kernel") -> bytes:
    """Compile an image for a GPU: machine code, or PTX where no compiler knows the GPU.

    Args:
        capability: of the GPU, 90 for 9.0.

    Raises:
        ToolchainError: no compiler here knows the GPU or the kernel's architecture.
        BuildError: the compiler refuses the text.
    """
    compiler = compiler_of_image(architecture, capability)
    if f"sm_{capability}" in compiler.architectures:
        return compiler.compile(source, f"sm_{capability}", where).cubin
    return portable_code(source, architecture, where).encode() + b"\0"


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _nvcc(compiler: Compiler, source: str, architecture: str) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="amos-") as folder:
        text, image = Path(folder, "kernel.cu"), Path(folder, "image")
        text.write_text(source, encoding="utf-8")
        command = [compiler.path, "-std=c++17", f"-arch={architecture}", "-Xptxas", "-v"]
        command.append("-ptx" if architecture.startswith("compute_") else "-cubin")
        command += ["-o", str(image), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT)
        return (b"" if done.returncode else image.read_bytes()), done.stderr


def _nvrtc(compiler: Compiler, source: str, architecture: str) -> tuple[bytes, str]:
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--ptxas-options=-v"]
    options += [f"-I{folder}" for folder in compiler.headers]
    kind = "PTX" if architecture.startswith("compute_") else "CUBIN"
    done = _ask(Path(compiler.path), kind, *options, data=source.encode())
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()
        return b"", f"error: {last[-1] if last else f'NVRTC ended with {done.returncode}'}"
    head, _, image = done.stdout.partition(b"\n")
    return image, str(json.loads(head)["log"])


@cache
def _libraries() -> tuple[Compiler, ...]:
    """List NVRTC libraries with headers below folders ``nvidia`` on the path of imports."""
    installed = []
    for entry in dict.fromkeys(sys.path):
        for library in sorted(Path(entry or ".", "nvidia").glob("*/lib/libnvrtc.so.*")):
            own, wheels = library.parents[1] / "include", library.parents[2]
            has_headers = (own / _HEADERS[0]).exists()
            folders = [own] if has_headers else [wheels / name / "include" for name in _FOLDERS]
            headers = tuple(folder for folder in folders if folder.is_dir())
            whole = all(any((f / name).exists() for f in headers) for name in _HEADERS)
            if ".alt." in library.name or not whole:
                continue
            done = _ask(library, "known")
            if not done.returncode:
                report = json.loads(done.stdout)
                names = frozenset(f"sm_{number}" for number in report["architectures"])
                installed.append(Compiler("nvrtc", str(library), report["version"], names, headers))
    return tuple(installed)


def _ask(library: Path, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-I", str(nvrtc.__file__), str(library), *arguments]
    # NVRTC opens its built-in functions by name alone; they lie beside it.
    folders = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(folders)}
    return subprocess.run(
        command, input=data, capture_output=True, timeout=_TIMEOUT, env=environment
    )
