"""Measuring candidates: the interface of executors, and the executor of this machine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from amos._closing import Closing
from amos.errors import MeasureError
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.machine.identity import Identity, identify_host
from amos.measure.host import host_machine
from amos.measure.runner import DEFAULT_TIMEOUT, Runner, default_memory
from amos.measure.task import Place, Task
from amos.plan.target import ExecutorRequest
from amos.records import Measurement

#: Beginnings of addresses of Dask schedulers.
DASK_SCHEMES = ("tcp://", "tls://", "inproc://")


class Executor(Closing):
    """Builds, checks and times candidates, on machines of one kind.

    Attributes:
        exact: whether a measurement always says the same, so that one is enough.
    """

    exact: bool = False

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """The kind of machine that measures."""

    @property
    def memory(self) -> int:
        """Bytes that a candidate may have, with its inputs and the reference; 0 for no limit."""
        return 0

    @abstractmethod
    def machine(
        self,
        intrinsics: Sequence[Intrinsic],
        *,
        again: bool = False,
        implementation: str | None = None,
    ) -> Machine:
        """Describe that machine for the model.

        Args:
            intrinsics: those whose rate must be known.
            again: measure their rates once more.
            implementation: which one of theirs, as in :class:`Task`.

        Raises:
            MeasureError: it could not be measured.
        """

    @abstractmethod
    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        """Measure numbered tasks, which are drawn as they are started.

        Results come in the order in which they are known; failures of candidates
        are results. No core is timed by two tasks at once.

        Raises:
            MeasureError: there is nothing left to measure with.
        """


class LocalExecutor(Executor):
    """One worker process on this machine; see :class:`amos.measure.Runner` for its limits."""

    def __init__(self, timeout: float = DEFAULT_TIMEOUT, memory: int | None = None) -> None:
        self.runner = Runner(timeout, memory)

    def close(self) -> None:
        """End the worker."""
        self.runner.close()

    @property
    def identity(self) -> Identity:
        """This machine."""
        return identify_host()

    @property
    def memory(self) -> int:
        """Bytes that its worker may allocate."""
        return self.runner.memory

    def machine(
        self,
        intrinsics: Sequence[Intrinsic],
        *,
        again: bool = False,
        implementation: str | None = None,
    ) -> Machine:
        """Describe this machine as the model sees it."""
        return host_machine(
            intrinsics, runner=self.runner, again=again, implementation=implementation
        )

    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        """Measure tasks one at a time."""
        for number, task in tasks:
            yield number, self.runner.measure(self.place(task))

    def place(self, task: Any) -> Any:
        """Return a task of one candidate, with where it runs."""
        return task


class DescribedExecutor(LocalExecutor):
    """One worker process on this machine that measures for a described one."""

    def __init__(
        self, machine: Machine, identity: Identity, timeout: float, memory: int | None
    ) -> None:
        super().__init__(timeout, memory)
        self._machine, self._identity = machine, identity

    @property
    def identity(self) -> Identity:
        """The executor, under the name of the description that its schedules belong to."""
        return self._identity

    def machine(
        self,
        intrinsics: Sequence[Intrinsic],
        *,
        again: bool = False,
        implementation: str | None = None,
    ) -> Machine:
        """Return the description, whose rates are not measured."""
        return self._machine


class DeviceExecutor(DescribedExecutor):
    """One worker process that measures for a described machine on a device of this one.

    Drivers reserve far more address space than a machine has memory, so that is not limited.

    Attributes:
        scheme: beginning of addresses of such devices.
    """

    scheme: ClassVar[str]

    def __init__(
        self, machine: Machine, identity: Identity, timeout: float, place: Place, cache_bytes: int
    ) -> None:
        super().__init__(machine, identity, timeout, memory=0)
        self._place, self._cache_bytes = place, cache_bytes

    @property
    def memory(self) -> int:
        """Bytes that this process may have: there is no limit of its own on a candidate."""
        return 2 * default_memory()

    def place(self, task: Any) -> Any:
        """Return a task on the device; ``flush`` overwrites at least twice its cache."""
        flush = max(task.flush, 2 * self._cache_bytes) if task.flush else 0
        return replace(task, flush=flush, place=self._place)

    @classmethod
    @abstractmethod
    def connect(cls, machine: Machine, words: str, timeout: float) -> Self:
        """Find the device of an address, whose words follow the scheme, or raise MeasureError."""

    @classmethod
    @abstractmethod
    def connect_fitting(cls, request: ExecutorRequest) -> Self | None:
        """Find a device of the described machine without an address, and say what was chosen."""

    @classmethod
    def open(cls, request: ExecutorRequest) -> Executor | None:
        """Open what a request addresses; see :meth:`amos.plan.target.Target.open_executor`."""
        address, machine = request.address, request.machine
        if isinstance(address, str) and address != "model":
            scheme, _, words = address.partition(":")
            if scheme != cls.scheme:
                raise MeasureError(
                    f"executor {address!r}: machine {machine.name!r} is a description; "
                    f"expected 'model' or {cls.scheme!r}"
                )
            return cls.connect(machine, words, request.timeout)
        if address is not None:
            return address if isinstance(address, cls) else None
        return cls.connect_fitting(request)


def open_executor(
    address: str | Executor | None,
    timeout: float = DEFAULT_TIMEOUT,
    memory: int | None = None,
    intrinsic: Intrinsic | None = None,
    implementation: str | None = None,
) -> Executor:
    """Open the executor of an address.

    Args:
        address: None or ``"local"`` for this machine, ``"tcp://HOST:PORT"`` for the
            scheduler of a Dask cluster, ``"rpc://HOST:PORT/KEY"`` for a board that
            TVM's RPC tracker knows, or an executor itself.

    Raises:
        MeasureError: the address is no address, the scheduler does not answer, or
            no worker is of use.
    """
    if address is None or address == "local":
        return LocalExecutor(timeout, memory)
    if not isinstance(address, str):
        return address
    if address.startswith("rpc://"):
        from amos.measure.rpc_executor import RpcExecutor

        return RpcExecutor(address, timeout, memory)
    if not address.startswith(DASK_SCHEMES):
        raise MeasureError(
            f"executor {address!r}: expected 'local', 'tcp://HOST:PORT' or 'rpc://HOST:PORT/KEY', "
            "or 'gpu' or 'model' with a described machine"
        )
    from amos.measure.dask_executor import DaskExecutor

    return DaskExecutor(
        address, timeout, memory, intrinsic=intrinsic, implementation=implementation
    )
