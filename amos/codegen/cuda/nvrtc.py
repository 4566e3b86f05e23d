"""NVRTC, NVIDIA's compiler as a library, which pip installs where there is no nvcc.

The wheels ``nvidia-cuda-nvrtc-cu12``, ``nvidia-cuda-runtime-cu12`` and
``nvidia-cuda-nvcc-cu12`` (headers of the warp matrix functions) each have a folder
below ``nvidia``; from CUDA 13 on, without a suffix and with ``nvidia-cuda-crt``, they
share one. The library runs in a process of its own, which it may crash.

This file is also that process: ``python nvrtc.py LIBRARY …``. It imports nothing of
its package, so that starting it costs what Python costs.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["Nvrtc", "find_nvrtc"]

#: Seconds that one kernel may take.
_TIMEOUT = 600
#: Headers that kernels include; a library without them compiles none.
_NEEDED = ("cuda_fp16.h", "cuda_bf16.h", "mma.h")
#: What the wheels of CUDA 12 call the folders of their headers.
_FOLDERS = ("cuda_runtime", "cuda_nvcc", "cuda_cccl")


@dataclass(frozen=True)
class Nvrtc:
    """An installed NVRTC that works.

    Attributes:
        library: the shared library.
        headers: folders with the headers of its CUDA version.
        version: as ``"12.9"``.
        architectures: what it makes machine code for, as ``"sm_80"``.
    """

    library: Path
    headers: tuple[Path, ...]
    version: str
    architectures: frozenset[str]

    def compile(self, source: str, architecture: str) -> tuple[bytes, str]:
        """Compile kernels.

        Args:
            source: CUDA C++ without host code.
            architecture: ``"sm_80"`` for machine code, ``"compute_80"`` for PTX.

        Returns:
            the image, empty if the source is refused, and what the compiler said.
        """
        options = [f"--gpu-architecture={architecture}", "--std=c++17", "--ptxas-options=-v"]
        options += [f"-I{folder}" for folder in self.headers]
        kind = "PTX" if architecture.startswith("compute_") else "CUBIN"
        reply = _ask(self.library, [kind, *options], source.encode())
        if isinstance(reply, str):
            return b"", f"error: {reply}"
        head, _, image = reply.partition(b"\n")
        return image, str(json.loads(head)["log"])


@lru_cache(maxsize=1)
def find_nvrtc() -> tuple[Nvrtc, ...]:
    """Every NVRTC below a folder ``nvidia`` on the path of imports that has its headers."""
    found = []
    for entry in dict.fromkeys(sys.path):
        for library in sorted(Path(entry or ".", "nvidia").glob("*/lib/libnvrtc.so.*")):
            headers = _headers(library)
            if ".alt." in library.name or not headers:
                continue
            reply = _ask(library, ["known"], b"")
            if not isinstance(reply, str):
                known = json.loads(reply)
                names = frozenset(f"sm_{number}" for number in known["architectures"])
                found.append(Nvrtc(library, headers, known["version"], names))
    return tuple(found)


def _headers(library: Path) -> tuple[Path, ...]:
    """Folders of the headers that belong to a library; none if one is missing."""
    own, wheels = library.parents[1] / "include", library.parents[2]
    folders = [own] if (own / _NEEDED[0]).exists() else [wheels / f / "include" for f in _FOLDERS]
    there = tuple(folder for folder in folders if folder.is_dir())
    whole = all(any((folder / name).exists() for folder in there) for name in _NEEDED)
    return there if whole else ()


def _ask(library: Path, arguments: list[str], data: bytes) -> bytes | str:
    """What the process says; a string is why there is no answer."""
    command = [sys.executable, "-I", __file__, str(library), *arguments]
    # NVRTC opens its built-in functions by name alone; they lie beside it.
    folders = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(folders)}
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=_TIMEOUT, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_TIMEOUT} s"
    if not done.returncode:
        return done.stdout
    last = done.stderr.decode(errors="replace").strip().splitlines()
    return last[-1] if last else f"NVRTC ended with status {done.returncode}"


def _known(library: ctypes.CDLL) -> dict[str, object]:
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    _checked(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    _checked(library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    numbers = (ctypes.c_int * count.value)()
    _checked(library.nvrtcGetSupportedArchs(numbers))
    return {"version": f"{major.value}.{minor.value}", "architectures": list(numbers)}


def _compile(library: ctypes.CDLL, kind: str, options: list[str], text: bytes) -> tuple[bytes, str]:
    program = ctypes.c_void_p()
    _checked(library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None))
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = library.nvrtcCompileProgram(program, len(options), given)
    log = _fetched(library, "ProgramLog", program).rstrip(b"\0").decode(errors="replace")
    return (b"" if failed else _fetched(library, kind, program)), log


def _fetched(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _checked(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _checked(getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _checked(status: int) -> None:
    if status:
        raise SystemExit(f"NVRTC error {status}")


def _main(path: str, command: str, *options: str) -> None:
    library = ctypes.CDLL(path)
    if command == "known":
        sys.stdout.write(json.dumps(_known(library)))
        return
    image, log = _compile(library, command, list(options), sys.stdin.buffer.read())
    sys.stdout.buffer.write(json.dumps({"log": log}).encode() + b"\n" + image)


if __name__ == "__main__":
    _main(*sys.argv[1:])
