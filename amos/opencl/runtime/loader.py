"""Load, check and time exported OpenCL kernels: NumPy and pyopencl are enough.

This file is copied beside every exported kernel, with ``values.py``. Used from Python it
enqueues the kernel on the buffers or arrays of pyopencl::

    kernel = Kernel("folder")
    event = kernel(image, weight, out)      # pyopencl.Buffer or pyopencl.array.Array

and as a program, ``python load.py [FOLDER] [DEVICE]``, it checks the kernel and times it, on the
first device whose name or platform contains the word DEVICE.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amos.runtime.values import (
    compare_results,
    decode,
    draw_values,
    encode,
    inputs_of,
    measure_differences,
    size_of,
)

#: Seconds that one timing spans at least, and launches that it has at most.
_SPAN, _MOST = 0.005, 200
#: Divisions and roots that round once, as NumPy's do; some devices do not have them.
_ROUNDED = "-cl-fp32-correctly-rounded-divide-sqrt"


class KernelError(Exception):
    """A kernel cannot be built, launched or checked."""


class ResourceError(KernelError):
    """The device has not enough memory or other resources."""


class Device:
    """A device, its context, and a queue that notes times.

    Args:
        words: part of the name of its platform or of its own; the first device by default.

    Raises:
        KernelError: pyopencl or such a device is missing.
    """

    def __init__(self, words: str = "") -> None:
        try:
            import pyopencl
        except ImportError as error:
            raise KernelError(f"OpenCL needs pyopencl, which is not here: {error}") from None
        self.cl = pyopencl
        devices = [(f"{d.platform.name}: {d.name.strip()}", d) for d in _list_devices(pyopencl)]
        fitting = [d for name, d in devices if words.lower() in name.lower()]
        if not fitting:
            names = ", ".join(name for name, _ in devices) or "none"
            device = f"OpenCL device {words!r}" if words else "OpenCL device"
            raise KernelError(f"no {device}; there are: {names}")
        self.device = fitting[0]
        self.name = f"{self.device.platform.name}: {self.device.name.strip()}"
        self.context = pyopencl.Context([self.device])
        profiling = pyopencl.command_queue_properties.PROFILING_ENABLE
        self.queue = pyopencl.CommandQueue(self.context, properties=profiling)

    def describe(self) -> dict[str, Any]:
        """Describe the device as a machine's description does."""
        device = self.device
        return {
            "name": self.name,
            "driver": device.driver_version,
            "units": device.max_compute_units,
            "group_items": device.max_work_group_size,
            "local_bytes": device.local_mem_size,
            "cache": device.global_mem_cache_size,
            "clock": device.max_clock_frequency * 1e6,
            "extensions": device.extensions.split(),
            "is_cpu": bool(device.type & self.cl.device_type.CPU),
        }

    def check(self, launch: dict[str, Any]) -> None:
        """Raise KernelError for a kernel that the device has no room or extension for."""
        limits = {
            "work-items in a group": (launch["local_size"], self.device.max_work_group_size),
            "bytes of local memory": (launch["local_bytes"], self.device.local_mem_size),
        }
        for what, (needed, most) in limits.items():
            if needed > most:
                raise KernelError(
                    f"{launch['kernel']} needs {needed} {what}, and {self.name} has {most}"
                )
        here = self.device.extensions.split()
        if missing := [name for name in launch["extensions"] if name not in here]:
            raise KernelError(f"{launch['kernel']} needs {missing[0]}, which {self.name} lacks")

    def build(self, text: str) -> Any:
        """Compile a program; raise KernelError if its compiler refuses the text."""
        able = self.cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        options = [_ROUNDED] if self.device.single_fp_config & able else []
        program = self.cl.Program(self.context, text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Remarks of compilers on text that they accept.
            return self.call(program.build, options=options, cache_dir=False)

    def call(self, function: Any, *arguments: Any, **more: Any) -> Any:
        """Call pyopencl, and classify its errors.

        Raises:
            ResourceError: memory or other resources are exhausted.
            KernelError: the driver refuses anything else.
        """
        try:
            return function(*arguments, **more)
        except self.cl.MemoryError as error:
            raise ResourceError(f"{self.name}: out of memory: {_shorten(error)}") from None
        except self.cl.Error as error:
            kind = ResourceError if "OUT_OF" in str(error) else KernelError
            raise kind(f"{self.name}: {_shorten(error)}") from None


def _list_devices(cl: Any) -> list[Any]:
    try:
        return [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:  # no platform
        return []


def _shorten(error: Exception) -> str:
    """Return the line of a driver's message that states the fault."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason"]
    return next((line for line in lines if "error:" in line), lines[0])


class Kernel:
    """One kernel on a device.

    Args:
        folder: with ``kernel.cl`` and ``launch.json``; of a kernel that is in no folder
            name of the kernel in messages.
        device: where it runs; the first device by default.
        launch: contents of ``launch.json``, if not from the folder.
        source: text of such a kernel.

    Raises:
        KernelError: there is no device, it lacks something, or its compiler refuses the text.
    """

    def __init__(
        self,
        folder: str | Path,
        device: Device | None = None,
        *,
        launch: dict[str, Any] | None = None,
        source: str = "",
    ) -> None:
        self.folder = Path(folder)
        text = source or _read(self.folder / "kernel.cl")
        self.launch = _read_launch(self.folder) if launch is None else launch
        self.device = device or Device()
        self.device.check(self.launch)
        kernel, program = self.device.cl.Kernel, self.device.build(text)
        #: The functions and their launches, in order.
        self._launches = [
            (self.device.call(kernel, program, each["kernel"]), each)
            for each in (self.launch.get("start"), self.launch, self.launch.get("end"))
            if each
        ]

    def __call__(self, *arrays: Any, queue: Any = None, wait_for: Any = None) -> Any:
        """Enqueue the kernel: the inputs in order, then the results.

        Args:
            arrays: of pyopencl, or its buffers.
            queue: where to enqueue it; by default the device's own.
            wait_for: events that it waits for.

        Returns:
            the event of its end.

        Raises:
            KernelError: an array is missing, or the driver refuses.
        """
        return self._enqueue(arrays, queue, wait_for)[-1]

    def _enqueue(self, arrays: Sequence[Any], queue: Any = None, wait_for: Any = None) -> list[Any]:
        """Enqueue the functions of the kernel, each after the one before; return their events."""
        expected = self.launch["arguments"]
        if len(arrays) != len(expected):
            names = ", ".join(a["name"] for a in expected)
            raise KernelError(
                f"{self.launch['kernel']}: expected {names}, got {len(arrays)} arrays"
            )
        buffers = [getattr(array, "base_data", array) for array in arrays]
        for argument, array in zip(expected, arrays, strict=True):
            if problem := _misfit(argument, array):
                raise KernelError(f"{self.launch['kernel']}: {argument['name']}: {problem}")
        queue = queue or self.device.queue
        events = list(wait_for or ())
        for argument, buffer in zip(expected, buffers, strict=True):
            if argument["zeroed"]:
                events.append(self._fill(queue, buffer, size_of(argument)))
        run, done = self.device.cl.enqueue_nd_range_kernel, list[Any]()
        for function, launch in self._launches:
            local = (launch["local_size"],) if "local_size" in launch else None
            sizes = (launch["global_size"],), local
            self.device.call(function.set_args, *buffers)
            done.append(self.device.call(run, queue, function, *sizes, wait_for=events or None))
            events = done[-1:]
        return done

    def _fill(self, queue: Any, buffer: Any, size: int) -> Any:
        fill = self.device.cl.enqueue_fill_buffer
        return self.device.call(fill, queue, buffer, np.uint8(0), 0, size)

    def _hold(self, inputs: list[np.ndarray], results: list[np.ndarray]) -> list[Any]:
        flags = self.device.cl.mem_flags
        mode = flags.READ_WRITE | flags.COPY_HOST_PTR
        arrays = [np.ascontiguousarray(x) for x in (*inputs, *results)]
        make, context = self.device.cl.Buffer, self.device.context
        return [self.device.call(make, context, mode, hostbuf=x) for x in arrays]

    def _results(self) -> list[np.ndarray]:
        """Return results before a run: filled with ``0xCD``, or zeros if the kernel keeps some."""
        outputs = self.launch["arguments"][len(inputs_of(self.launch)) :]
        return [np.full(size_of(x), 0 if x.get("kept") else 0xCD, np.uint8) for x in outputs]

    def compute(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Run once on the bit patterns of inputs, of any shape; return the bytes of each result."""
        results = self._results()
        buffers = self._hold(inputs, results)
        self.device.call(self(*buffers).wait)
        for array, buffer in zip(results, buffers[len(inputs) :], strict=True):
            self.device.call(self.device.cl.enqueue_copy, self.device.queue, array, buffer)
        return results

    def check(self, seed: int = 0) -> dict[str, Any]:
        """Run on random data, and compare some elements of the results with NumPy.

        A chain runs on the inputs in its folder, and all results are compared.

        Returns:
            ``correct``, ``largest_difference`` and the number of ``elements`` compared.
        """
        rng, launch = np.random.default_rng(seed), self.launch
        if "operator" not in launch:
            return self._check_files()
        values = draw_values(launch, rng)
        return compare_results(launch, values, self.compute(self._encode(values)), rng)

    def _check_files(self) -> dict[str, Any]:
        """Run a chain on the inputs in the folder, whose results are there, too."""
        out = self.launch["arguments"][-1]
        (data,) = self.compute(self._own_inputs())
        got, right = (
            decode(x, out["dtype"]).astype(np.float64)
            for x in (data, self._read_stored("expected", out))
        )
        off = measure_differences(got, right)
        correct = bool((off <= self.launch["tolerance"]).all())
        largest = float(off.max(initial=0))
        return {"correct": correct, "largest_difference": largest, "elements": off.size}

    def _own_inputs(self) -> list[np.ndarray]:
        """Return bit patterns of inputs: random ones, for a chain those in the folder."""
        if "operator" not in self.launch:
            return [self._read_stored("inputs", a) for a in inputs_of(self.launch)]
        return self._encode(draw_values(self.launch, np.random.default_rng(0)))

    def _encode(self, values: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [encode(values[a["name"]], a["dtype"]) for a in inputs_of(self.launch)]

    def _read_stored(self, kind: str, argument: dict[str, Any]) -> np.ndarray:
        file = self.folder / kind / f"{argument['name']}.bin"
        size, there = size_of(argument), file.stat().st_size if file.is_file() else 0
        if there != size:
            raise KernelError(f"{file}: expected {size} bytes, got {there}")
        return np.fromfile(file, np.uint8)

    def times(
        self, repeat: int = 20, flush: int = 0, inputs: list[np.ndarray] | None = None
    ) -> list[float]:
        """Return seconds of single launches, from the start to the end that events note.

        Args:
            repeat: how many timings. Without ``flush`` each is the median of a span of
                launches that find in the cache what the one before left.
            flush: bytes that are overwritten before each timing, which then is that of
                a single launch.
            inputs: bit patterns of each input; by default random ones, or a chain's own.
        """
        buffers = self._hold(self._own_inputs() if inputs is None else inputs, self._results())
        once = max(self._time(buffers), 1e-9)
        if flush:
            cl = self.device.cl
            make, flags = cl.Buffer, cl.mem_flags.READ_WRITE
            overwritten = self.device.call(make, self.device.context, flags, flush)
            seconds = []
            for _ in range(repeat):
                self._fill(self.device.queue, overwritten, flush).wait()
                seconds.append(self._time(buffers))
            return seconds
        count = max(1, min(_MOST, int(_SPAN / once)))
        spans = ([self._time(buffers) for _ in range(count)] for _ in range(repeat))
        return [statistics.median(span) for span in spans]

    def _time(self, buffers: list[Any]) -> float:
        events = self._enqueue(buffers)
        self.device.call(events[-1].wait)
        return float(events[-1].profile.end - events[0].profile.start) * 1e-9


def _misfit(argument: dict[str, Any], array: Any) -> str:
    """Explain why an array or a buffer does not match an argument; empty if it does."""
    if isinstance(array, np.ndarray) or not hasattr(array, "size"):
        return f"expected an array or a buffer of pyopencl, got {type(array).__name__}"
    if not hasattr(array, "base_data"):
        size = size_of(argument)
        return f"expected {size} bytes, got {array.size}" if array.size < size else ""
    kind, shape = str(array.dtype), list(array.shape)
    # NumPy has no bfloat16 of its own: its bits will do.
    kinds = {argument["dtype"], "uint16" if argument["dtype"] == "bfloat16" else ""}
    if kind not in kinds or shape != argument["shape"]:
        return f"expected {argument['dtype']} {argument['shape']}, got {kind} {shape}"
    if array.offset or not array.flags.c_contiguous:
        return "expected a contiguous array from its buffer's start, got a view; copy it"
    return ""


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise KernelError(f"{file.parent}: no {file.name} that can be read: {error}") from None


def _read_launch(folder: Path) -> dict[str, Any]:
    text = _read(folder / "launch.json")
    try:
        launch: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise KernelError(f"{folder}: no launch.json that can be read: {error}") from None
    return launch


def main(arguments: list[str]) -> int:
    """Check and time the kernel of a folder."""
    folder, words, *_ = [*arguments, *[str(Path(__file__).parent), ""][len(arguments) :]]
    try:
        kernel = Kernel(folder, Device(words))
        verdict = kernel.check()
        seconds = statistics.median(kernel.times())
    except KernelError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    rate = kernel.launch["operations"] / seconds / 1e9
    sys.stdout.write(
        f"{kernel.launch['kernel']} on {kernel.device.name}: "
        f"{'right' if verdict['correct'] else 'WRONG'} in {verdict['elements']} elements, "
        f"largest difference {verdict['largest_difference']:g}, "
        f"{seconds * 1e6:.2f} us, {rate:.2f} Gop/s\n"
    )
    return 0 if verdict["correct"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
