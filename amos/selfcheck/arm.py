"""Arm implementations on other machines: cross-compiled, and run under QEMU."""

from __future__ import annotations

import platform
import shutil
import tempfile
from pathlib import Path

import numpy as np

from amos.codegen.c.compiler import complaint
from amos.errors import AmosError
from amos.intrinsics import Intrinsic, implementations
from amos.selfcheck.data import Fragments
from amos.selfcheck.program import compare_program, run_program
from amos.selfcheck.report import Report

_COMPILER = "aarch64-linux-gnu-gcc"
_EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
_LLVM, _C = "llvm native: aarch64", "c: aarch64"


def check_arm(unit: Intrinsic, inputs: Fragments, report: Report) -> None:
    """Check the ``c`` and ``llvm`` implementations for aarch64 where this is another machine."""
    sources = {
        kind: source
        for kind, source in implementations(unit.name).items()
        if source.machine == "aarch64" and kind in ("c", "llvm")
    }
    if not sources or platform.machine() == "aarch64":
        return
    compiler = shutil.which(_COMPILER)
    emulator = next((path for name in _EMULATORS if (path := shutil.which(name))), None)
    lacking = "" if emulator else f"aarch64 run: {' or '.join(_EMULATORS)} is not installed"
    if "c" in sources:
        if compiler is None:
            report.skipped.append(f"c for aarch64: {_COMPILER} is not installed")
        else:
            run = [emulator, "-cpu", "max"] if emulator else []
            command = [compiler, "-static"]
            compare_program(unit, sources["c"], inputs, report, command, run, _C, lacking)
    if "llvm" in sources:
        _check_object(unit, list(sources["llvm"].flags), inputs, report, compiler, emulator)


def _check_object(
    unit: Intrinsic,
    attributes: list[str],
    inputs: Fragments,
    report: Report,
    compiler: str | None,
    emulator: str | None,
) -> None:
    """Link TVM's object file with a program that calls it, and compare."""
    from amos.runtime.calls import compile_object

    calls = len(inputs[unit.destination.tensor.name])
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": attributes}
    with tempfile.TemporaryDirectory(prefix="amos-") as folder:
        object_file, text, program = (Path(folder, name) for name in ("call.o", "main.c", "call"))
        try:
            compile_object(unit, calls, target, object_file)
        except AmosError as error:
            report.problems.append(f"{_LLVM}: {error}")
            return
        report.compiled_for.append(_LLVM)
        if compiler is None or emulator is None:
            why = _COMPILER if compiler is None else " or ".join(_EMULATORS)
            report.skipped.append(f"{_LLVM} run: {why} is not installed")
            return
        text.write_text(_driver(unit, calls), encoding="utf-8")
        if problem := complaint([compiler, "-static", "-O2", "-o", program, text, object_file]):
            report.problems.append(f"{_LLVM}: does not link: {problem}")
            return
        got = run_program([emulator, "-cpu", "max", str(program)], unit, inputs)
    report.judge(_LLVM, unit, inputs, got)


_CODES = {"int": 0, "uint": 1, "float": 2}


def _driver(unit: Intrinsic, calls: int) -> str:
    """Write a C program that packs TVM's arguments by hand: DLPack tensors, no runtime."""
    from amos.ir import dtype

    arrays, fill, reads = [], [], []
    for n, load in enumerate(unit.operands):
        kind, size = dtype(str(load.tensor.dtype)), unit.fragment_bytes(load)
        shape = (calls, *load.tensor.shape)
        strides = [int(np.prod(shape[d + 1 :], dtype=np.int64)) for d in range(len(shape))]
        arrays.append(
            f"static _Alignas(64) unsigned char data{n}[{calls}][{size}];\n"
            f"static int64_t shape{n}[] = {{{', '.join(map(str, shape))}}};\n"
            f"static int64_t strides{n}[] = {{{', '.join(map(str, strides))}}};"
        )
        fill.append(
            f"  Tensor t{n} = {{data{n}, 1, 0, {len(shape)}, {_CODES[kind.kind]}, {kind.bits}, 1, "
            f"shape{n}, strides{n}, 0}};\n  arguments[{n}] = (Any){{7, 0, &t{n}}};"
        )
        reads.append(f"    if (fread(data{n}[i], {size}, 1, stdin) != 1) return 3;")
    last, count, newline = len(arrays) - 1, len(arrays), "\n"
    return f"""#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
typedef struct {{ void *data; int32_t device, id, ndim; uint8_t code, bits; uint16_t lanes;
                 int64_t *shape, *strides; uint64_t offset; }} Tensor;
typedef struct {{ int32_t type; uint32_t small; void *value; }} Any;
int __tvm_ffi_main(void *, Any *, int32_t, Any *);
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t n) {{
  fprintf(stderr, "%s:", kind);
  for (int32_t i = 0; i < n; ++i) fprintf(stderr, " %s", parts[i]);
}}
static void *reserve(int32_t d, int32_t i, uint64_t size, int32_t c, int32_t b) {{
  return aligned_alloc(64, (size + 63) / 64 * 64);
}}
static int release(int32_t d, int32_t i, void *data) {{ free(data); return 0; }}
void *(*__TVMBackendAllocWorkspace)(int32_t, int32_t, uint64_t, int32_t, int32_t) = reserve;
int (*__TVMBackendFreeWorkspace)(int32_t, int32_t, void *) = release;
{newline.join(arrays)}
int main(void) {{
  uint32_t calls;
  Any arguments[{count}], result = {{0, 0, 0}};
  if (fread(&calls, sizeof calls, 1, stdin) != 1 || calls != {calls}) return 3;
  for (uint32_t i = 0; i < calls; ++i) {{
{newline.join(reads)}
  }}
{newline.join(fill)}
  if (__tvm_ffi_main(0, arguments, {count}, &result)) return 5;
  return fwrite(data{last}, sizeof data{last}, 1, stdout) == 1 ? 0 : 4;
}}
"""
