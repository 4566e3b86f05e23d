"""NVRTC, NVIDIA's compiler as a library, in a process of its own, which it may crash.

This file is that process: ``python nvrtc.py LIBRARY known`` prints as JSON what the library
is, and ``python nvrtc.py LIBRARY CUBIN|PTX OPTIONS…`` compiles what it reads: one line of JSON
with the log, then the image, if the source is not refused. It imports nothing of its package,
so that starting it costs what Python costs.
"""

from __future__ import annotations

import ctypes
import json
import sys


def main(path: str, command: str, *options: str) -> None:
    """Load a library and do what is asked."""
    library = ctypes.CDLL(path)
    if command == "known":
        sys.stdout.write(json.dumps(_describe_library(library)))
        return
    image, log = _compile(library, command, list(options), sys.stdin.buffer.read())
    sys.stdout.buffer.write(json.dumps({"log": log}).encode() + b"\n" + image)


def _describe_library(library: ctypes.CDLL) -> dict[str, object]:
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    _check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    _check(library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    numbers = (ctypes.c_int * count.value)()
    _check(library.nvrtcGetSupportedArchs(numbers))
    return {"version": f"{major.value}.{minor.value}", "architectures": list(numbers)}


def _compile(library: ctypes.CDLL, kind: str, options: list[str], text: bytes) -> tuple[bytes, str]:
    program = ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None))
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = library.nvrtcCompileProgram(program, len(options), encoded)
    log = _fetch(library, "ProgramLog", program).rstrip(b"\0").decode(errors="replace")
    return (b"" if failed else _fetch(library, kind, program)), log


def _fetch(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(status: int) -> None:
    if status:
        raise SystemExit(f"NVRTC error {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
