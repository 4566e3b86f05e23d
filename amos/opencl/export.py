"""``--format opencl``: a kernel for OpenCL devices, its launch, and what loads it.

``kernel.cl`` is OpenCL C, ``launch.json`` says how to start it, ``load.py`` does so from Python
with pyopencl, and ``load.h`` from C. ``test.c`` runs it on ``inputs`` and compares the results
with ``expected``, which NumPy computed; ``load.py`` does the same for chains.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from amos.chains.measuring import chain_tolerance
from amos.codegen.naming import spell
from amos.errors import ExportError
from amos.export.request import Request
from amos.export.standalone import standalone_text
from amos.ir import Chain, Operator
from amos.ir.floats import pack, quantize
from amos.measure.reference import References, tolerance
from amos.opencl.chains.candidate import ParallelCandidate
from amos.opencl.codegen.kernel import KernelText, launch_of
from amos.opencl.codegen.parallel import ParallelKernel
from amos.opencl.codegen.text import GLOBALS, OWN
from amos.opencl.plan import TYPES, OpenClPlan
from amos.opencl.runtime import loader
from amos.runtime import values
from amos.runtime.values import inputs_of, size_of

#: C of the elements that results are compared as.
_C_TYPES = {kind: f"cl_{name}" for kind, name in TYPES.items()}
#: Functions of a test in C that widen bits of an element.
_WIDENING = {
    "float16": """
static double from_float16(cl_ushort bits) {
  const int exponent = bits >> 10 & 31, digits = (bits & 1023) + (exponent ? 1024 : 0);
  return ldexp(bits >> 15 ? -digits : digits, (exponent ? exponent : 1) - 25);
}
""",
    "bfloat16": """
static double from_bfloat16(cl_ushort bits) {
  const union { cl_uint bits; cl_float value; } wide = {(cl_uint)bits << 16};
  return wide.value;
}
""",
}


@dataclass(frozen=True)
class _Kernel:
    """OpenCL C, contents of ``launch.json``, and identifiers in C of arguments, in order."""

    source: str
    launch: dict[str, Any]
    names: list[str]

    @property
    def functions(self) -> dict[str, dict[str, Any]]:
        """Launches by the identifier of their function, in order."""
        launch = self.launch
        named = {"start": launch.get("start"), "kernel": launch, "end": launch.get("end")}
        return {name: each for name, each in named.items() if each}

    @property
    def sizes(self) -> list[int]:
        return [size_of(argument) for argument in self.launch["arguments"]]


def files(request: Request) -> dict[str, str | bytes]:
    """Return the files of an export by name; see :func:`amos.export.formats.formats`.

    Raises:
        ExportError: the candidate is not for an OpenCL device.
        BuildError: the device lacks something.
    """
    if GLOBALS.fullmatch(request.name):
        raise ExportError(f"name {request.name!r}: OpenCL C uses it itself; choose another")
    kernel, operator = _kernel(request), request.operator
    inputs, results = References().get(cast(Operator, operator))
    if isinstance(operator, Chain):
        allowed = [chain_tolerance(operator, each) for each in results]
        kernel.launch["tolerance"] = allowed[0]
    else:
        allowed = [tolerance(operator, each, n) for n, each in enumerate(results)]
    contents: dict[str, str | bytes] = {
        "kernel.cl": kernel.source,
        "launch.json": json.dumps(kernel.launch, indent=2) + "\n",
        "load.py": standalone_text(loader),
        "values.py": standalone_text(values),
        "load.h": _header(kernel),
        "test.c": _test(kernel, allowed),
    }
    arguments = kernel.launch["arguments"]
    for argument in inputs_of(kernel.launch):
        name, kind = argument["name"], argument["dtype"]
        data = pack(quantize(inputs[name], kind), kind)
        contents[f"inputs/{name}.bin"] = np.asarray(data).tobytes()
    for argument, array in zip(arguments[-len(results) :], results, strict=True):
        bits = pack(array, argument["dtype"])
        contents[f"expected/{argument['name']}.bin"] = np.asarray(bits).tobytes()
    return contents


def _kernel(request: Request) -> _Kernel:
    machine, candidate = request.described, request.candidate
    if isinstance(candidate, ParallelCandidate):
        parallel = ParallelKernel(candidate, request.name, machine)
        names: list[str] = []
        for tensor in (*candidate.chain.inputs, candidate.chain.result):
            names.append(spell(tensor.name, OWN, names))
        return _Kernel(parallel.source, parallel.launch, names)
    if machine is None or machine.opencl is None:
        raise ExportError(
            "format opencl: expected the record of a kernel for an OpenCL device such as pocl, got "
            f"one for {request.machine if machine is None else machine.name}"
        )
    plan = OpenClPlan.of(request.alone.mapping, request.alone.schedule, machine)
    text = KernelText(plan, request.name)
    named = [text.names.tensors[name] for name in plan.arguments]
    return _Kernel(text.source, launch_of(plan, request.name), named)


def _header(kernel: _Kernel) -> str:
    set_arguments = "\n".join(
        f"  if (!status) status = clSetKernelArg({function}, {number}, sizeof(cl_mem), &{name});"
        for function in kernel.functions
        for number, name in enumerate(kernel.names)
    )
    described = zip(kernel.launch["arguments"], kernel.names, kernel.sizes, strict=True)
    cleared = "".join(
        f"  if (!status) status = clEnqueueFillBuffer(queue, {name}, &zero, 1, 0, {size}, 0, NULL, "
        "NULL);\n"
        for argument, name, size in described
        if argument["zeroed"]
    )
    clear = f"  const cl_uchar zero = 0;\n{cleared}" if cleared else ""
    launch, sizes, calls, last = kernel.launch, [], [], [*kernel.functions][-1]
    for function, own in kernel.functions.items():
        items = "items" if own is launch else f"{function}_items"
        sizes.append(f"{items} = {own['global_size']}")
        group = "&group" if own is launch else "NULL"
        calls.append(
            f"  if (!status)\n    status = clEnqueueNDRangeKernel(queue, {function}, 1, NULL, "
            f"&{items}, {group}, 0, NULL, {'done' if function == last else 'NULL'});\n"
        )
    functions = ", ".join(f"cl_kernel {function}" for function in kernel.functions)
    named = ", ".join(each["kernel"] for each in kernel.functions.values())
    return f"""// Enqueues {named} of kernel.cl; queues are in order.
