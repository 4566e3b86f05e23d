"""``--format stream``: the instructions of a unit with queues, with data to run them on.

``stream.txt`` lists them by queue, and ``stream.json`` has their fields and where each tensor
lies in DRAM; of VTA (``--format vta`` expects it) ``stream.bin`` holds them, 16 bytes each.
``inputs`` has what is there before, random tensors and micro-operations, ``expected`` what is
there behind it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from amos.errors import ExportError
from amos.export.request import Request
from amos.ir import dtype
from amos.measure.reference import References, compare_arrays
from amos.streams.codegen.calls import Calls
from amos.streams.codegen.instructions import Instruction, Stream
from amos.streams.plan import MICRO_OPS
from amos.streams.runtime import StreamKernel
from amos.streams.vta.encoding import fields_of


def vta_files(request: Request) -> dict[str, str | bytes]:
    """The files of an export of VTA alone; see :func:`files`."""
    return files(request, encoding="vta")


def files(request: Request, encoding: str = "") -> dict[str, str | bytes]:
    """The files of an export by name; see :func:`amos.export.formats.formats`.

    Args:
        request: a kernel for a machine with streams.
        encoding: that they have to have; empty for any.

    Raises:
        ExportError: the kernel is for no such machine, or does not compute what NumPy does.
        BuildError: it cannot be written as a stream.
        StreamError: the stream is not sound.
    """
    machine = request.described
    if machine is None or machine.stream is None or encoding not in ("", machine.stream.encoding):
        raise ExportError(
            f"format {encoding or 'stream'}: expected the record of a kernel for "
            f"{'vta_pynq' if encoding else 'a machine with streams'}, got one for "
            f"{request.machine if machine is None else machine.name}"
        )
    kernel = StreamKernel(request.candidate, machine)
    inputs, (expected,) = References().get(request.candidate.mapping.operator)
    before = kernel.prepare(inputs)
    kernel.run(before)
    if compare_arrays(kernel.result(before), expected) != (0, 0):
        raise ExportError(f"{request.name}: the stream does not compute what NumPy does")
    assert kernel.last is not None
    output = kernel.plan.regions[kernel.plan.destination.name]
    contents: dict[str, str | bytes] = {
        "stream.json": json.dumps(_describe(request, kernel), indent=1) + "\n",
        "stream.txt": f"{kernel.stream}\n",
        f"expected/{output}.bin": kernel.last.dram[output].tobytes(),
    }
    if kernel.encoding is not None:
        contents["stream.bin"] = kernel.binary
        uops = kernel.stream.constants[MICRO_OPS]
        before[MICRO_OPS] = kernel.encoding.micro_operations(uops)
    return contents | {f"inputs/{name}.bin": np.asarray(x).tobytes() for name, x in before.items()}


def _describe(request: Request, kernel: StreamKernel) -> dict[str, Any]:
    assert kernel.last is not None
    mapping, stream, unit = request.candidate.mapping, kernel.stream, kernel.plan.machine.stream
    description: dict[str, Any] = {
        "name": request.name,
        "machine": kernel.plan.machine.name,
        "encoding": "" if unit is None else unit.encoding,
    }
    if kernel.encoding is not None:
        description["specification"] = "apache/tvm-vta include/vta/hw_spec.h"
        description["index_bits"] = asdict(kernel.encoding)
    else:
        # The meaning of a call; loops of its fragments in the order of memory.
        meaning = mapping.intrinsic.ordered
        description["call"] = {"compute": str(meaning.compute), "extents": dict(meaning.extents)}
    write = fields_of if kernel.encoding is not None else _fields
    return description | {
        "operator": str(mapping.operator),
        "mapping": mapping.name,
        "schedule": kernel.plan.schedule.as_dict(),
        "simulated_cycles": kernel.last.cycles,
        "buffers": [asdict(buffer) for buffer in stream.buffers],
        "tensors": _tensors(stream, kernel.plan.regions[kernel.plan.destination.name]),
        "instructions": [write(each) for each in stream.instructions],
    }


def _fields(instruction: Instruction) -> dict[str, Any]:
    """An instruction without an encoding by the names of its attributes."""
    values = {each.name: getattr(instruction, each.name) for each in fields(instruction)}
    if isinstance(instruction, Calls):
        values["loops"] = [step._asdict() for step in instruction.loops]
        del values["intrinsic"]
    return {"opcode": type(instruction).__name__.lower(), **values}


def _tensors(stream: Stream, output: str) -> list[dict[str, Any]]:
    """Tensors in DRAM, of which one is the output; addresses in bytes."""
    buffers = {buffer.name: buffer for buffer in stream.buffers}
    tensors = []
    for region in stream.regions:
        kind = buffers[region.buffer]
        packed = kind.name == "uop"
        tensors.append(
            {
                "name": region.name,
                "file": f"{'expected' if region.name == output else 'inputs'}/{region.name}.bin",
                "address": region.base * kind.bytes,
                "dtype": "uint32" if packed else dtype(kind.dtype).name,
                "shape": [region.rows] if packed else [region.rows, *kind.shape],
            }
        )
    return tensors
