"""What starting a kernel takes: the launch, its arguments, and the operator, as data."""

from __future__ import annotations

from typing import Any

from amos.codegen.cuda.program import BlockProgram
from amos.ir import BufferLoad
from amos.schedule import Schedule

__all__ = ["described_operand", "launch_of"]


def launch_of(program: BlockProgram, name: str, schedule: Schedule) -> dict[str, Any]:
    """What ``launch.json`` says.

    Args:
        program: the kernel.
        name: of its function.
        schedule: that the program was made from.
    """
    op = program.mapping.operator
    by_tensor = {s.load.tensor.name: s.dtype for s in program.sources}
    arguments = [
        {"name": t.name, "dtype": by_tensor[t.name], "shape": list(t.shape), "role": "input"}
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
        "kernel": name,
        "architecture": program.architecture,
        "grid": list(program.grid),
        "block": [program.threads, 1, 1],
        "shared_bytes": program.shared_bytes,
        "dynamic_shared_bytes": program.shared_bytes if program.is_dynamic else 0,
        "arguments": arguments,
        "operations": op.operations,
        "intrinsic": program.mapping.intrinsic.name,
        "mapping": program.mapping.name,
        "schedule": schedule.as_dict(),
        "operator": {
            "name": op.name,
            "text": str(op.compute),
            "iterations": {it.name: it.extent for it in op.iterations},
            "operands": [described_operand(load) for load in op.operands],
        },
    }


def described_operand(load: BufferLoad) -> dict[str, Any]:
    """An access of an operator as plain values."""
    return {
        "tensor": load.tensor.name,
        "shape": list(load.tensor.shape),
        "indices": [
            {"terms": dict(index.terms), "constant": index.constant} for index in load.indices
        ],
    }
