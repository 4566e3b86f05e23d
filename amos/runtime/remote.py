"""Running a kernel on a board that TVM's RPC tracker knows."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from amos._toolchain import load_tvm, tvm
from amos.codegen.scheduling import last_line
from amos.errors import MeasureError
from amos.runtime.compiling import time_runs
from amos.runtime.kernel import Kernel

#: Seconds after which a board gives a session up.
_PATIENCE = 60


def split_address(address: str) -> tuple[str, int, str]:
    """Split ``rpc://HOST:PORT/KEY`` into host, port and key, or raise MeasureError."""
    location, _, key = address.removeprefix("rpc://").partition("/")
    host, _, port = location.rpartition(":")
    if not (host and port.isdigit() and key):
        raise MeasureError(f"executor {address!r}: expected 'rpc://HOST:PORT/KEY'")
    return host, int(port), key


class RemoteKernel:
    """A kernel that was compiled here and uploaded to a board of the same architecture.

    Args:
        kernel: the compiled kernel.
        address: ``"rpc://HOST:PORT/KEY"`` of the tracker and the board.

    Raises:
        MeasureError: the tracker does not answer, or has no such board.
    """

    def __init__(self, kernel: Kernel, address: str) -> None:
        load_tvm()
        from tvm import rpc

        host, port, key = split_address(address)
        self._kernel = kernel
        try:
            tracker = rpc.connect_tracker(host, port)
            self._session = tracker.request(key, session_timeout=_PATIENCE, max_retry=1)
        except (RuntimeError, OSError, ValueError) as error:
            raise MeasureError(f"executor {address}: {last_line(error)}") from error
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "kernel.so")
            kernel.export(str(path))
            self._session.upload(str(path))
        self._module = self._session.load_module(path.name)

    def prepare(self, inputs: Mapping[str, np.ndarray]) -> list[Any]:
        """Make arrays on the board for one call: sources, then the output."""
        device = self._session.cpu(0)
        return [tvm.runtime.tensor(a.numpy(), device) for a in self._kernel.prepare(inputs)]

    def run(self, arguments: list[Any]) -> None:
        """Run once on arrays made by :meth:`prepare`."""
        self._module["main"](*arguments)

    def result(self, arguments: list[Any]) -> Any:
        """Return the results of such a run."""
        return self._kernel.result(arguments)

    def times(
        self, inputs: Mapping[str, np.ndarray], repeat: int = 10, flush: int = 0
    ) -> tuple[float, ...]:
        """Measure the seconds of one run by the board's own clock; see :meth:`Kernel.times`."""
        arguments = self.prepare(inputs)
        return time_runs(self._module, self._session.cpu(0), arguments, repeat, flush)

    @property
    def implementation(self) -> str:
        """``"native"`` or ``"generic"``."""
        return self._kernel.implementation
