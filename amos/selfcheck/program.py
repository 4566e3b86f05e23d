"""C and CUDA programs around one implementation: fragments in, fragments out.

A program reads the number of calls and then, call by call, the fragments of all
operands in the intrinsic's order; it writes the destination of each call. So one
source of data serves every compiler, and a crash is an exit status.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from amos.codegen.c.calls import OPERAND_TYPES, parameters
from amos.intrinsics import Implementation, Intrinsic
from amos.ir import dtype
from amos.ir.floats import pack, unpack

__all__ = ["c_program", "encode", "run_program", "tool"]


def c_program(unit: Intrinsic, source: Implementation) -> str:
    """A C program that makes the calls; see the module."""
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


def encode(unit: Intrinsic, given: Mapping[str, np.ndarray]) -> bytes:
    """What such a program reads: the number of calls, then the fragments."""
    calls = len(given[unit.destination.tensor.name])
    rows = [
        pack(given[load.tensor.name].astype(dtype(kind).numpy), kind).reshape(calls, -1)
        for load, kind in zip(unit.operands, unit.staged_dtypes, strict=True)
    ]
    return np.uint32(calls).tobytes() + np.concatenate(rows, axis=1).tobytes()


def run_program(
    command: Sequence[str], unit: Intrinsic, given: Mapping[str, np.ndarray], seconds: float = 60
) -> np.ndarray | str:
    """Run a program on fragments: the destination, calls × fragment, or what went wrong."""
    try:
        done = subprocess.run(
            list(command), input=encode(unit, given), capture_output=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {seconds:g} s"
    except OSError as error:
        return str(error)
    target = given[unit.destination.tensor.name]
    size = len(target) * unit.fragment_bytes(unit.destination)
    if done.returncode or len(done.stdout) != size:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        return f"ended with status {done.returncode} after {len(done.stdout)} bytes: {last[0]}"
    return unpack(np.frombuffer(done.stdout, np.uint8), unit.dtypes[-1], target.shape)


def tool(command: Sequence[str | Path], seconds: float = 120) -> str:
    """Run a compiler; its first complaint, or nothing if it has none."""
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {seconds:g} s"
    except OSError as error:
        return str(error)
    if not done.returncode:
        return ""
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"status {done.returncode}"])[0]
