"""``--format cuda``: a kernel for Tensor Cores, its launch, and what loads it.

``kernel.cu`` is CUDA C++ that needs only the toolkit's headers, ``launch.json`` says
how to start it, ``load.py`` does so from Python with CuPy's or PyTorch's arrays, and
``load.hpp`` from C++. ``kernel.ptx`` is added where a CUDA compiler is installed, for
machines that have none.
"""

from __future__ import annotations

import json

from amos.cuda.codegen.kernel import KernelText, launch_of
from amos.cuda.codegen.reductions import element_blocks
from amos.cuda.codegen.text import ELEMENT_THREADS, GLOBALS
from amos.cuda.codegen.toolchain import compilers, portable_code
from amos.cuda.plan import GpuPlan
from amos.cuda.runtime import driver, loader, timing
from amos.errors import ExportError
from amos.export.request import Request
from amos.export.standalone import standalone_text
from amos.ir import dtype
from amos.runtime import values

#: Files that an export has beside the kernel, and where their text is.
LOADER = {"load.py": loader, "driver.py": driver, "timing.py": timing, "values.py": values}


def files(request: Request) -> dict[str, str | bytes]:
    """Return the files of an export by name; see :func:`amos.export.formats.formats`.

    Raises:
        ExportError: the candidate is not for a GPU.
        BuildError: the architecture lacks the instruction or the memory.
    """
    mapping = request.alone.mapping
    needed = mapping.intrinsic.architecture
    if not needed:
        raise ExportError(
            f"format cuda: {mapping.intrinsic.name} is no intrinsic of a GPU's Tensor Cores"
        )
    if GLOBALS.fullmatch(request.name):
        raise ExportError(f"name {request.name!r}: CUDA kernels use it themselves; choose another")
    described = request.described
    newest = described.architecture if described is not None else 0
    architecture = request.architecture or f"sm_{newest or needed}"
    plan = GpuPlan.of(mapping, request.alone.schedule, architecture)
    text = KernelText(plan, request.name)
    contents: dict[str, str | bytes] = {
        "kernel.cu": text.source,
        "launch.json": json.dumps(launch_of(plan, request.name), indent=2) + "\n",
        "load.hpp": _header(plan, text),
    }
    contents |= {name: standalone_text(module) for name, module in LOADER.items()}
    if any(architecture in compiler.architectures for compiler in compilers()):
        contents["kernel.ptx"] = portable_code(text.source, architecture, request.name)
    return contents


def _header(plan: GpuPlan, text: KernelText) -> str:
    op = plan.mapping.operator
    names = [text.names.tensors[t.name] for t in (*op.inputs, *op.results)]
    dynamic = plan.dynamic_bytes
    opt_in = f"""  cudaError_t allowed = cudaFuncSetAttribute(
      {text.name}, cudaFuncAttributeMaxDynamicSharedMemorySize, {dynamic});
  if (allowed != cudaSuccess) return allowed;
"""
    size = op.result.elements * dtype(plan.stored_dtype).bits // 8
    clear = f"""  cudaError_t cleared = cudaMemsetAsync({names[len(op.inputs)]}, 0, {size}, stream);
  if (cleared != cudaSuccess) return cleared;
"""
    launch = f"dim3({', '.join(map(str, plan.grid))}), dim3({plan.threads}), {dynamic}"
    launches = {
        text.start: f"dim3({element_blocks(plan)}), dim3({ELEMENT_THREADS}), 0",
        text.name: launch,
        text.end: f"dim3({element_blocks(plan, ends=True)}), dim3({ELEMENT_THREADS}), 0",
    }
    call = "\n  ".join(
        f"{name}<<<{how}, stream>>>({', '.join(names)});" for name, how in launches.items() if name
    )
    return f"""// Launches {text.name} of kernel.cu.
// Compile with nvcc for {plan.architecture} or later.
#pragma once
#include <cuda_runtime.h>

#include "kernel.cu"

// Tensors are on the GPU, row-major, at multiples of 16 bytes.
inline cudaError_t launch_{text.name}({text.parameters},
    cudaStream_t stream = 0) {{
{opt_in if dynamic else ""}{clear if plan.zeroed else ""}  {call}
  return cudaGetLastError();
}}
"""
