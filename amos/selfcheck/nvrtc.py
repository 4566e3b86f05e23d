"""NVRTC, NVIDIA's compiler as a library, which pip installs where there is no nvcc.

The wheels ``nvidia-cuda-nvrtc``, ``nvidia-cuda-runtime`` and ``nvidia-cuda-nvcc`` (headers of
the warp matrix functions; ``nvidia-cuda-crt`` from CUDA 13 on), with or without the suffix of
a CUDA version, put the library and the headers below one folder ``nvidia``. The library runs
in a process of its own, which it may crash.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Nvrtc", "find_nvrtc"]

_SECONDS = 300.0


@dataclass(frozen=True)
class Nvrtc:
    """An installed NVRTC.

    Attributes:
        library: the shared library.
        headers: folders with the headers of the CUDA runtime.
    """

    library: Path
    headers: tuple[Path, ...]

    def architectures(self) -> frozenset[str]:
        """Architectures that it makes machine code for; none if it does not work."""
        done = self._ask(["known"], "")
        return frozenset(done.stdout.split()) if done and not done.returncode else frozenset()

    def compile(self, source: str, architecture: str) -> str:
        """Compile kernels; the first complaint, or nothing."""
        done = self._ask([architecture, *map(str, self.headers)], source)
        if done is None:
            return f"no answer within {_SECONDS:g} s"
        if not done.returncode:
            return ""
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or [f"status {done.returncode}"])[0]

    def _ask(self, arguments: list[str], text: str) -> subprocess.CompletedProcess[str] | None:
        try:
            return subprocess.run(
                [sys.executable, "-m", "amos.selfcheck.nvrtc", str(self.library), *arguments],
                input=text,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return None


def find_nvrtc() -> Nvrtc | None:
    """The newest NVRTC below a folder ``nvidia`` on the path of imports."""
    roots = list(_roots())
    found = [
        library
        for root in roots
        for library in root.glob("*/lib/libnvrtc.so.*")
        if "alt" not in library.name
    ]
    if not found:
        return None
    newest = max(found, key=lambda library: [int(n) for n in re.findall(r"\d+", library.name)])
    # Headers of one CUDA version: those beside the library in its folder, else of its wheels.
    folders = sorted(newest.parents[2].glob("*/include"))
    own = newest.parents[1] / "include"
    return Nvrtc(newest, tuple(dict.fromkeys([own, *folders])))


def _roots() -> Iterator[Path]:
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield Path(place)


def _known(library: ctypes.CDLL) -> int:
    count = ctypes.c_int()
    if library.nvrtcGetNumSupportedArchs(ctypes.byref(count)):
        return 1
    numbers = (ctypes.c_int * count.value)()
    if library.nvrtcGetSupportedArchs(numbers):
        return 1
    sys.stdout.write(" ".join(f"sm_{number}" for number in numbers))
    return 0


def _compile(library: ctypes.CDLL, text: str, architecture: str, headers: list[str]) -> int:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    if library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
    ):
        return 1
    options = [f"--gpu-architecture={architecture}", *(f"--include-path={h}" for h in headers)]
    encoded = [option.encode() for option in options]
    status = library.nvrtcCompileProgram(
        program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded)
    )
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    sys.stdout.write(log.value.decode(errors="replace"))
    return int(status != 0)


if __name__ == "__main__":
    path, command, *rest = sys.argv[1:]
    loaded = ctypes.CDLL(path)
    sys.exit(
        _known(loaded) if command == "known" else _compile(loaded, sys.stdin.read(), command, rest)
    )
