"""Load, check and time exported CUDA kernels: NumPy and the NVIDIA driver are enough.

This file is copied beside every exported kernel and stands for itself. Used from
Python it launches the kernel on the arrays of CuPy or PyTorch::

    kernel = Kernel("folder")
    kernel(image, weight, out)      # anything with data_ptr() or data.ptr, on the GPU

and as a program, ``python load.py [FOLDER]``, it checks the kernel and times it.
Machine code is made on the machine itself by nvcc or NVRTC, or else by the driver
from ``kernel.ptx``.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Device", "Kernel", "KernelError"]

#: CUfunction_attribute and CUdevice_attribute of the CUDA driver API.
_DYNAMIC_SHARED, _MAJOR, _MINOR = 8, 75, 76
#: Output elements that are compared.
_SAMPLES = 4096
#: Milliseconds that one timing spans at least.
_SPAN = 5.0


class KernelError(RuntimeError):
    """A kernel cannot be loaded or run here."""


class Device:
    """The first GPU, in its primary context, which CuPy and PyTorch share.

    Args:
        library: the driver.

    Raises:
        KernelError: there is no driver, or no GPU.
    """

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._driver = ctypes.CDLL(library)
        except OSError:
            raise KernelError(f"there is no NVIDIA driver here ({library})") from None
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, device)
        #: Name of the GPU.
        self.name = name.value.decode()
        numbers = []
        for attribute in (_MAJOR, _MINOR):
            value = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            numbers.append(value.value)
        #: Compute capability, 90 for 9.0.
        self.capability = numbers[0] * 10 + numbers[1]

    def call(self, function: str, *arguments: Any) -> None:
        """Call the driver.

        Raises:
            KernelError: it returns an error.
        """
        status = getattr(self._driver, function)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            reason = text.value.decode() if text.value else f"error {status}"
            raise KernelError(f"{function}: {reason}")

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Memory on the GPU."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 16)))
        return pointer

    def free(self, pointer: ctypes.c_uint64) -> None:
        """Give memory back."""
        self.call("cuMemFree_v2", pointer)

    def upload(self, pointer: ctypes.c_uint64, data: np.ndarray) -> None:
        """Copy an array to the GPU."""
        data = np.ascontiguousarray(data)
        self.call(
            "cuMemcpyHtoD_v2", pointer, data.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(data.nbytes),
        )  # fmt: skip

    def download(self, data: np.ndarray, pointer: ctypes.c_uint64) -> None:
        """Copy to a contiguous array from the GPU."""
        self.call(
            "cuMemcpyDtoH_v2", data.ctypes.data_as(ctypes.c_void_p), pointer,
            ctypes.c_size_t(data.nbytes),
        )  # fmt: skip


class Kernel:
    """One exported kernel.

    Args:
        folder: with ``kernel.cu`` and ``launch.json``.
        device: the GPU; the first one by default.

    Raises:
        KernelError: the GPU is older than the kernel, or there is no way to machine code.
    """

    def __init__(self, folder: str | Path, device: Device | None = None) -> None:
        self.folder = Path(folder)
        try:
            self.launch = json.loads((self.folder / "launch.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise KernelError(f"{self.folder}: no launch.json that can be read: {error}") from None
        self.device = device or Device()
        needed = int(self.launch["architecture"].removeprefix("sm_"))
        if self.device.capability < needed:
            raise KernelError(
                f"{self.folder}: the kernel needs sm_{needed}, and {self.device.name} is "
                f"sm_{self.device.capability}"
            )
        image = _machine_code(self.folder, self.device.capability)
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self.device.call("cuModuleLoadData", ctypes.byref(self._module), image)
        self.device.call(
            "cuModuleGetFunction", ctypes.byref(self._function), self._module,
            self.launch["kernel"].encode(),
        )  # fmt: skip
        if dynamic := self.launch["dynamic_shared_bytes"]:
            self.device.call("cuFuncSetAttribute", self._function, _DYNAMIC_SHARED, dynamic)

    def __call__(self, *arrays: Any, stream: int = 0) -> None:
        """Launch on arrays of the GPU: the inputs in order, then the output."""
        if len(arrays) != len(self.launch["arguments"]):
            names = ", ".join(a["name"] for a in self.launch["arguments"])
            raise KernelError(
                f"{self.launch['kernel']}: expected {names}, got {len(arrays)} arrays"
            )
        self.run([ctypes.c_uint64(_pointer(a)) for a in arrays], stream)

    def run(self, pointers: list[ctypes.c_uint64], stream: int = 0) -> None:
        """Launch on addresses; the output is cleared first where the kernel asks for it."""
        last = self.launch["arguments"][-1]
        if last["zeroed"]:
            self.device.call(
                "cuMemsetD8Async", pointers[-1], ctypes.c_ubyte(0),
                ctypes.c_size_t(_bytes(last)), ctypes.c_void_p(stream),
            )  # fmt: skip
        addresses = (ctypes.c_void_p * len(pointers))(
            *(ctypes.cast(ctypes.byref(p), ctypes.c_void_p) for p in pointers)
        )
        self.device.call(
            "cuLaunchKernel", self._function, *self.launch["grid"], *self.launch["block"],
            self.launch["dynamic_shared_bytes"], ctypes.c_void_p(stream), addresses, None,
        )  # fmt: skip

    def check(self, seed: int = 0) -> dict[str, Any]:
        """Run on random data, and compare some elements of the output with NumPy.

        Returns:
            ``correct``, ``largest_difference`` and the number of ``elements`` compared.
        """
        rng = np.random.default_rng(seed)
        *inputs, out = self.launch["arguments"]
        values = {a["name"]: _draw(a, rng) for a in inputs}
        made = np.full(_bytes(out), 0xCD, np.uint8)
        pointers = [self._uploaded(_encode(values[a["name"]], a["dtype"])) for a in inputs]
        pointers.append(self._uploaded(made))
        try:
            self.run(pointers)
            self.device.call("cuCtxSynchronize")
            self.device.download(made, pointers[-1])
        finally:
            for pointer in pointers:
                self.device.free(pointer)
        got = _decode(made, out["dtype"]).astype(np.float64)
        where, expected, scale = reference(self.launch["operator"], values, rng)
        difference = np.abs(got[where] - expected)
        difference[~np.isfinite(got[where])] = np.inf
        allowed = scale * _TOLERANCE[out["dtype"]]
        return {
            "correct": bool((difference <= allowed).all()),
            "largest_difference": float(difference.max()),
            "elements": len(where),
        }

    def times(self, repeat: int = 20) -> list[float]:
        """Seconds of one launch, several times, measured by events of the GPU."""
        pointers = [self.device.allocate(_bytes(a)) for a in self.launch["arguments"]]
        events = [ctypes.c_void_p(), ctypes.c_void_p()]
        try:
            for pointer, argument in zip(pointers, self.launch["arguments"], strict=True):
                self.device.call(
                    "cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(_bytes(argument))
                )
            for event in events:
                self.device.call("cuEventCreate", ctypes.byref(event), 0)
            once = self._span(pointers, events, 3) / 3
            count = max(1, min(10000, int(_SPAN / max(once, 1e-4))))
            spans = [self._span(pointers, events, count) / count for _ in range(repeat)]
            return [span / 1e3 for span in spans]
        finally:
            for event in filter(None, events):
                self.device.call("cuEventDestroy_v2", event)
            for pointer in pointers:
                self.device.free(pointer)

    def _span(
        self, pointers: list[ctypes.c_uint64], events: list[ctypes.c_void_p], n: int
    ) -> float:
        """Milliseconds of ``n`` launches."""
        self.device.call("cuEventRecord", events[0], None)
        for _ in range(n):
            self.run(pointers)
        self.device.call("cuEventRecord", events[1], None)
        self.device.call("cuEventSynchronize", events[1])
        elapsed = ctypes.c_float()
        self.device.call("cuEventElapsedTime", ctypes.byref(elapsed), *events)
        return elapsed.value

    def _uploaded(self, data: np.ndarray) -> ctypes.c_uint64:
        pointer = self.device.allocate(data.nbytes)
        self.device.upload(pointer, data)
        return pointer


#: Share of the sum of absolute terms by which a result may be off.
_TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 5e-3, "int32": 0.0}
_BITS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "tfloat32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int32": np.dtype(np.int32),
}


def _bytes(argument: dict[str, Any]) -> int:
    size = 2 if argument["dtype"] == "bfloat16" else _BITS[argument["dtype"]].itemsize
    return int(np.prod(argument["shape"], dtype=np.int64)) * size


def _pointer(array: Any) -> int:
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    return int(array.data.ptr)


def _draw(argument: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Integers over their full range; floats of few bits, which every type holds exactly."""
    if argument["dtype"] in ("int8", "uint8"):
        low = -128 if argument["dtype"] == "int8" else 0
        whole: np.ndarray = rng.integers(low, low + 256, argument["shape"]).astype(np.float64)
        return whole
    values: np.ndarray = rng.integers(-128, 129, argument["shape"]) / 64.0
    return values


