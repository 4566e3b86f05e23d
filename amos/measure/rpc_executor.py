"""Measuring on a board behind TVM's RPC tracker.

Candidates are compiled here, in the guarded worker, and run there. The board has
to be of the architecture of this CPU: kernels are compiled for it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from amos.errors import MeasureError
from amos.machine.identity import Identity, identify_host
from amos.measure.executor import LocalExecutor
from amos.measure.task import Task
from amos.records import Measurement
from amos.runtime.remote import split_address

#: Seconds to wait for a tracker.
_CONNECT = 5.0


class RpcExecutor(LocalExecutor):
    """One board at a time of those with one key; this machine's figures stand in for it.

    Args:
        address: ``"rpc://HOST:PORT/KEY"`` of the tracker and the kind of board.

    Raises:
        MeasureError: the address is not of that form, or no tracker answers there.
    """

    def __init__(self, address: str, timeout: float, memory: int | None = None) -> None:
        host, port, self._key = split_address(address)
        try:
            # TVM would retry for too long.
            socket.create_connection((host, port), _CONNECT).close()
        except (OSError, OverflowError) as error:
            raise MeasureError(f"executor {address}: the tracker does not answer") from error
        super().__init__(timeout, memory)
        self._address = address

    @property
    def identity(self) -> Identity:
        """The board by its key; the compiler is the one of this machine."""
        return replace(
            identify_host(), model=f"board {self._key} by way of {identify_host().model}"
        )

    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        """Measure tasks one at a time; without a tracker or board raise MeasureError."""
        for number, measurement in super().measure(tasks):
            if measurement.failure == "unreachable":
                raise MeasureError(measurement.message)
            yield number, measurement

    def place(self, task: Any) -> Any:
        """Return a task on the board."""
        return replace(task, board=self._address)
