"""Exports in C: the test program under sanitizers, the kernel between closed pages."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import amos
from amos.export import export
from amos.plan import Candidate
from tests.fuzz import chains
from tests.fuzz.case import Case, Refused, Wrong, case, compare
from tests.fuzz.guarded import guarded, guarded_copy
from tests.fuzz.kernels import encoded, finished_output, schedule_of, unwritten
from tests.support.drawing.intrinsics import catalogue_unit, executable, small_unit

__all__ = ["chained", "exported"]

_SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
#: "name: tensor, dtype, shape; …", and behind it what the parameter takes when it is packed.
_PARAMETER = re.compile(r"^ \*   (\w+): (.*?)(?:, packed into (\d+) elements)?(?: \*/)?$", re.M)


def exported(
    rng: np.random.Generator, about: Callable[[str], None], *, grouped: bool = False
) -> str:
    """Write C, build it twice, run both."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Refused("no C compiler")
    finished = not grouped and bool(rng.random() < 0.3)
    drawn = case(rng, about, _unit, finished=finished, grouped=grouped, most=5000)
    schedule = schedule_of(rng, drawn, about)
    with tempfile.TemporaryDirectory(prefix="amos-fuzz-") as folder:
        try:
            how = "generic" if rng.random() < 0.3 else None
            export(
                Candidate(drawn.mapping, schedule), "c", folder, name="fuzzed", implementation=how
            )
        except amos.AmosError as error:
            raise Wrong(f"cannot be exported: {error}") from error
        rules = Path(folder, "fuzzed.mk").read_text()
        options = re.findall(r"^CFLAGS \?= (.*)$", rules, re.M)[0].split()
        _tested(compiler, folder, options)
        _called(compiler, folder, options, drawn)
    return "right"


def chained(rng: np.random.Generator, about: Callable[[str], None]) -> str:
    """Write C of a chain, and run it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Refused("no C compiler")
    candidate = chains.candidate(rng, about)
    with tempfile.TemporaryDirectory(prefix="amos-fuzz-") as folder:
        try:
            export(candidate, "c", folder, name="fuzzed")
        except amos.AmosError as error:
            raise Wrong(f"cannot be exported: {error}") from error
        rules = Path(folder, "fuzzed.mk").read_text()
        options = re.findall(r"^CFLAGS \?= (.*)$", rules, re.M)[0].split()
        _tested(compiler, folder, options)
    return "right"


#: NumPy's dtype of a C type.
_NUMPY = {f"{kind}_t": kind for kind in ("int8", "uint8", "int16", "uint16", "int32")}
_NUMPY |= {"_Float16": "float16", "float": "float32", "double": "float64"}


def _unit(rng: np.random.Generator) -> Any:
    return small_unit(rng) if rng.random() < 0.25 else catalogue_unit(rng, executable())


def _run(command: list[str], folder: str, what: str) -> None:
    clean = {"ASAN_OPTIONS": "detect_leaks=1", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=dict(os.environ, **clean)
    )
    if done.returncode:
        raise Wrong(f"{what}: status {done.returncode}: {(done.stdout + done.stderr)[:1500]}")


def _tested(compiler: str, folder: str, options: list[str]) -> None:
    built = [compiler, *options, "-O1", *_SANITIZED, "-o", "t", "fuzzed_test.c", "fuzzed.c", "-lm"]
    _run(built, folder, "the compiler, with sanitizers")
    _run(["./t"], folder, "the test program, with sanitizers")


def _called(compiler: str, folder: str, options: list[str], drawn: Case) -> None:
    """The kernel as its users build it, on arrays between closed pages."""
    built = [compiler, *options, "-fPIC", "-shared", "-o", "libfuzzed.so", "fuzzed.c"]
    _run(built, folder, "the compiler")
    library = ctypes.CDLL(str(Path(folder, "libfuzzed.so")))
    header = Path(folder, "fuzzed.h").read_text()
    match = re.search(r"#define FUZZED_WORKSPACE (\d+)", header)
    assert match is not None
    inputs = _PARAMETER.findall(header)[: -len(drawn.results)]
    for last in (True, False):
        arguments, packs = [], iter(re.findall(r"(fuzzed_pack_\w+)\([^)]*, (\w+) \*\w+\);", header))
        for _, tensors, packed in inputs:
            plain = [
                guarded_copy(encoded(drawn.inputs[tensor], kind), last)
                for tensor, kind in re.findall(r"(?:^|; )(\w+), (\w+)", tensors)
            ]
            arguments.append(plain[0])
            if packed:
                # What is packed may be wider than the tensor, or computed of several.
                function, kind = next(packs)
                wide = guarded((int(packed),), np.dtype(_NUMPY[kind]), last)
                getattr(library, function)(*map(_at, plain), _at(wide))
                arguments[-1] = wide
        outs = [unwritten(each, last) for each in drawn.results]
        size = -(-int(match.group(1)) // 64) * 64
        space = guarded((size,), np.dtype(np.uint8), last)
        library.fuzzed(*map(_at, arguments), *map(_at, outs), _at(space))
        compare(drawn, tuple(map(finished_output, outs, drawn.results)), "the exported kernel")


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
