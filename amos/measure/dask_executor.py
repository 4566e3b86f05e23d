"""Measuring on the workers of a Dask cluster.

Each Dask worker process keeps one :class:`amos.measure.Runner`, so that candidates
are as isolated there as here, and a candidate that crashes takes no worker of the
cluster with it. A measurement is pinned to a worker of the machine kind that the
run began with; each of them has one measurement at a time. The candidate of a lost
worker goes to another one of its kind.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from amos.errors import MeasureError
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.machine.identity import Identity, identify_host
from amos.measure.executor import DASK_SCHEMES, Executor
from amos.measure.host import host_machine
from amos.measure.runner import Runner
from amos.measure.task import Task
from amos.records import Measurement

_Item = TypeVar("_Item")
_T = TypeVar("_T")
#: Seconds to wait for a scheduler, and for a worker when all are gone.
_CONNECT, _REPLACEMENT = 10.0, 60.0
#: Seconds between two listings of the workers.
_POLL_SECONDS = 0.5
#: Workers that may be lost on a candidate before it counts as the cause.
_LOSSES = 2


class DaskExecutor(Executor):
    """Every worker of one kind of a Dask cluster.

    Args:
        address: of the scheduler, ``"tcp://HOST:PORT"``.
        intrinsic: the intrinsic that the workers must be able to execute.
        implementation: ``"generic"`` if any CPU will do.

    Raises:
        MeasureError: Dask is not installed, the scheduler does not answer, it has
            no worker, or none that has the instruction.
    """

    def __init__(
        self,
        address: str,
        timeout: float,
        memory: int | None = None,
        *,
        intrinsic: Intrinsic | None = None,
        implementation: str | None = None,
    ) -> None:
        self.address, self._limits = address, (timeout, memory)
        self._intrinsic, self._implementation = intrinsic, implementation
        #: Identity of each worker; None for one without the instruction.
        self._kinds: dict[str, Identity | None] = {}
        self._client = _connect(address)
        try:
            self._identity = self._choose()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the cluster as it was found."""
        with contextlib.suppress(Exception):
            self._client.run(_leave, on_error="ignore")
        with contextlib.suppress(Exception):
            self._client.close()

    @property
    def identity(self) -> Identity:
        """The kind of machine that measures."""
        return self._identity

    @property
    def memory(self) -> int:
        """The memory limit of a request; 0 if each worker has a limit of its own."""
        return self._limits[1] or 0

    def machine(
        self,
        intrinsics: Sequence[Intrinsic],
        *,
        again: bool = False,
        implementation: str | None = None,
    ) -> Machine:
        """Describe the machine of the first worker as the model sees it."""
        how = (list(intrinsics), again, implementation, self._limits)
        future = self._submit(min(self._wait_for_workers()), _describe_machine, *how)
        try:
            machine: Machine = future.result(timeout=600)
        except MeasureError:
            raise
        except Exception as error:  # whatever a cluster can come up with
            raise MeasureError(
                f"executor {self.address}: {type(error).__name__}: {error}"
            ) from error
        return machine

    def measure(self, tasks: Iterable[tuple[int, Task]]) -> Iterator[tuple[int, Measurement]]:
        """Measure one task at a time on each worker; yield results as they arrive.

        Raises:
            MeasureError: no worker of the kind is left.
        """
        source, returned = iter(tasks), list[tuple[int, Task]]()
        running: dict[str, tuple[int, Task, Any]] = {}
        losses = Counter[int]()
        try:
            while True:
                workers = self._workers() if running else self._wait_for_workers()
                for worker in sorted(workers - running.keys()):
                    item = returned.pop() if returned else next(source, None)
                    if item is None:
                        break
                    future = self._submit(worker, _measure_task, item[1], self._limits)
                    running[worker] = (*item, future)
                if not running:
                    return
                for worker, (number, task, future) in list(running.items()):
                    if future.status == "finished":
                        del running[worker]
                        yield number, future.result()
                    elif worker not in workers or future.status != "pending":
                        del running[worker]
                        _abandon(future)
                        losses[number] += 1
                        if losses[number] < _LOSSES:
                            returned.append((number, task))
                        else:
                            message = f"{losses[number]} workers were lost with it"
                            yield number, Measurement(failure="crash", message=message)
                _pause([future for _, _, future in running.values()])
        finally:
            for _, _, future in running.values():
                _abandon(future)

    def _choose(self) -> Identity:
        """Choose the most frequent kind among the workers that can execute the intrinsic."""
        self._look_at(self._addresses())
        if not self._kinds:
            raise MeasureError(f"executor {self.address}: the scheduler has no workers")
        suitable = Counter(kind for kind in self._kinds.values() if kind is not None)
        if not suitable:
            assert self._intrinsic is not None
            needed = ", ".join(self._intrinsic.requires)
            raise MeasureError(
                f"executor {self.address}: none of {len(self._kinds)} workers has {needed}, which "
                f"{self._intrinsic.name} needs; with the generic implementation any CPU will do"
            )
        return max(suitable, key=lambda kind: (suitable[kind], kind.key))

    def _look_at(self, addresses: set[str]) -> None:
        """Ask new workers for their identity."""
        fresh = sorted(addresses - self._kinds.keys())
        if not fresh:
            return
        answers = self._client.run(
            _introduce, self._intrinsic, self._implementation, workers=fresh, on_error="return"
        )
        for address, answer in answers.items():
            if isinstance(answer, ImportError | AttributeError):
                raise MeasureError(
                    f"executor {self.address}: worker {address} has no amos of this version: "
                    f"{answer}"
                ) from answer
            if not isinstance(answer, BaseException):
                self._kinds[address] = answer

    def _addresses(self) -> set[str]:
        try:
            return set(self._client.nthreads())
        except (OSError, TimeoutError) as error:
            raise MeasureError(f"executor {self.address}: the scheduler is gone") from error

    def _workers(self) -> set[str]:
        """Return the present workers of the chosen kind."""
        present = self._addresses()
        with contextlib.suppress(OSError, TimeoutError):
            self._look_at(present)
        return {address for address in present if self._kinds.get(address) == self._identity}

    def _wait_for_workers(self) -> set[str]:
        end = time.monotonic() + _REPLACEMENT
        while not (workers := self._workers()):
            if time.monotonic() > end:
                raise MeasureError(
                    f"executor {self.address}: no worker of this kind is left ({self._identity})"
                )
            time.sleep(_POLL_SECONDS)
        return workers

    def _submit(self, worker: str, function: Any, *arguments: Any) -> Any:
        pinned = dict(workers=[worker], allow_other_workers=False, pure=False, retries=0)
        return self._client.submit(function, *arguments, **pinned)


