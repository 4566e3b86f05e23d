"""The C implementation with a C compiler, in a program: fragments in, fragments out.

A program reads the number of calls and then, call by call, the fragments of all
operands in the intrinsic's order; it writes the destination of each call. One
source of data thus serves every compiler, and a crash is an exit status.
"""

from __future__ import annotations

import platform
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from amos.codegen.c.calls import OPERAND_TYPES, parameters
from amos.codegen.c.compiler import INSTALL, compiler_command, complaint
from amos.intrinsics import Implementation, Intrinsic, implementations
from amos.ir import dtype
from amos.ir.floats import pack, unpack
from amos.machine.cpu import cpu
from amos.selfcheck.data import Fragments
from amos.selfcheck.report import Report

#: Seconds that a program may take.
_RUN = 60.0


def check_c(unit: Intrinsic, inputs: Fragments, report: Report) -> None:
    """Compile for this machine; run if the CPU has the instruction."""
    source = implementations(unit.name).get("c")
    if source is None or not source.runs_here:
        return
    compiler = compiler_command()
    if compiler is None:
        report.skipped.append(f"c: no compiler: {INSTALL}")
        return
    missing = {*unit.requires, *source.requires} - cpu().features
    reason = f"c: this CPU lacks {', '.join(sorted(missing))}" if missing else ""
    compare_program(unit, source, inputs, report, compiler, [], f"c: {platform.machine()}", reason)


def compare_program(
    unit: Intrinsic,
    source: Implementation,
    inputs: Fragments,
    report: Report,
    compiler: list[str],
    emulator: list[str],
    label: str,
    not_run: str = "",
) -> None:
    """Compile a C implementation, run it through an emulator if need be, and compare.

    Args:
        emulator: command that runs the program; nothing for this machine.
        not_run: why the program is not run, if it is not.
    """
    with tempfile.TemporaryDirectory(prefix="amos-") as folder:
        text, program = Path(folder, "call.c"), Path(folder, "call")
        text.write_text(_c_program(unit, source), encoding="utf-8")
        if problem := complaint([*compiler, "-O2", *source.flags, "-o", program, text]):
            problem = re.sub(r"^\S*call\.c:\S*\s*", "", problem)
            report.problems.append(f"{label}: does not compile: {problem}")
            return
        report.compiled_for.append(label)
        if not_run:
            report.skipped.append(not_run)
            return
        got = run_program([*emulator, str(program)], unit, inputs)
    report.judge(label, unit, inputs, got)


def _c_program(unit: Intrinsic, source: Implementation) -> str:
    names = [load.tensor.name for load in unit.operands]
    buffers = "\n".join(
        f"static _Alignas(64) unsigned char {load.tensor.name}[{unit.fragment_bytes(load)}];"
        for load in unit.operands
    )
    reads = " || ".join(f"fread({n}, sizeof {n}, 1, stdin) != 1" for n in names)
    arguments = ", ".join(f"(void *){n}" for n in names)
    return f"""#include <stdint.h>
#include <stdio.h>
{source.headers}
static void call({parameters(unit, OPERAND_TYPES)}) {{
{source.source}
}}
{buffers}
int main(void) {{
  uint32_t calls;
  if (fread(&calls, sizeof calls, 1, stdin) != 1) return 3;
  for (uint32_t i = 0; i < calls; ++i) {{
    if ({reads}) return 3;
    call({arguments});
    if (fwrite({names[-1]}, sizeof {names[-1]}, 1, stdout) != 1) return 4;
  }}
  return 0;
}}
"""


def _encode(unit: Intrinsic, inputs: Mapping[str, np.ndarray]) -> bytes:
    """Encode the input of such a program: the number of calls, then the fragments."""
    calls = len(inputs[unit.destination.tensor.name])
    rows = [
        pack(inputs[load.tensor.name].astype(dtype(kind).numpy), kind).reshape(calls, -1)
        for load, kind in zip(unit.operands, unit.staged_dtypes, strict=True)
    ]
    return np.uint32(calls).tobytes() + np.concatenate(rows, axis=1).tobytes()


def run_program(
    command: Sequence[str], unit: Intrinsic, inputs: Mapping[str, np.ndarray]
) -> np.ndarray | str:
    """Run a program on fragments; return the destination, calls × fragment, or the error."""
    try:
        done = subprocess.run(
            list(command), input=_encode(unit, inputs), capture_output=True, timeout=_RUN
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_RUN:g} s"
    except OSError as error:
        return str(error)
    target = inputs[unit.destination.tensor.name]
    size = len(target) * unit.fragment_bytes(unit.destination)
    if done.returncode or len(done.stdout) != size:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        return f"ended with status {done.returncode} after {len(done.stdout)} bytes: {last[0]}"
    return unpack(np.frombuffer(done.stdout, np.uint8), unit.dtypes[-1], target.shape)
