"""``--format cuda``: a kernel for Tensor Cores, its launch, and what loads it.

``kernel.cu`` is CUDA C++ that needs only the toolkit's headers, ``launch.json`` says
how to start it, ``load.py`` does so from Python with CuPy's or PyTorch's arrays, and
``load.hpp`` from C++. ``kernel.ptx`` is added where a CUDA compiler is installed, for
machines that have none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from amos.codegen.cuda.kernel import KernelText
from amos.codegen.cuda.program import BlockProgram, capability
from amos.codegen.cuda.scheduled import block_program
from amos.codegen.cuda.text import identifier
from amos.codegen.cuda.toolchain import compilers, portable_code
from amos.errors import ExportError
from amos.export.request import Request
from amos.ir import BufferLoad

__all__ = ["files", "launch_of"]

_LOADER = Path(__file__).with_name("cuda_loader.py")


def files(request: Request) -> dict[str, str | bytes]:
    """The files of an export by name; see :data:`amos.export.FORMATS`.

    Raises:
        ExportError: the candidate is not for a GPU.
        BuildError: the architecture lacks the instruction or the memory.
    """
    mapping = request.candidate.mapping
    needed = [r for r in mapping.intrinsic.requires if r.startswith("sm_")]
    if not needed:
        raise ExportError(
            f"format cuda: {mapping.intrinsic.name} is no intrinsic of a GPU's Tensor Cores"
        )
    architecture = request.architecture or max(needed, key=capability)
    program = block_program(mapping, request.candidate.schedule, architecture)
    text = KernelText(program, request.name)
    made: dict[str, str | bytes] = {
        "kernel.cu": text.source,
        "launch.json": json.dumps(launch_of(request, program), indent=2) + "\n",
        "load.py": _LOADER.read_text(encoding="utf-8"),
        "load.hpp": _header(program, text),
    }
    if any(architecture in compiler.architectures for compiler in compilers()):
        made["kernel.ptx"] = portable_code(text.source, architecture, request.name)
    return made


def launch_of(request: Request, program: BlockProgram) -> dict[str, Any]:
    """What ``launch.json`` says: the launch, the arguments, and the operator as data."""
    op = program.mapping.operator
    kinds = dict(zip([x.tensor.name for x in op.sources], _source_types(program), strict=True))
    arguments = [
        {"name": t.name, "dtype": kinds[t.name], "shape": list(t.shape), "role": "input"}
        | {"zeroed": False}
        for t in op.inputs
    ]
    out = op.output.tensor
    arguments.append(
        {
            "name": out.name,
            "dtype": program.mapping.intrinsic.dtypes[-1],
            "shape": list(out.shape),
            "role": "output",
            "zeroed": program.zeroed,
        }
    )
    return {
        "kernel": request.name,
        "architecture": program.architecture,
        "grid": list(program.grid),
        "block": [program.threads, 1, 1],
        "shared_bytes": program.shared_bytes,
        "dynamic_shared_bytes": program.shared_bytes if program.is_dynamic else 0,
        "arguments": arguments,
        "operations": op.operations,
        "intrinsic": program.mapping.intrinsic.name,
        "mapping": program.mapping.name,
        "schedule": request.candidate.schedule.as_dict(),
        "operator": {
            "name": op.name,
            "text": str(op.compute),
            "iterations": {it.name: it.extent for it in op.iterations},
            "operands": [_operand(load) for load in op.operands],
        },
    }


def _source_types(program: BlockProgram) -> list[str]:
    by_tensor = {s.load.tensor.name: s.dtype for s in program.sources}
    return [by_tensor[load.tensor.name] for load in program.mapping.operator.sources]


def _operand(load: BufferLoad) -> dict[str, Any]:
    return {
        "tensor": load.tensor.name,
        "shape": list(load.tensor.shape),
        "indices": [
            {"terms": dict(index.terms), "constant": index.constant} for index in load.indices
        ],
    }


def _header(program: BlockProgram, text: KernelText) -> str:
    op = program.mapping.operator
    names = [identifier(t.name) for t in (*op.inputs, op.output.tensor)]
    dynamic = program.shared_bytes if program.is_dynamic else 0
    opt_in = f"""  cudaError_t allowed = cudaFuncSetAttribute(
      {text.name}, cudaFuncAttributeMaxDynamicSharedMemorySize, {dynamic});
  if (allowed != cudaSuccess) return allowed;
"""
    size = op.output.tensor.elements * program.result.bytes
    clear = f"""  cudaError_t cleared = cudaMemsetAsync({names[-1]}, 0, {size}, stream);
  if (cleared != cudaSuccess) return cleared;
"""
    launch = f"dim3({', '.join(map(str, program.grid))}), dim3({program.threads}), {dynamic}"
    call = f"{text.name}<<<{launch}, stream>>>({', '.join(names)});"
    return f"""// Launches {text.name} of kernel.cu.
// Compile with nvcc for {program.architecture} or later.
#pragma once
#include <cuda_runtime.h>

#include "kernel.cu"

// Tensors are on the GPU, row-major, at multiples of 16 bytes.
inline cudaError_t launch_{text.name}({text.parameters},
    cudaStream_t stream = 0) {{
{opt_in if dynamic else ""}{clear if program.zeroed else ""}  {call}
  return cudaGetLastError();
}}
"""
