"""Measuring on an OpenCL device of this machine, in the worker that may be lost.

The driver is loaded by the worker alone: its threads do not outlive a fork, and a driver that
crashes is a failure of one candidate.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

from amos._processes import python
from amos.errors import MeasureError
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine, Peak
from amos.machine.identity import Identity
from amos.measure.executor import DeviceExecutor
from amos.measure.messages import Context, Failure
from amos.measure.runner import DEFAULT_TIMEOUT
from amos.measure.task import Place
from amos.opencl.chains.candidate import ParallelCandidate
from amos.opencl.plan import unit_of
from amos.opencl.runtime.kernel import OpenClKernel
from amos.opencl.runtime.loader import Device, KernelError
from amos.plan import Candidate
from amos.plan.target import ExecutorRequest

#: Seconds that asking for a device may take.
_PATIENCE = 60.0


@dataclass(frozen=True)
class OpenClDevice:
    """A device of this machine; sizes in bytes, the clock in cycles per second."""

    name: str
    driver: str
    units: int
    group_items: int
    local_bytes: int
    cache: int
    clock: float
    extensions: tuple[str, ...]
    is_cpu: bool


@cache
def find_device(words: str = "") -> OpenClDevice:
    """Find, in a child process, the first device whose name has a word, or raise MeasureError."""
    if importlib.util.find_spec("pyopencl") is None:
        raise MeasureError("pyopencl is not installed (extra 'opencl')")
    try:
        done = subprocess.run(
            [*python(__name__), words], capture_output=True, timeout=_PATIENCE, text=True
        )
    except subprocess.TimeoutExpired:
        raise MeasureError(f"OpenCL gives no answer within {_PATIENCE:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"OpenCL ended with {done.returncode}"]
        raise MeasureError(lines[-1])
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return OpenClDevice(**figures | {"extensions": tuple(figures["extensions"])})


@dataclass(frozen=True)
class OpenClPlace(Place):
    """A device, by part of its name, to measure on in the limits of a machine."""

    machine: Machine
    words: str

    def build(self, candidate: Candidate | ParallelCandidate) -> OpenClKernel:
        """Compile and load the candidate."""
        return OpenClKernel(candidate, self.machine, self.words)


@dataclass(frozen=True)
class PeakJob:
    """The rate of multiply-adds of vectors of ``width`` floats, measured where candidates are."""

    intrinsics: ClassVar[tuple[Intrinsic, ...]] = ()
    needs: ClassVar[frozenset[Operator | str]] = frozenset()
    width: int
    words: str

    def run(self, context: Context) -> float:
        """Measure seconds between two calls of one core."""
        from amos.opencl.probe import DeviceProbe

        context.wait()
        return DeviceProbe(self.words).measure_interval(self.width)


class OpenClExecutor(DeviceExecutor):
    """One device, at least as large as the machine that schedules are made for.

    Raises:
        MeasureError: the device lacks something that kernels for the machine may use.
    """

    scheme: ClassVar[str] = "opencl"

    def __init__(
        self,
        machine: Machine,
        device: OpenClDevice,
        words: str = "",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        unit = unit_of(machine)
        for what, here, most in (
            ("work-items in a group", device.group_items, unit.group_items),
            ("bytes of local memory", device.local_bytes, unit.local_bytes),
        ):
            if here < most:
                raise MeasureError(
                    f"machine {machine.name!r} has {most} {what}, but {device.name} has {here}"
                )
        extensions = [name for name in machine.features if name.startswith("cl_")]
        if missing := [name for name in extensions if name not in device.extensions]:
            raise MeasureError(
                f"machine {machine.name!r} has {missing[0]}, which {device.name} lacks"
            )
        identity = Identity(
            machine.name, device.name, machine.cores, f"OpenCL driver {device.driver}", ()
        )
        super().__init__(machine, identity, timeout, OpenClPlace(machine, words), device.cache)
        self._words = words

    @classmethod
    def connect(cls, machine: Machine, words: str, timeout: float) -> OpenClExecutor:
        """Take the first device whose name contains these words."""
        return cls(machine, find_device(words), words, timeout)

    @classmethod
    def connect_fitting(cls, request: ExecutorRequest) -> OpenClExecutor | None:
        """Take a device of the machine's platform, if there is one."""
        try:
            words = unit_of(request.machine).platform
            executor = cls.connect(request.machine, words, request.timeout)
        except MeasureError as error:
            request.notify(f"searched on the model alone: {error}")
            return None
        request.notify(f"measured on {executor.identity.model}")
        return executor

    def machine(
        self,
        intrinsics: Sequence[Intrinsic],
        *,
        again: bool = False,
        implementation: str | None = None,
    ) -> Machine:
        """Return the description; with ``again`` with rates of floats as they are here now."""
        peaks = dict(self._machine.peaks)
        for unit in intrinsics if again else ():
            width = unit.operands[-1].tensor.elements
            if {*unit.dtypes} == {"float32"} and unit.operations == 2 * width:
                interval = self.runner.request(PeakJob(width, self._words)).answer
                if not isinstance(interval, Failure):
                    peaks[unit.name] = Peak(max(peaks[unit.name].latency, interval), interval)
        return replace(self._machine, peaks=peaks)


def main(words: str = "") -> None:
    """Print what a device says of itself, as JSON."""
    import sys

    try:
        sys.stdout.write(json.dumps(Device(words).describe()) + "\n")
    except KernelError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    import sys

    main(*sys.argv[1:])
