"""Compiling kernels without a GPU: nvcc, or the NVRTC library that pip installs.

CUDA 13 dropped sm_70. Where nvcc is that new, ``nvidia-cuda-nvrtc-cu12`` beside it
compiles for Volta; the two are asked in this order.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from amos.codegen.cuda.nvrtc import find_nvrtc
from amos.codegen.cuda.sass import tensor_core_instructions
from amos.errors import BuildError, ToolchainError
from amos.machine.gpu_costs import capability

__all__ = [
    "Compiled",
    "Compiler",
    "compile_cuda",
    "compiler_for",
    "compiler_of_image",
    "compilers",
    "image_for",
    "portable_code",
]

_TIMEOUT = 600


@dataclass(frozen=True)
class Compiled:
    """A kernel for one architecture, and what its compiler said about it.

    Attributes:
        architecture: as ``"sm_80"``.
        cubin: machine code.
        registers: of one thread.
        spills: bytes of registers that a thread keeps in memory, stores and loads.
        stack: bytes of local memory of a thread: what spills take, and arrays that are
            not held in registers.
        static_shared: bytes of shared memory that the kernel declares.
        compiler: name and version.
    """

    architecture: str
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
        path: of the program or the library.
        version: as ``"13.0"``.
        architectures: what it compiles for.
    """

    kind: str
    path: str
    version: str
    architectures: frozenset[str]

    @property
    def name(self) -> str:
        """Kind and version."""
        return f"{self.kind} {self.version}"

    def compile(self, source: str, architecture: str, where: str) -> Compiled:
        """Machine code of one kernel.

        Raises:
            BuildError: the compiler refuses the text.
        """
        run = _nvcc if self.kind == "nvcc" else _nvrtc
        cubin, log = run(self, source, architecture, where)
        return Compiled(
            architecture,
            cubin,
            _number(r"Used (\d+) registers", log, where),
            sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)),
            sum(int(n) for n in re.findall(r"(\d+) bytes stack frame", log)),
            int(match.group(1)) if (match := re.search(r"(\d+) bytes smem", log)) else 0,
            self.name,
        )


@lru_cache(maxsize=1)
def compilers() -> tuple[Compiler, ...]:
    """Every CUDA compiler that is installed here, nvcc first."""
    found = []
    if path := shutil.which("nvcc"):
        version = re.search(r"release (\d+\.\d+)", _output([path, "--version"]))
        known = frozenset(_output([path, "--list-gpu-code"]).split())
        if version and known:
            found.append(Compiler("nvcc", path, version.group(1), known))
    found += [Compiler("nvrtc", str(x.library), x.version, x.architectures) for x in find_nvrtc()]
    return tuple(found)


def compiler_for(architecture: str) -> Compiler:
    """The first compiler that knows an architecture.

    Raises:
        ToolchainError: none does; the message says what is there.
        BuildError: that is no architecture.
    """
    capability(architecture)
    for compiler in compilers():
        if architecture in compiler.architectures:
            return compiler
    here = ", ".join(c.name for c in compilers()) or "neither nvcc nor NVRTC is installed"
    raise ToolchainError(
        f"no compiler for {architecture} here ({here}); "
        "pip install 'amos-mapper[cuda]' brings one for sm_70 and later"
    )


def compile_cuda(source: str, architecture: str, where: str = "kernel") -> Compiled:
    """Compile a kernel for one architecture.

    Args:
        source: CUDA C++ with one kernel.
        architecture: as ``"sm_80"``.
        where: what messages call the kernel.

    Raises:
        ToolchainError: no compiler here knows the architecture.
        BuildError: the compiler refuses the text.
    """
    return compiler_for(architecture).compile(source, architecture, where)


def portable_code(source: str, architecture: str, where: str = "kernel") -> str:
    """PTX of a kernel, which drivers compile for this and later architectures.

    The oldest compiler here makes it: a driver knows the PTX of its own time and before.

    Raises:
        ToolchainError: no compiler here knows the architecture.
        BuildError: the compiler refuses the text.
    """
    compiler_for(architecture)
    fitting = [c for c in compilers() if architecture in c.architectures]
    compiler = min(fitting, key=lambda c: tuple(map(int, c.version.split("."))))
    virtual = architecture.replace("sm_", "compute_")
    run = _nvcc if compiler.kind == "nvcc" else _nvrtc
    return run(compiler, source, virtual, where)[0].rstrip(b"\0").decode()


def compiler_of_image(architecture: str, capability: int) -> Compiler:
    """What makes :func:`image_for`'s images.

    Raises:
        ToolchainError: no compiler here knows the GPU or the kernel's architecture.
    """
    exact = [c for c in compilers() if f"sm_{capability}" in c.architectures]
    return exact[0] if exact else compiler_for(architecture)


def image_for(source: str, architecture: str, capability: int, where: str = "kernel") -> bytes:
    """What a driver loads: machine code for its GPU, or PTX where no compiler knows that.

    Args:
        source: CUDA C++ with one kernel.
        architecture: that the kernel is written for, as ``"sm_80"``.
        capability: of the GPU, 90 for 9.0.
        where: what messages call the kernel.

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


def _nvcc(compiler: Compiler, source: str, architecture: str, where: str) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="amos-") as folder:
        text, cubin = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        text.write_text(source, encoding="utf-8")
        command = [compiler.path, "-std=c++17", f"-arch={architecture}", "-Xptxas", "-v"]
        command.append("-ptx" if architecture.startswith("compute_") else "-cubin")
        try:
            done = subprocess.run(
                [*command, "-o", str(cubin), str(text)],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            raise BuildError(
                f"{where}: {compiler.name} took more than {_TIMEOUT} seconds"
            ) from None
        if done.returncode:
            raise BuildError(f"{where}: {compiler.name} refuses it: {_reason(done.stderr)}")
        return cubin.read_bytes(), done.stderr


def _nvrtc(compiler: Compiler, source: str, architecture: str, where: str) -> tuple[bytes, str]:
    library = next(x for x in find_nvrtc() if str(x.library) == compiler.path)
    image, log = library.compile(source, architecture)
    if not image:
        raise BuildError(f"{where}: {compiler.name} refuses it: {_reason(log)}")
    return image, log


def _number(pattern: str, log: str, where: str) -> int:
    found = re.search(pattern, log)
    if found is None:
        raise BuildError(f"{where}: the compiler's report says nothing of registers")
    return int(found.group(1))


def _reason(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no reason")
