"""Load, check and time exported CUDA kernels: NumPy and the NVIDIA driver are enough.

This file is copied beside every exported kernel, with ``driver.py``, ``timing.py`` and
``values.py``. Used from Python it launches the kernel on the arrays of CuPy or PyTorch,
on the stream that is theirs at the time::

    kernel = Kernel("folder")
    kernel(image, weight, out)      # anything with data_ptr() or data.ptr, on the GPU

and as a program, ``python load.py [FOLDER]``, it checks the kernel and times it.
Machine code is made on the machine itself by nvcc, or else by the driver from
``kernel.ptx``. PyTorch's types are taken as they are; CuPy has no bfloat16 and no
eight-bit floats, whose bit patterns it holds as ``uint16`` and ``uint8``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from amos.cuda.runtime.driver import Device, KernelError, address, current_stream, images, misfit
from amos.cuda.runtime.timing import Timer
from amos.runtime.values import compare_results, draw_values, encode, inputs_of, size_of

#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the CUDA driver API.
_DYNAMIC_SHARED = 8
#: Shared memory that a launch may ask for without opting in.
_STATIC_LIMIT = 48 * 1024


class Kernel:
    """One kernel on a GPU.

    Args:
        folder: with ``kernel.cu`` and ``launch.json``; of a kernel that is in no folder
            name of the kernel in messages.
        device: the GPU; the first one by default.
        launch: contents of ``launch.json``, if not from the folder.
        image: machine code or PTX of such a kernel.

    Raises:
        KernelError: the GPU is older than the kernel, or there is no way to machine code.
    """

    def __init__(
        self,
        folder: str | Path,
        device: Device | None = None,
        *,
        launch: dict[str, Any] | None = None,
        image: bytes = b"",
    ) -> None:
        self.folder = Path(folder)
        self.launch = read_launch(self.folder) if launch is None else launch
        self.device = device or Device()
        needed = int(self.launch["architecture"].removeprefix("sm_"))
        if self.device.capability < needed:
            raise KernelError(
                f"{self.folder}: the kernel needs sm_{needed}, and {self.device.name} is "
                f"sm_{self.device.capability}"
            )
        dynamic = self.launch["dynamic_shared_bytes"]
        if dynamic > max(_STATIC_LIMIT, self.device.shared):
            raise KernelError(
                f"{self.folder}: the kernel needs {dynamic} bytes of shared memory for a block, "
                f"and {self.device.name} has {self.device.shared}"
            )
        self.device.enter()
        self._module = ctypes.c_void_p()
        self._load([image] if image else images(self.folder, self.device.capability))
        self._function = self._get_function(self.launch["kernel"])
        launches = [self.launch[when] for when in ("start", "end") if when in self.launch]
        self._extra_functions = {
            each["kernel"]: self._get_function(each["kernel"]) for each in launches
        }
        if dynamic > _STATIC_LIMIT:
            self.device.call("cuFuncSetAttribute", self._function, _DYNAMIC_SHARED, dynamic)

    def _load(self, choices: Iterable[bytes]) -> None:
        """Load the first image that the driver takes: one may be newer than it."""
        first: KernelError | None = None
        for image in choices:
            try:
                self.device.call("cuModuleLoadData", ctypes.byref(self._module), image)
            except KernelError as error:
                first = first or error
            else:
                return
        raise first or KernelError(f"{self.folder}: there is no machine code")

    def _get_function(self, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self.device.call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        return function

    def close(self) -> None:
        """Give the module back; the kernel cannot be launched any more."""
        if self._module.value:
            self.device.release("cuModuleUnload", self._module)
            self._module.value = None

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, *arrays: Any, stream: int | None = None) -> None:
        """Launch on arrays of the GPU: the inputs in order, then the results.

        Args:
            arrays: of PyTorch or CuPy.
            stream: handle of a CUDA stream; by default the one that the arrays' library
                works on at present.

        Raises:
            KernelError: an array is missing, or has another type, shape or order; or the
                kernel was closed.
        """
        expected = self.launch["arguments"]
        if len(arrays) != len(expected):
            names = ", ".join(a["name"] for a in expected)
            raise KernelError(
                f"{self.launch['kernel']}: expected {names}, got {len(arrays)} arrays"
            )
        for argument, array in zip(expected, arrays, strict=True):
            if problem := misfit(argument, array):
                raise KernelError(f"{self.launch['kernel']}: {argument['name']}: {problem}")
        where = current_stream(arrays[-1]) if stream is None else stream
        with self.device.activate():
            self.run([ctypes.c_uint64(address(a)) for a in arrays], where)

    def run(self, pointers: list[ctypes.c_uint64], stream: int = 0) -> None:
        """Launch on addresses, after preparations such as clearing; the kernel must be open."""
        if not self._module.value:
            raise KernelError(f"{self.launch['kernel']}: it was closed")
        for argument, pointer in zip(self.launch["arguments"], pointers, strict=False):
            if argument["zeroed"]:
                self._fill(pointer, size_of(argument), stream)
        addresses = (ctypes.c_void_p * len(pointers))(
            *(ctypes.cast(ctypes.byref(p), ctypes.c_void_p) for p in pointers)
        )
        self._launch_extra("start", stream, addresses)
        dynamic = self.launch["dynamic_shared_bytes"]
        self._launch_function(self._function, self.launch, dynamic, stream, addresses)
        self._launch_extra("end", stream, addresses)

    def _launch_extra(self, when: str, stream: int, parameters: Any) -> None:
        """Launch the kernel before or after this one, if there is one."""
        if (how := self.launch.get(when)) is not None:
            self._launch_function(self._extra_functions[how["kernel"]], how, 0, stream, parameters)

    def _launch_function(
        self,
        function: ctypes.c_void_p,
        how: dict[str, Any],
        dynamic: int,
        stream: int,
        parameters: Any,
    ) -> None:
        where = ctypes.c_void_p(stream)
        sizes = (*how["grid"], *how["block"], dynamic)
        self.device.call("cuLaunchKernel", function, *sizes, where, parameters, None)

    def compute(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Run once on arrays of the host.

        Args:
            inputs: bit patterns of each input as the GPU reads them, of any shape.

        Returns:
            the bytes of each result, which were not zero before unless the kernel asks
            for that, or keeps some.
        """
        outputs = self.launch["arguments"][len(inputs) :]
        results = [np.full(size_of(x), 0 if x.get("kept") else 0xCD, np.uint8) for x in outputs]
        with self.device.holding((*map(np.ascontiguousarray, inputs), *results)) as pointers:
            self.run(pointers)
            self.device.call("cuCtxSynchronize")
            for array, pointer in zip(results, pointers[len(inputs) :], strict=True):
                self.device.download(array, pointer)
        return results

    def check(self, seed: int = 0) -> dict[str, Any]:
        """Compare elements of results of random data with NumPy; see :func:`.compare_results`."""
        rng = np.random.default_rng(seed)
        values = draw_values(self.launch, rng)
        results = self.compute(
            [encode(values[a["name"]], a["dtype"]) for a in inputs_of(self.launch)]
        )
        return compare_results(self.launch, values, results, rng)

    def times(
        self, repeat: int = 20, flush: int = 0, inputs: list[np.ndarray] | None = None
    ) -> list[float]:
        """Return seconds of single launches, measured by events of the GPU.

        Args:
            repeat: how many timings. Without ``flush`` each is the mean of a span of
                launches, by a CUDA graph, that find in the cache what the one before left.
            flush: bytes that are overwritten before each timing, which then is that of
                a single launch. Events resolve about half a microsecond.
            inputs: bit patterns of each input; random ones by default. Zeros would
                take less power, and less time.
        """
        if inputs is None:
            values = draw_values(self.launch, np.random.default_rng(0))
            inputs = [encode(values[a["name"]], a["dtype"]) for a in inputs_of(self.launch)]
        with self.device.holding(map(np.ascontiguousarray, inputs)) as pointers:
            for out in self.launch["arguments"][len(inputs) :]:
                pointers.append(self.device.allocate(size_of(out)))
                self._fill(pointers[-1], size_of(out))
            arguments = list(pointers)
            timer = Timer(self.device, lambda stream: self.run(arguments, stream))
            with contextlib.closing(timer):
                if not flush:
                    return timer.warm(repeat)
                pointers.append(self.device.allocate(flush))
                return timer.cold(repeat, lambda stream: self._fill(pointers[-1], flush, stream))

    def _fill(self, pointer: ctypes.c_uint64, size: int, stream: int = 0) -> None:
        self.device.call(
            "cuMemsetD8Async", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(size),
            ctypes.c_void_p(stream),
        )  # fmt: skip


def read_launch(folder: Path) -> dict[str, Any]:
    """Read ``launch.json`` of a folder's kernel.

    Raises:
        KernelError: there is none, or it is damaged.
    """
    try:
        launch: dict[str, Any] = json.loads((folder / "launch.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KernelError(f"{folder}: no launch.json that can be read: {error}") from None
    return launch


def main(arguments: list[str]) -> int:
    """Check and time the kernel of a folder."""
    try:
        with Kernel(arguments[0] if arguments else Path(__file__).parent) as kernel:
            verdict = kernel.check()
            seconds = statistics.median(kernel.times())
    except KernelError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    rate = kernel.launch["operations"] / seconds / 1e12
    sys.stdout.write(
        f"{kernel.launch['kernel']} on {kernel.device.name}: "
        f"{'right' if verdict['correct'] else 'WRONG'} in {verdict['elements']} elements, "
        f"largest difference {verdict['largest_difference']:g}, "
        f"{seconds * 1e6:.2f} us, {rate:.2f} Top/s\n"
    )
    return 0 if verdict["correct"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
