"""``--format stream``: the instructions of a unit with queues, with data to run them on.

Its files are those of :mod:`amos.streams.runtime.listing`; ``--format vta`` expects VTA's
encoding. ``inputs`` has what DRAM holds before, random tensors and micro-operations, ``expected``
what it holds afterwards.
"""

from __future__ import annotations

import numpy as np

from amos.errors import ExportError
from amos.export.request import Request
from amos.measure.reference import References, compare_arrays
from amos.streams.runtime import StreamKernel


def vta_files(request: Request) -> dict[str, str | bytes]:
    """Return the files of an export for VTA alone; see :func:`files`."""
    return files(request, encoding="vta")


def files(request: Request, encoding: str = "") -> dict[str, str | bytes]:
    """Return the files of a kernel's stream, contents by name.

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
    kernel = StreamKernel(request.alone, machine)
    inputs, (expected,) = References().get(request.alone.mapping.operator)
    before = kernel.prepare(inputs)
    kernel.run(before)
    if compare_arrays(kernel.result(before), expected) != (0, 0):
        raise ExportError(f"{request.name}: the stream does not compute what NumPy does")
    assert kernel.last is not None
    output = kernel.plan.regions[kernel.plan.destination.name]
    contents: dict[str, str | bytes] = {
        **kernel.files(request.name),
        f"expected/{output}.bin": kernel.last.dram[output].tobytes(),
    }
    before |= kernel.micro_operations
    return contents | {f"inputs/{name}.bin": np.asarray(x).tobytes() for name, x in before.items()}
