"""Run OpenCL kernels on the host, compiled as C++ against ``opencl_host.h``."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from amos.codegen.device.reductions import count_elements
from amos.ir import Tensor, dtype
from amos.ir.floats import pack, quantize, unpack
from amos.opencl.codegen import KernelText
from amos.opencl.plan import TYPES, OpenClPlan

_HERE = Path(__file__).parent
#: ``a * b + c`` of integers in floats is exact with one rounding or two. Reads beyond an array and
#: vectors that are less aligned than their type end the program.
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-w",
    "-ffp-contract=off",
    "-fsanitize=undefined,bounds",
    "-fno-sanitize-recover=all",
    f"-I{_HERE}",
)


@dataclass(frozen=True)
class HostKernel:
    """A kernel and its launch.

    Attributes:
        source: of the function ``kernel_under_test``, and of those before and behind.
        inputs: tensors that it reads, in the order of its parameters.
        results: tensors that it writes, which are the last parameters.
        groups: of the launch.
        items: of a group.
        start_items: of the function that is launched before; 0 without one.
        end_items: of the one that is launched behind; 0 without one.
    """

    source: str
    inputs: Sequence[Tensor]
    results: Sequence[Tensor]
    groups: int
    items: int
    start_items: int = 0
    end_items: int = 0


def run_kernels(
    plans: Sequence[OpenClPlan], inputs: Sequence[Mapping[str, np.ndarray]], folder: Path
) -> list[tuple[tuple[np.ndarray, ...], ...]]:
    """Results of each plan, in two orders of work-items; the kernels are compiled together."""
    kernels = [
        HostKernel(
            KernelText(plan, "kernel_under_test").source,
            plan.mapping.operator.inputs,
            plan.results,
            plan.groups,
            plan.items,
            count_elements(plan.mapping.operator),
            count_elements(plan.mapping.operator, ends=True),
        )
        for plan in plans
    ]
    return run_on_host(kernels, inputs, folder)


def run_on_host(
    kernels: Sequence[HostKernel], inputs: Sequence[Mapping[str, np.ndarray]], folder: Path
) -> list[tuple[tuple[np.ndarray, ...], ...]]:
    """Results of each kernel, in two orders of work-items; the kernels are compiled together."""
    tool = shutil.which("g++")
    if tool is None:
        pytest.skip("kernels run on the host with g++, which is not here")
    text, binary = folder / "kernels.cpp", folder / "kernels"
    text.write_text(_program(kernels), encoding="utf-8")
    subprocess.run([tool, *_FLAGS, text, "-o", binary], check=True)
    data = b"".join(
        np.asarray(pack(quantize(values[x.name], str(x.dtype)), str(x.dtype))).tobytes()
        for kernel, values in zip(kernels, inputs, strict=True)
        for x in kernel.inputs
    )
    runs = [_run(kernels, [str(binary), order], data) for order in ("0", "1")]
    return [tuple(both) for both in zip(*runs, strict=True)]


def _run(
    kernels: Sequence[HostKernel], command: list[str], data: bytes
) -> list[tuple[np.ndarray, ...]]:
    done = subprocess.run(command, input=data, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    results, place = [], 0
    for kernel in kernels:
        arrays = []
        for tensor in kernel.results:
            size = tensor.elements * dtype(str(tensor.dtype)).bits // 8
            piece = np.frombuffer(done.stdout, np.uint8, size, place)
            arrays.append(unpack(piece, str(tensor.dtype), tensor.shape))
            place += size
        results.append(tuple(arrays))
    return results


def _program(tested: Sequence[HostKernel]) -> str:
    kernels, calls = [], []
    for number, kernel in enumerate(tested):
        source = kernel.source.replace("(__local ", "(")
        # C++ packs no member with a constructor.
        source = re.sub(r"{ (\w+) at; }", r"{ Place<\1> at; }", source)
        kernels.append(f"namespace k{number} {{\n{source}}}\n")
        tensors, lines = (*kernel.inputs, *kernel.results), []
        for n, tensor in enumerate(tensors):
            kind = TYPES[dtype(str(tensor.dtype)).name]
            lines.append(f"std::vector<{kind}> t{n}({tensor.elements}, {kind}(-7));")
            lines += [f"read(t{n});"] if n < len(kernel.inputs) else []
        arguments = ", ".join(f"t{n}.data()" for n in range(len(tensors)))
        for name, groups, items in (
            ("_start", kernel.start_items, 1),
            ("", kernel.groups, kernel.items),
            ("_end", kernel.end_items, 1),
        ):
            run = f"k{number}::kernel_under_test{name}({arguments});"
            launch = f"host::launch({groups}, {items}, down, [&] {{ {run} }});"
            lines += [launch] if groups else []
        lines += [f"write(t{n});" for n in range(len(kernel.inputs), len(tensors))]
        calls.append("{ " + "\n".join(lines) + " }")
    return f"""#include "opencl_host.h"
template <typename T> void read(std::vector<T> &x) {{
  if (std::fread(x.data(), sizeof(T), x.size(), stdin) != x.size()) std::exit(8);
}}
template <typename T> void write(const std::vector<T> &x) {{
  std::fwrite(x.data(), sizeof(T), x.size(), stdout);
}}
{"".join(kernels)}
int main(int, char **order) {{
  const bool down = order[1][0] == '1';
  {"".join(calls)}
}}
"""