#pragma once
#include <CL/cl.h>

// Buffers hold row-major tensors. `done` may be NULL.
static cl_int enqueue_{launch["kernel"]}(cl_command_queue queue, {functions},
    {", ".join(f"cl_mem {name}" for name in kernel.names)}, cl_event *done) {{
  const size_t {", ".join(sizes)}, group = {launch["local_size"]};
  cl_int status = CL_SUCCESS;
{set_arguments}
{clear}{"".join(calls)}  return status;
}}
"""


def _test(kernel: _Kernel, allowed: list[float]) -> str:
    inputs, arguments = inputs_of(kernel.launch), kernel.launch["arguments"]
    buffers, compared = [], []
    for number, (argument, size) in enumerate(zip(arguments, kernel.sizes, strict=True)):
        # Elements that a kernel leaves as they are have to be zero as in the expected ones.
        source = f"calloc({size}, 1)" if argument.get("kept") else "NULL"
        if argument in inputs:
            source = f'read_file("inputs/{argument["name"]}.bin", {size})'
        buffers.append(f"  buffers[{number}] = make_buffer(context, {size}, {source});")
    outputs = list(zip(arguments, kernel.sizes, strict=True))[len(inputs) :]
    for number, ((argument, size), off) in enumerate(zip(outputs, allowed, strict=True)):
        kind = _C_TYPES[argument["dtype"]]
        wide = f"from_{argument['dtype']}" if argument["dtype"] in _WIDENING else "(double)"
        compared.append(f"""  {{
    {kind} *got = malloc({size}), *right = read_file("expected/{argument["name"]}.bin", {size});
    cl_mem buffer = buffers[{number + len(inputs)}];
    check(clEnqueueReadBuffer(queue, buffer, CL_TRUE, 0, {size}, got, 0, NULL, NULL));
    for (size_t i = 0; i < {prod(argument["shape"])}; ++i) {{
      const double off = fabs({wide}(got[i]) - {wide}(right[i]));
      if (!(off <= {off!r})) ++wrong;
    }}
  }}""")
    passed = ", ".join(f"buffers[{number}]" for number in range(len(arguments)))
    return _TEST.format(
        name=kernel.launch["kernel"],
        widening="".join(
            _WIDENING[kind]
            for kind in sorted({argument["dtype"] for argument, _ in outputs} & _WIDENING.keys())
        ),
        count=len(arguments),
        buffers="\n".join(buffers),
        compared="\n".join(compared),
        passed=passed,
        functions=", ".join(kernel.functions),
        created="\n".join(
            f'  cl_kernel {name} = clCreateKernel(program, "{each["kernel"]}", &status);\n'
            "  check(status);"
            for name, each in kernel.functions.items()
        ),
    )


_TEST = """// Runs {name} on the first OpenCL device, and compares it with NumPy's results:
// cc test.c -lOpenCL -lm -o test && ./test
#define CL_TARGET_OPENCL_VERSION 120
#include "load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

{widening}
static void check(cl_int status) {{
  if (!status) return;
  fprintf(stderr, "OpenCL error %d\\n", (int)status);
  exit(2);
}}

static void *read_file(const char *path, size_t bytes) {{
  FILE *file = fopen(path, "rb");
  char *data = malloc(bytes + 1);
  if (!file || !data || fread(data, 1, bytes, file) != bytes) {{
    fprintf(stderr, "%s: expected %zu bytes\\n", path, bytes);
    exit(2);
  }}
  fclose(file);
  data[bytes] = 0;
  return data;
}}

static size_t size_of_file(const char *path) {{
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) exit(2);
  const long size = ftell(file);
  fclose(file);
  return (size_t)size;
}}

static cl_mem make_buffer(cl_context context, size_t bytes, void *data) {{
  cl_int status;
  const cl_mem_flags flags = CL_MEM_READ_WRITE | (data ? CL_MEM_COPY_HOST_PTR : 0);
  cl_mem buffer = clCreateBuffer(context, flags, bytes, data, &status);
  check(status);
  free(data);
  return buffer;
}}

int main(void) {{
  cl_platform_id platform;
  cl_device_id device;
  cl_int status;
  size_t wrong = 0;
  cl_mem buffers[{count}];
  check(clGetPlatformIDs(1, &platform, NULL));
  check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
  cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
  check(status);
  cl_command_queue queue = clCreateCommandQueue(context, device, 0, &status);
  check(status);
  const char *text = read_file("kernel.cl", size_of_file("kernel.cl"));
  cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &status);
  check(status);
  cl_device_fp_config able = 0;
  check(clGetDeviceInfo(device, CL_DEVICE_SINGLE_FP_CONFIG, sizeof able, &able, NULL));
  const char *rounded = able & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT
      ? "-cl-fp32-correctly-rounded-divide-sqrt" : "";
  check(clBuildProgram(program, 1, &device, rounded, NULL, NULL));
{created}
{buffers}
  check(enqueue_{name}(queue, {functions}, {passed}, NULL));
  check(clFinish(queue));
{compared}
  printf("{name}: %s\\n", wrong ? "WRONG" : "right");
  return wrong ? 1 : 0;
}}
"""