def map_on_cluster(
    address: str, function: Callable[[_Item], _T], items: Iterable[_Item]
) -> Generator[_T, None, None]:
    """Call a function on each item on the workers of a cluster, as ``map`` does.

    Yields:
        the results in order.

    Raises:
        MeasureError: it is no address, the scheduler does not answer, or a call fails.
    """
    if not address.startswith(DASK_SCHEMES):
        raise MeasureError(f"executor {address!r}: expected that of Dask, tcp://HOST:PORT")
    client = _connect(address)
    try:
        for future in client.map(function, list(items), pure=False):
            yield future.result()
    except Exception as error:  # whatever a cluster can come up with
        raise MeasureError(f"executor {address}: {type(error).__name__}: {error}") from error
    finally:
        client.close()


def _pause(futures: list[Any]) -> None:
    """Wait until a future is done, or until it is time to look for workers again."""
    from distributed import wait

    if futures:
        with contextlib.suppress(Exception):
            wait(futures, timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED")


def _abandon(future: Any) -> None:
    with contextlib.suppress(Exception):
        future.cancel(force=True)


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise MeasureError(
            f"executor {address}: Dask is not installed; pip install 'amos-mapper[distributed]'"
        ) from error
    try:
        return Client(address, timeout=_CONNECT, set_as_default=False, heartbeat_interval=1000)
    except (OSError, TimeoutError, ValueError) as error:
        raise MeasureError(f"executor {address}: the scheduler does not answer") from error


# The rest of this file runs on the workers of the cluster.

_lock = threading.Lock()
_runners: dict[tuple[float, int | None], Runner] = {}


def _introduce(intrinsic: Intrinsic | None, implementation: str | None) -> Identity | None:
    """Return the identity of this worker; ``None`` if it cannot execute the intrinsic."""
    if intrinsic is None or implementation == "generic":
        return identify_host()
    from amos.codegen.tir.tensor_intrin import implementation as implementation_on
    from amos.machine.cpu import cpu

    # An intrinsic that no CPU has is emitted as its meaning everywhere.
    expected = implementation_on(intrinsic, frozenset(intrinsic.requires))
    if implementation == "native":
        expected = "native"
    return identify_host() if implementation_on(intrinsic, cpu().features) == expected else None


def _runner(limits: tuple[float, int | None]) -> Runner:
    if limits not in _runners:
        _close_runner()
        _runners[limits] = Runner(*limits)
    return _runners[limits]


def _measure_task(task: Task, limits: tuple[float, int | None]) -> Measurement:
    with _lock:
        return _runner(limits).measure(task)


def _describe_machine(
    intrinsics: Sequence[Intrinsic],
    again: bool,
    implementation: str | None,
    limits: tuple[float, int | None],
) -> Machine:
    with _lock:
        return host_machine(
            intrinsics, runner=_runner(limits), again=again, implementation=implementation
        )


def _leave() -> None:
    """Close the runner, unless another candidate is in it."""
    if _lock.acquire(blocking=False):
        try:
            _close_runner()
        finally:
            _lock.release()


def _close_runner() -> None:
    while _runners:
        _, runner = _runners.popitem()
        runner.close()
