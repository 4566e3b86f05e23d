"""OpenCL implementations on any device that pyopencl finds, in a process of its own."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from typing import Any

import numpy as np

from amos._processes import python
from amos.codegen.c.calls import parameters
from amos.intrinsics import Implementation, Intrinsic, implementations
from amos.ir.floats import pack, unpack
from amos.selfcheck.data import Fragments
from amos.selfcheck.report import Report

_TYPES = {
    "uint8": "uchar",
    "int8": "char",
    "uint16": "ushort",
    "int16": "short",
    "uint32": "uint",
    "int32": "int",
    "float16": "ushort",
    "float32": "float",
    "float64": "double",
}
_SECONDS = 60.0
#: A kernel that any device with a compiler can compile.
_EMPTY = "__kernel void nothing(__global int *x) { x[0] = 0; }"


def opencl_source(unit: Intrinsic, source: Implementation) -> str:
    """Write a kernel whose work-item i makes call i."""
    moved = "\n".join(
        f"{load.tensor.name} += get_global_id(0) * {load.tensor.elements};"
        for load in unit.operands
    )
    return (
        f"{source.headers}\n__kernel void calls({parameters(unit, _TYPES, '__global ')}) {{\n"
        f"{moved}\n{source.source}\n}}\n"
    )


def check_opencl(unit: Intrinsic, inputs: Fragments, report: Report) -> None:
    """Compile and run on every OpenCL device."""
    source = implementations(unit.name).get("opencl")
    if source is None:
        return
    if importlib.util.find_spec("pyopencl") is None:
        report.skipped.append("opencl: pyopencl is not installed (extra 'opencl')")
        return
    packed = [pack(inputs[load.tensor.name], str(load.tensor.dtype)) for load in unit.operands]
    calls = len(inputs[unit.destination.tensor.name])
    request = (opencl_source(unit, source), calls, packed, list(source.requires))
    for reply in _ask(request):
        label = f"opencl: {reply['device']}"
        if reply.get("skipped"):
            report.skipped.append(f"{label}: {reply['skipped']}")
        elif "problem" in reply:
            report.differ(f"{label}: {reply['problem']}")
        else:
            report.compiled_for.append(label)
            shape = inputs[unit.destination.tensor.name].shape
            report.judge(label, unit, inputs, unpack(reply["result"], unit.dtypes[-1], shape))


def _ask(request: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Let a process that may crash compile and run."""
    try:
        done = subprocess.run(
            python("amos.selfcheck.opencl"),
            input=pickle.dumps(request),
            capture_output=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return [{"device": "any", "problem": f"no answer within {_SECONDS:g} s"}]
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        return [{"device": "any", "problem": f"ended with {done.returncode}: {last[0]}"}]
    replies: list[dict[str, Any]] = pickle.loads(done.stdout)
    return replies


def _serve(request: tuple[str, int, list[np.ndarray], list[str]]) -> list[dict[str, Any]]:
    import pyopencl as cl

    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error as error:
        return [{"device": "any", "skipped": f"no OpenCL platform ({error})"}]
    if not devices:
        return [{"device": "any", "skipped": "there is no OpenCL device"}]
    return [_serve_device(cl, device, *request) for device in devices]


def _serve_device(
    cl: Any, device: Any, text: str, calls: int, packed: list[np.ndarray], requires: list[str]
) -> dict[str, Any]:
    name = f"{device.platform.name} {device.name}".strip()
    if missing := [r for r in requires if r not in device.extensions.split()]:
        return {"device": name, "skipped": f"lacks {', '.join(missing)}"}
    context = cl.Context([device])
    try:
        cl.Program(context, _EMPTY).build()
    except cl.Error as error:
        return {"device": name, "skipped": f"cannot compile an empty kernel: {_complaint(error)}"}
    try:
        queue = cl.CommandQueue(context)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffers = [cl.Buffer(context, flags, hostbuf=array) for array in packed]
        program = cl.Program(context, text).build()
        program.calls(queue, (calls,), None, *buffers)
        result = np.empty_like(packed[-1])
        cl.enqueue_copy(queue, result, buffers[-1])
        queue.finish()
    except cl.Error as error:
        return {"device": name, "problem": _complaint(error)}
    return {"device": name, "result": result}


def _complaint(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("error")), lines[0])


if __name__ == "__main__":
    answer = _serve(pickle.load(sys.stdin.buffer))
    sys.stdout.buffer.write(pickle.dumps(answer))
