"""Measuring on the GPU of this machine, in the worker that may be lost.

Nothing here loads TVM, and nothing but the driver is needed beside a compiler. The
worker talks to the driver through ``ctypes``; this process only ever asks another one
what GPU is there, because whoever has begun with CUDA cannot fork workers any more.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from amos.cuda.codegen.toolchain import compiler_of_image
from amos.cuda.plan import architecture_of
from amos.cuda.runtime import driver
from amos.cuda.runtime.gpu_kernel import GpuKernel
from amos.errors import MeasureError, ToolchainError
from amos.machine import Machine
from amos.machine.identity import Identity
from amos.measure.executor import DescribedExecutor, Executor
from amos.measure.runner import DEFAULT_TIMEOUT, default_memory
from amos.measure.task import Place
from amos.plan import Candidate

_LIBRARY = "libcuda.so.1"
#: Seconds that asking for the GPU may take.
_PATIENCE = 60.0


@dataclass(frozen=True)
class Gpu:
    """The first GPU of this machine.

    Attributes:
        capability: 90 for 9.0.
        cache: bytes of the cache that all multiprocessors share.
        driver: newest CUDA version that the driver knows.
    """

    name: str
    capability: int
    cache: int
    driver: str
    library: str = _LIBRARY

    def __str__(self) -> str:
        return f"{self.name}, sm_{self.capability}"


def find_gpu(library: str = _LIBRARY) -> Gpu:
    """Return the GPU of this machine; raise MeasureError if there is no driver, or no GPU."""
    try:
        ctypes.CDLL(library)
    except OSError:
        raise MeasureError(f"there is no NVIDIA driver here ({library})") from None
    try:
        return Gpu(**driver.describe_gpu(library, _PATIENCE), library=library)
    except subprocess.TimeoutExpired:
        raise MeasureError(f"the NVIDIA driver gives no answer within {_PATIENCE:g} s") from None
    except driver.KernelError as error:
        raise MeasureError(f"no GPU: {error}") from None


@dataclass(frozen=True)
class GpuPlace(Place):
    """A GPU to measure on.

    Attributes:
        driver: library of the driver. A worker loads it: it does not outlive a fork.
    """

    loader: ClassVar[str] = "amos.cuda.codegen.toolchain.compilers"

    architecture: str
    driver: str

    def build(self, candidate: Candidate) -> GpuKernel:
        """Compile and load the candidate."""
        return GpuKernel(candidate, self.architecture, self.driver)

    def release(self, kernel: GpuKernel) -> None:
        """Free what the driver would keep."""
        kernel.close()


class GpuExecutor(DescribedExecutor):
    """One GPU, driven by one worker process.

    Raises:
        MeasureError: the GPU is older than the machine's kernels.
        ToolchainError: no compiler here makes code for it.
    """

    def __init__(self, machine: Machine, gpu: Gpu, timeout: float = DEFAULT_TIMEOUT) -> None:
        architecture = architecture_of(machine)
        if gpu.capability < machine.architecture:
            raise MeasureError(
                f"machine {machine.name!r} is {architecture}, and the GPU here ({gpu}) is older"
            )
        compiler = compiler_of_image(architecture, gpu.capability)
        identity = Identity(
            machine.name,
            gpu.name,
            machine.cores,
            f"CUDA driver {gpu.driver}",
            ((compiler.kind, compiler.version),),
        )
        # The driver reserves far more address space than a machine has memory.
        super().__init__(machine, identity, timeout, memory=0)
        self._gpu, self._architecture = gpu, architecture

    @property
    def memory(self) -> int:
        """Bytes that this process may have: there is no limit of its own on a candidate."""
        return 2 * default_memory()

    def place(self, task: Any) -> Any:
        """Return a task on the GPU; ``flush`` overwrites at least twice its cache."""
        flush = max(task.flush, 2 * self._gpu.cache) if task.flush else 0
        return replace(task, flush=flush, place=GpuPlace(self._architecture, self._gpu.library))


def gpu_executor(
    address: str | Executor | None,
    machine: Machine,
    timeout: float = DEFAULT_TIMEOUT,
    notify: Callable[[str], None] = lambda _: None,
) -> Executor | None:
    """Return the executor of candidates of a described machine.

    Args:
        address: ``"model"`` for nothing, ``"gpu"`` for this machine's GPU or
            ``"gpu:LIBRARY"`` with a driver in another place, an executor itself; None
            takes the GPU if it is of the machine's architecture and can be compiled for.
        notify: receives messages about unexpected choices.

    Returns:
        the executor; None for the model alone.

    Raises:
        MeasureError: there is no such GPU, or the address is another one.
        ToolchainError: no compiler here makes code for the GPU.
    """
    if isinstance(address, str) and address != "model":
        if address.partition(":")[0] != "gpu":
            raise MeasureError(
                f"executor {address!r}: machine {machine.name!r} is a description; "
                "expected 'model' or 'gpu'"
            )
        return GpuExecutor(machine, find_gpu(address.partition(":")[2] or _LIBRARY), timeout)
    if address is not None:
        return address if isinstance(address, GpuExecutor) else None
    try:
        gpu = find_gpu()
        if gpu.capability == machine.architecture:
            executor = GpuExecutor(machine, gpu, timeout)
            notify(f"measured on the GPU here ({gpu})")
            return executor
        notify(
            f"the GPU here ({gpu}) is no {machine.name} (sm_{machine.architecture}): searched on "
            "the model alone"
        )
    except ToolchainError as error:
        notify(f"searched on the model alone: {error}")
    except MeasureError:  # no GPU
        pass
    return None
