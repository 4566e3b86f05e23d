"""Measuring on a board behind TVM's RPC tracker.

Candidates are compiled here, in the guarded worker, and run there. The board has
to be of the architecture of this CPU: kernels are compiled for it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from amos._closing import Closing
from amos.errors import MeasureError
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.machine.identity import Identity, here
from amos.measure.executor import Task
from amos.measure.host import host_machine
from amos.measure.runner import Runner, provided
from amos.records.measurement import Measurement

__all__ = ["RpcExecutor"]

#: Seconds to wait for a tracker.
_CONNECT = 5.0


class RpcExecutor(Closing):
    """One board at a time of those with one key.

    Args:
        address: ``"rpc://HOST:PORT/KEY"`` of the tracker and the kind of board.
        timeout: seconds that one candidate may take.
        memory: bytes that compiling it may allocate; see :class:`amos.measure.Runner`.

    Raises:
        MeasureError: the address is not of that form, or nobody answers there.
    """

    def __init__(self, address: str, timeout: float, memory: int | None = None) -> None:
        rest, _, self._key = address.removeprefix("rpc://").partition("/")
        host, _, port = rest.rpartition(":")
        if not (host and port.isdigit() and self._key):
            raise MeasureError(f"executor {address!r}: expected 'rpc://HOST:PORT/KEY'")
        try:
            # TVM would try again for longer than anybody wants to wait.
            socket.create_connection((host, int(port)), _CONNECT).close()
        except (OSError, OverflowError) as error:
            raise MeasureError(f"executor {address}: the tracker does not answer") from error
        self._address, self._runner = address, Runner(timeout, memory)

    def close(self) -> None:
        """End the worker."""
        self._runner.close()

    @property
    def identity(self) -> Identity:
        """The board by its key; the compiler is the one of this machine."""
        return replace(here(), model=f"board {self._key} by way of {here().model}")

    @property
    def memory(self) -> int:
        """Bytes that compiling and checking may take here; 0 for no limit."""
        return self._runner.memory

    def machine(
        self,
        intrinsics: Sequence[Intrinsic],
        *,
        again: bool = False,
        implementation: str | None = None,
    ) -> Machine:
        """This machine stands in for the board, whose figures nobody measures."""
        return host_machine(
            intrinsics, runner=self._runner, again=again, implementation=implementation
        )

    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        """One after the other.

        Raises:
            MeasureError: the tracker does not answer, or has no such board.
        """
        for number, task in tasks:
            reply = self._runner.request(
                {
                    "kind": "measure",
                    "candidate": task.candidate,
                    "repeat": task.repeat,
                    "implementation": task.implementation,
                    "flush": task.flush,
                    "board": self._address,
                    "provided": provided(task.candidate.mapping.intrinsic),
                },
                self._runner.limit(task.predicted),
            )
            if reply.get("failure") == "unreachable":
                raise MeasureError(reply["message"])
            yield number, Measurement.of(reply)
