"""Run OpenCL kernels on the host, compiled as C++ against ``opencl_host.h``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from amos.ir import dtype
from amos.ir.floats import pack, quantize, unpack
from amos.opencl.codegen import KernelText
from amos.opencl.plan import TYPES, OpenClPlan

_HERE = Path(__file__).parent
#: ``a * b + c`` of integers in floats is exact with one rounding or two.
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-w",
    "-ffp-contract=off",
    "-fsanitize=undefined,bounds",
    f"-I{_HERE}",
)


def run_kernels(
    plans: Sequence[OpenClPlan], inputs: Sequence[Mapping[str, np.ndarray]], folder: Path
) -> list[tuple[tuple[np.ndarray, ...], ...]]:
    """Results of each plan, in two orders of work-items; the kernels are compiled together."""
    tool = shutil.which("g++")
    if tool is None:
        pytest.skip("kernels run on the host with g++, which is not here")
    text, binary = folder / "kernels.cpp", folder / "kernels"
    text.write_text(_program(plans), encoding="utf-8")
    subprocess.run([tool, *_FLAGS, text, "-o", binary], check=True)
    data = b"".join(
        np.asarray(pack(quantize(values[name], kind), kind)).tobytes()
        for plan, values in zip(plans, inputs, strict=True)
        for name, kind in _inputs(plan).items()
    )
    runs = [_run(plans, [str(binary), order], data) for order in ("0", "1")]
    return [tuple(both) for both in zip(*runs, strict=True)]


def _inputs(plan: OpenClPlan) -> dict[str, str]:
    return {x.name: plan.arguments[x.name] for x in plan.mapping.operator.inputs}


def _run(
    plans: Sequence[OpenClPlan], command: list[str], data: bytes
) -> list[tuple[np.ndarray, ...]]:
    done = subprocess.run(command, input=data, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    results, place = [], 0
    for plan in plans:
        arrays = []
        for tensor in plan.results:
            size = tensor.elements * dtype(str(tensor.dtype)).bits // 8
            piece = np.frombuffer(done.stdout, np.uint8, size, place)
            arrays.append(unpack(piece, str(tensor.dtype), tensor.shape))
            place += size
        results.append(tuple(arrays))
    return results


def _program(plans: Sequence[OpenClPlan]) -> str:
    kernels, calls = [], []
    for number, plan in enumerate(plans):
        source = KernelText(plan, "kernel_under_test").source.replace("(__local ", "(")
        kernels.append(f"namespace k{number} {{\n{source}}}\n")
        names = {x.name: x.elements for x in (*plan.mapping.operator.inputs, *plan.results)}
        arguments, lines = [], []
        for n, (name, kind) in enumerate(plan.arguments.items()):
            lines.append(f"std::vector<{TYPES[kind]}> t{n}({names[name]}, {TYPES[kind]}(-7));")
            arguments.append(f"t{n}.data()")
            if name in _inputs(plan):
                lines.append(f"read(t{n});")
        launch = f"k{number}::kernel_under_test({', '.join(arguments)});"
        lines.append(f"host::launch({plan.groups}, {plan.items}, down, [&] {{ {launch} }});")
        lines += [f"write(t{n});" for n in range(len(_inputs(plan)), len(arguments))]
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