def _encode(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    made: np.ndarray = values.astype(_BITS[kind])
    return made


def _decode(data: np.ndarray, kind: str) -> np.ndarray:
    made: np.ndarray = data.view(_BITS[kind])
    return made


def reference(
    operator: dict[str, Any], values: dict[str, np.ndarray], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Some elements of the output: flat positions, values, sums of absolute terms."""
    extents = operator["iterations"]
    out = operator["operands"][-1]
    names = {name for index in out["indices"] for name in index["terms"]}
    size = int(np.prod([extents[n] for n in names], dtype=np.int64))
    flat = np.unique(rng.integers(0, size, _SAMPLES)) if size > _SAMPLES else np.arange(size)
    at: dict[str, np.ndarray] = {}
    for name in names:
        at[name] = flat % extents[name]
        flat = flat // extents[name]
    where = _flat(out, at)[0]
    inner = [n for n in extents if n not in names]
    total, scale = np.zeros(len(where)), np.zeros(len(where))
    for first in np.ndindex(*(extents[n] for n in inner[:-1])):
        point = at | dict(zip(inner[:-1], first, strict=True))
        point = {n: v[:, None] if isinstance(v, np.ndarray) else v for n, v in point.items()}
        if inner:
            point[inner[-1]] = np.arange(extents[inner[-1]])[None, :]
        product: Any = 1.0
        for operand in operator["operands"][:-1]:
            place, live = _flat(operand, point)
            read = values[operand["tensor"]].reshape(-1)[np.where(live, place, 0)]
            product = product * np.where(live, read, 0.0)
        product = np.broadcast_to(product, (len(where), extents[inner[-1]] if inner else 1))
        total += product.sum(axis=1)
        scale += np.abs(product).sum(axis=1)
    return where, total, scale


def _flat(operand: dict[str, Any], at: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Flat position of an element, and whether it lies inside the tensor."""
    place: Any = 0
    live: Any = True
    for index, size in zip(operand["indices"], operand["shape"], strict=True):
        value: Any = index["constant"]
        for name, factor in index["terms"].items():
            value = value + at[name] * factor
        live = live & (value >= 0) & (value < size)
        place = place * size + value
    return np.asarray(place), np.asarray(live)


def _machine_code(folder: Path, capability: int) -> bytes:
    """What the driver loads: machine code for this GPU, or PTX that it compiles itself."""
    source = folder / "kernel.cu"
    if nvcc := shutil.which("nvcc"):
        with tempfile.TemporaryDirectory() as made:
            cubin = Path(made, "kernel.cubin")
            command = [nvcc, "-std=c++17", f"-arch=sm_{capability}", "-cubin", "-o", str(cubin)]
            done = subprocess.run([*command, str(source)], capture_output=True, text=True)
            if not done.returncode:
                return cubin.read_bytes()
    ptx = folder / "kernel.ptx"
    if ptx.exists():
        return ptx.read_bytes() + b"\0"
    raise KernelError(f"{folder}: there is neither nvcc here nor kernel.ptx in the folder")


def main(arguments: list[str]) -> int:
    """Check and time the kernel of a folder."""
    try:
        kernel = Kernel(arguments[0] if arguments else Path(__file__).parent)
        found = kernel.check()
        seconds = statistics.median(kernel.times())
    except KernelError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    rate = kernel.launch["operations"] / seconds / 1e12
    sys.stdout.write(
        f"{kernel.launch['kernel']} on {kernel.device.name}: "
        f"{'right' if found['correct'] else 'WRONG'} in {found['elements']} elements, "
        f"largest difference {found['largest_difference']:g}, "
        f"{seconds * 1e6:.2f} us, {rate:.2f} Top/s\n"
    )
    return 0 if found["correct"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
