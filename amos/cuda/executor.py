"""Measuring on the GPU of this machine, in the worker that may be lost.

Nothing here loads TVM, and nothing but the driver is needed beside a compiler. The
worker talks to the driver through ``ctypes``; this process only ever asks another one
what GPU is there, because whoever has begun with CUDA cannot fork workers any more.
"""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from typing import ClassVar

from amos.cuda.codegen.toolchain import compiler_of_image
from amos.cuda.plan import architecture_of
from amos.cuda.runtime import driver
from amos.cuda.runtime.gpu_kernel import GpuKernel
from amos.errors import MeasureError, ToolchainError
from amos.machine import Machine
from amos.machine.identity import Identity
from amos.measure.executor import DeviceExecutor
from amos.measure.runner import DEFAULT_TIMEOUT
from amos.measure.task import Place
from amos.plan import Candidate
from amos.plan.target import ExecutorRequest

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


class GpuExecutor(DeviceExecutor):
    """One GPU, that of the machine that schedules are made for or a newer one.

    Raises:
        MeasureError: the GPU is older than the machine's kernels.
        ToolchainError: no compiler here makes code for it.
    """

    scheme: ClassVar[str] = "gpu"

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
        place = GpuPlace(architecture, gpu.library)
        super().__init__(machine, identity, timeout, place, gpu.cache)

    @classmethod
    def connect(cls, machine: Machine, words: str, timeout: float) -> GpuExecutor:
        """Take this machine's GPU, by a driver in another place if that is given."""
        return cls(machine, find_gpu(words or _LIBRARY), timeout)

    @classmethod
    def connect_fitting(cls, request: ExecutorRequest) -> GpuExecutor | None:
        """Take the GPU if it is of the machine's architecture and can be compiled for."""
        machine, notify = request.machine, request.notify
        try:
            gpu = find_gpu()
            if gpu.capability == machine.architecture:
                executor = cls(machine, gpu, request.timeout)
                notify(f"measured on the GPU here ({gpu})")
                return executor
            notify(
                f"the GPU here ({gpu}) is no {machine.name} (sm_{machine.architecture}): searched "
                "on the model alone"
            )
        except ToolchainError as error:
            notify(f"searched on the model alone: {error}")
        except MeasureError:  # no GPU
            pass
        return None
