"""``--format opencl``: a kernel for OpenCL devices, its launch, and what loads it.

``kernel.cl`` is OpenCL C, ``launch.json`` says how to start it, ``load.py`` does so from Python
with pyopencl, and ``load.h`` from C. ``test.c`` runs it on ``inputs`` and compares the results
with ``expected``, which NumPy computed.
"""

from __future__ import annotations

import json

import numpy as np

from amos.codegen.device.launch import describe_arguments
from amos.errors import ExportError
from amos.export.request import Request
from amos.export.standalone import standalone
from amos.ir import dtype
from amos.ir.floats import pack, quantize
from amos.measure.reference import References, several, tolerance
from amos.opencl.codegen.kernel import KernelText
from amos.opencl.codegen.launch import launch_of
from amos.opencl.codegen.text import GLOBALS
from amos.opencl.plan import TYPES, OpenClPlan
from amos.opencl.runtime import loader
from amos.runtime import values

#: C of the elements that results are compared as.
_C_TYPES = {kind: name for kind, name in TYPES.items() if name[0] != "u"} | {
    "uint32": "unsigned int",
    "uint16": "unsigned short",
    "uint8": "unsigned char",
    "int8": "signed char",
}


def files(request: Request) -> dict[str, str | bytes]:
    """The files of an export by name; see :func:`amos.export.formats.formats`.

    Raises:
        ExportError: the candidate is not for an OpenCL device.
        BuildError: the device lacks something.
    """
    machine = request.described
    if machine is None or machine.opencl is None:
        raise ExportError(
            "format opencl: expected the record of a kernel for an OpenCL device such as pocl, got "
            f"one for {request.machine if machine is None else machine.name}"
        )
    if GLOBALS.fullmatch(request.name):
        raise ExportError(f"name {request.name!r}: OpenCL C uses it itself; choose another")
    operator = request.alone.mapping.operator
    plan = OpenClPlan.of(request.alone.mapping, request.alone.schedule, machine)
    text = KernelText(plan, request.name)
    inputs, expected = References().get(operator)
    results = several(expected)
    contents: dict[str, str | bytes] = {
        "kernel.cl": text.source,
        "launch.json": json.dumps(launch_of(plan, request.name), indent=2) + "\n",
        "load.py": standalone(loader),
        "values.py": standalone(values),
        "load.h": _header(plan, text),
        "test.c": _test(plan, text, [tolerance(operator, x, n) for n, x in enumerate(results)]),
    }
    for tensor in operator.inputs:
        kind = plan.arguments[tensor.name]
        data = pack(quantize(inputs[tensor.name], kind), kind)
        contents[f"inputs/{tensor.name}.bin"] = np.asarray(data).tobytes()
    for tensor, array in zip(plan.results, results, strict=True):
        numbers = np.asarray(array, dtype(str(tensor.dtype)).numpy)
        contents[f"expected/{tensor.name}.bin"] = numbers.tobytes()
    return contents


def _sizes(plan: OpenClPlan) -> dict[str, int]:
    """Bytes of each argument."""
    tensors = {tensor.name: tensor for tensor in (*plan.mapping.operator.inputs, *plan.results)}
    return {
        name: tensors[name].elements * dtype(kind).bits // 8
        for name, kind in plan.arguments.items()
    }


def _header(plan: OpenClPlan, text: KernelText) -> str:
    names = [text.names.tensors[name] for name in plan.arguments]
    sizes = _sizes(plan)
    set_arguments = "\n".join(
        f"  if (!status) status = clSetKernelArg(kernel, {number}, sizeof(cl_mem), &{name});"
        for number, name in enumerate(names)
    )
    first = names[len(plan.mapping.operator.inputs)]
    size = [*sizes.values()][len(plan.mapping.operator.inputs)]
    clear = (
        f"""  const cl_uchar zero = 0;
  if (!status) status = clEnqueueFillBuffer(queue, {first}, &zero, 1, 0, {size}, 0, NULL, NULL);
"""
        if plan.zeroed
        else ""
    )
    return f"""// Enqueues {text.name} of kernel.cl; queues are in order.
#pragma once
#include <CL/cl.h>

// Buffers hold row-major tensors. `done` may be NULL.
static cl_int enqueue_{text.name}(cl_command_queue queue, cl_kernel kernel,
    {", ".join(f"cl_mem {name}" for name in names)}, cl_event *done) {{
  const size_t items = {plan.groups * plan.items}, group = {plan.items};
  cl_int status = CL_SUCCESS;
{set_arguments}
{clear}  if (!status)
    status = clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, &group, 0, NULL, done);
  return status;
}}
"""


def _test(plan: OpenClPlan, text: KernelText, allowed: list[float]) -> str:
    sizes, operator = _sizes(plan), plan.mapping.operator
    inputs = [tensor.name for tensor in operator.inputs]
    buffers, compared = [], []
    # Elements that a kernel leaves as they are have to be zero as in the expected ones.
    preserved = {argument["name"] for argument in describe_arguments(plan) if argument.get("kept")}
    for number, (name, size) in enumerate(sizes.items()):
        source = f"calloc({size}, 1)" if name in preserved else "NULL"
        source = f'read_file("inputs/{name}.bin", {size})' if name in inputs else source
        buffers.append(f"  buffers[{number}] = make_buffer(context, {size}, {source});")
    for number, (tensor, off) in enumerate(zip(plan.results, allowed, strict=True), len(inputs)):
        size, kind = sizes[tensor.name], _C_TYPES[dtype(str(tensor.dtype)).name]
        compared.append(f"""  {{
    {kind} *got = malloc({size}), *right = read_file("expected/{tensor.name}.bin", {size});
    check(clEnqueueReadBuffer(queue, buffers[{number}], CL_TRUE, 0, {size}, got, 0, NULL, NULL));
    for (size_t i = 0; i < {tensor.elements}; ++i) {{
      const double off = fabs((double)got[i] - (double)right[i]);
      if (!(off <= {off!r})) ++wrong;
    }}
  }}""")
    passed = ", ".join(f"buffers[{number}]" for number in range(len(sizes)))
    return _TEST.format(
        name=text.name,
        count=len(sizes),
        buffers="\n".join(buffers),
        compared="\n".join(compared),
        passed=passed,
    )


_TEST = """// Runs {name} on the first OpenCL device, and compares it with NumPy's results:
// cc test.c -lOpenCL -lm -o test && ./test
#define CL_TARGET_OPENCL_VERSION 120
#include "load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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
  cl_kernel kernel = clCreateKernel(program, "{name}", &status);
  check(status);
{buffers}
  check(enqueue_{name}(queue, kernel, {passed}, NULL));
  check(clFinish(queue));
{compared}
  printf("{name}: %s\\n", wrong ? "WRONG" : "right");
  return wrong ? 1 : 0;
}}
"""
