"""``--format vta``: a stream of VTA's instructions, with data to run it on.

``stream.bin`` holds the instructions, 16 bytes each, ``stream.txt`` lists them by queue, and
``stream.json`` has their fields and where each tensor lies in DRAM. ``inputs`` has what is
there before, random tensors and micro-operations, ``expected`` what is there behind it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from amos.codegen.stream.instructions import Stream
from amos.codegen.vta.encoding import fields_of
from amos.errors import ExportError
from amos.export.request import Request
from amos.ir import dtype
from amos.machine import catalogue
from amos.measure.reference import References, compared
from amos.plan.stream_plan import MICRO_OPS
from amos.runtime.stream import StreamKernel


def files(request: Request) -> dict[str, str | bytes]:
    """The files of an export by name; see :data:`amos.export.FORMATS`.

    Raises:
        ExportError: the kernel is for no machine with streams, or does not compute what
            NumPy does.
        BuildError: it cannot be written as a stream.
        StreamError: the stream is not sound.
    """
    machine = catalogue.get(request.machine) if request.machine in catalogue.names() else None
    if machine is None or machine.stream is None or machine.stream.encoding != "vta":
        raise ExportError(
            f"format vta: expected a kernel for vta_pynq, got one for {request.machine}"
        )
    kernel = StreamKernel(request.candidate, machine)
    inputs, (expected,) = References().get(request.candidate.mapping.operator)
    before = kernel.prepare(inputs)
    kernel.run(before)
    if compared(kernel.result(before), expected) != (0, 0):
        raise ExportError(f"{request.name}: the stream does not compute what NumPy does")
    assert kernel.last is not None
    held = {
        **before,
        MICRO_OPS: kernel.encoding.micro_operations(kernel.stream.constants[MICRO_OPS]),
    }
    output = kernel.plan.regions[kernel.plan.destination.name]
    contents: dict[str, str | bytes] = {
        "stream.json": json.dumps(_described(request, kernel), indent=1) + "\n",
        "stream.bin": kernel.binary,
        "stream.txt": f"{kernel.stream}\n",
        f"expected/{output}.bin": kernel.last.dram[output].tobytes(),
    }
    return contents | {f"inputs/{name}.bin": np.asarray(x).tobytes() for name, x in held.items()}


def _described(request: Request, kernel: StreamKernel) -> dict[str, Any]:
    assert kernel.last is not None
    mapping, stream = request.candidate.mapping, kernel.stream
    return {
        "name": request.name,
        "machine": kernel.plan.machine.name,
        "specification": "apache/tvm-vta include/vta/hw_spec.h",
        "index_bits": asdict(kernel.encoding),
        "operator": str(mapping.operator),
        "mapping": mapping.name,
        "schedule": kernel.plan.schedule.as_dict(),
        "simulated_cycles": kernel.last.cycles,
        "buffers": [asdict(buffer) for buffer in stream.buffers],
        "tensors": _tensors(stream),
        "instructions": [fields_of(each) for each in stream.instructions],
    }


def _tensors(stream: Stream) -> list[dict[str, Any]]:
    """Tensors in DRAM; addresses in bytes."""
    buffers = {buffer.name: buffer for buffer in stream.buffers}
    tensors = []
    for region in stream.regions:
        kind = buffers[region.buffer]
        packed = kind.name == "uop"
        tensors.append(
            {
                "name": region.name,
                "file": f"{'expected' if kind.of else 'inputs'}/{region.name}.bin",
                "address": region.base * kind.bytes,
                "dtype": "uint32" if packed else dtype(kind.dtype).name,
                "shape": [region.rows] if packed else [region.rows, *kind.shape],
            }
        )
    return tensors
