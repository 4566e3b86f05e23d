"""Times of kernels, by events of the GPU.

This file is copied beside every exported kernel. Launches are recorded once into a CUDA
graph, which the GPU then runs by itself: a kernel of a few microseconds takes less time
than Python needs to launch it, and would else be timed with the gaps between launches.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from amos.cuda.runtime.driver import Device, KernelError

#: CU_STREAM_NON_BLOCKING and CU_STREAM_CAPTURE_MODE_RELAXED of the CUDA driver API.
_NON_BLOCKING, _RELAXED = 1, 2
#: Milliseconds that one timing spans at least, and launches that it has at most.
_SPAN, _MOST = 5.0, 1000
#: Seconds of work before the first timing, in which the clocks of the GPU rise.
_WARM_UP = 0.1


class Timer:
    """Launches of one kernel on a stream of its own, and two events."""

    def __init__(self, device: Device, launch: Callable[[int], None]) -> None:
        self._device, self._launch = device, launch
        self._stream = ctypes.c_void_p()
        self._events = [ctypes.c_void_p(), ctypes.c_void_p()]
        self._graph, self._recorded = ctypes.c_void_p(), ctypes.c_void_p()
        # Copies to the GPU must arrive before another stream reads them.
        device.call("cuCtxSynchronize")
        device.call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
        for event in self._events:
            device.call("cuEventCreate", ctypes.byref(event), 0)

    def close(self) -> None:
        """Give everything back; errors of the driver were reported where they happened."""
        for function, handle in (
            ("cuGraphExecDestroy", self._recorded),
            ("cuGraphDestroy", self._graph),
            *(("cuEventDestroy_v2", event) for event in self._events),
            ("cuStreamDestroy_v2", self._stream),
        ):
            if handle.value:
                self._device.release(function, handle)
                handle.value = None

    def warm(self, repeat: int) -> list[float]:
        """Return mean seconds of launches that follow one another, several times."""
        once = self._span(lambda: self._run(3)) / 3
        count = max(1, min(_MOST, int(_SPAN / max(once, 1e-4))))
        run = (lambda: self._replay()) if self._record(count) else (lambda: self._run(count))
        end = time.perf_counter() + _WARM_UP
        while True:
            self._span(run)
            if time.perf_counter() >= end:
                break
        return [self._span(run) / count / 1e3 for _ in range(repeat)]

    def cold(self, repeat: int, flush: Callable[[int], None]) -> list[float]:
        """Return seconds of single launches after ``flush`` has overwritten the caches."""
        spans = []
        self._span(lambda: self._run(3))
        for _ in range(repeat):
            flush(self._stream.value or 0)
            spans.append(self._span(lambda: self._run(1)) / 1e3)
        return spans

    def _run(self, count: int) -> None:
        for _ in range(count):
            self._launch(self._stream.value or 0)

    def _replay(self) -> None:
        self._device.call("cuGraphLaunch", self._recorded, self._stream)

    def _record(self, count: int) -> bool:
        """Record launches in a graph; return false where the driver cannot."""
        device = self._device
        try:
            device.call("cuStreamBeginCapture_v2", self._stream, _RELAXED)
            try:
                self._run(count)
            finally:
                device.call("cuStreamEndCapture", self._stream, ctypes.byref(self._graph))
            device.call(
                "cuGraphInstantiateWithFlags", ctypes.byref(self._recorded), self._graph,
                ctypes.c_ulonglong(0),
            )  # fmt: skip
        except (KernelError, AttributeError):  # an old driver: launches one by one
            return False
        return True

    def _span(self, run: Callable[[], None]) -> float:
        """Return milliseconds between the events before and after some launches."""
        device, (start, end) = self._device, self._events
        device.call("cuEventRecord", start, self._stream)
        run()
        device.call("cuEventRecord", end, self._stream)
        device.call("cuEventSynchronize", end)
        elapsed = ctypes.c_float()
        device.call("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
        return elapsed.value
