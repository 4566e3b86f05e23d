"""A stream as files: its instructions, its buffers, and the place of each tensor in DRAM.

``stream.txt`` lists instructions by queue, ``stream.json`` has their fields; of VTA ``stream.bin``
holds them, 16 bytes each.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from amos.ir import dtype
from amos.streams.codegen.calls import Calls
from amos.streams.codegen.instructions import Instruction, Stream
from amos.streams.vta.encoding import fields_of

if TYPE_CHECKING:
    from amos.streams.runtime.kernel import StreamKernel


def list_files(kernel: StreamKernel, name: str) -> dict[str, str | bytes]:
    """List the files of a stream that was simulated, by name."""
    contents: dict[str, str | bytes] = {
        "stream.json": json.dumps(_describe(kernel, name), indent=1) + "\n",
        "stream.txt": f"{kernel.stream}\n",
    }
    if kernel.encoding is not None:
        contents["stream.bin"] = kernel.binary
    return contents


def _describe(kernel: StreamKernel, name: str) -> dict[str, Any]:
    assert kernel.last is not None
    mapping, stream, unit = kernel.plan.mapping, kernel.stream, kernel.plan.machine.stream
    description: dict[str, Any] = {
        "name": name,
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
    """Describe an instruction without an encoding by the names of its attributes."""
    values = {each.name: getattr(instruction, each.name) for each in fields(instruction)}
    if isinstance(instruction, Calls):
        values["loops"] = [step._asdict() for step in instruction.loops]
        del values["intrinsic"]
    return {"opcode": type(instruction).__name__.lower(), **values}


def _tensors(stream: Stream, output: str) -> list[dict[str, Any]]:
    """Describe the tensors in DRAM, one of them the output; addresses in bytes."""
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
