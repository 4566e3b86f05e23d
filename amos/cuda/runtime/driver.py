"""NVIDIA's driver as far as kernels need it, through ``ctypes``, and nvcc for it.

This file is copied beside every exported kernel. As a program, ``python driver.py
[LIBRARY]``, it prints which GPU is there: a process of its own asks, since one that has
begun with CUDA can no longer fork workers that use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

#: CUdevice_attribute of the CUDA driver API.
_L2, _MAJOR, _MINOR, _SHARED = 38, 75, 76, 97
#: Names of types that PyTorch and CuPy spell otherwise.
_NAMES = {
    "bfloat16": ("bfloat16", "uint16"),
    "tfloat32": ("float32",),
    "float8_e4m3": ("float8_e4m3fn", "uint8"),
    "float8_e5m2": ("float8_e5m2", "uint8"),
}


class KernelError(RuntimeError):
    """A kernel cannot be loaded or run here."""


class Device:
    """The first GPU, in its primary context, which CuPy and PyTorch share; KernelError without."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        try:
            self._driver = ctypes.CDLL(library)
        except OSError:
            raise KernelError(f"there is no NVIDIA driver here ({library})") from None
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context
        self.enter()
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, device)
        #: Name of the GPU.
        self.name = name.value.decode()
        numbers = []
        for attribute in (_MAJOR, _MINOR, _L2, _SHARED):
            value = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            numbers.append(value.value)
        #: Compute capability, 90 for 9.0.
        self.capability = numbers[0] * 10 + numbers[1]
        #: Bytes of the cache that all multiprocessors share.
        self.cache = numbers[2]
        #: Bytes of shared memory that a block may ask for.
        self.shared = numbers[3]
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        #: Newest CUDA version that the driver knows, as ``"12.9"``.
        self.driver = f"{version.value // 1000}.{version.value % 1000 // 10}"

    def enter(self) -> None:
        """Make its context that of the calling thread; each thread has its own."""
        self.call("cuCtxSetCurrent", self._context)

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        """Make the context current for a while: PyTorch may be at work on another GPU."""
        self.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self.release("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def call(self, function: str, *arguments: Any) -> None:
        """Call the driver; raise KernelError if it returns an error."""
        status = getattr(self._driver, function)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            reason = text.value.decode() if text.value else f"error {status}"
            raise KernelError(f"{function}: {reason}")

    def release(self, function: str, *arguments: Any) -> None:
        """Call a function that gives something back.

        Behind an error of a kernel every call fails with that error, which is on its way
        already: it must not be hidden by one of cleaning up.
        """
        with contextlib.suppress(KernelError):
            self.call(function, *arguments)

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Allocate memory on the GPU."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 16)))
        return pointer

    def free(self, pointer: ctypes.c_uint64) -> None:
        """Give memory back."""
        self.release("cuMemFree_v2", pointer)

    @contextlib.contextmanager
    def holding(self, arrays: Iterable[np.ndarray]) -> Iterator[list[ctypes.c_uint64]]:
        """Hold contiguous arrays on the GPU for a while, also those that are added meanwhile."""
        pointers: list[ctypes.c_uint64] = []
        try:
            for data in arrays:
                pointers.append(self.allocate(data.nbytes))
                self.call(
                    "cuMemcpyHtoD_v2", pointers[-1], data.ctypes.data_as(ctypes.c_void_p),
                    ctypes.c_size_t(data.nbytes),
                )  # fmt: skip
            yield pointers
        finally:
            for pointer in pointers:
                self.free(pointer)

    def download(self, data: np.ndarray, pointer: ctypes.c_uint64) -> None:
        """Copy to a contiguous array from the GPU."""
        self.call(
            "cuMemcpyDtoH_v2", data.ctypes.data_as(ctypes.c_void_p), pointer,
            ctypes.c_size_t(data.nbytes),
        )  # fmt: skip


def describe_gpu(library: str = "libcuda.so.1", timeout: float | None = None) -> dict[str, Any]:
    """Describe the GPU as :func:`main` prints it, from a process that ends with its answer.

    Args:
        timeout: seconds that it may take.

    Raises:
        KernelError: there is no GPU.
        subprocess.TimeoutExpired: it takes longer.
    """
    command = [sys.executable, "-I", __file__, library]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    try:
        gpu: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines()
        raise KernelError(lines[-1] if lines else "its driver ends") from None
    return gpu


def address(array: Any) -> int:
    """Return the address of an array of PyTorch or CuPy on the GPU."""
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    return int(array.data.ptr)


def current_stream(array: Any) -> int:
    """Return the stream on which the library of an array works at present."""
    torch = hasattr(array, "data_ptr")
    library = sys.modules.get("torch" if torch else "cupy")
    if library is None:
        return 0
    if torch:  # each GPU has its own
        return int(library.cuda.current_stream(array.device).cuda_stream)
    return int(library.cuda.get_current_stream().ptr)


def _number(array: Any) -> int:
    """Return the number of the GPU that holds an array."""
    device = getattr(array, "device", None)
    number = getattr(device, "index", None)  # PyTorch
    number = getattr(device, "id", None) if number is None else number  # CuPy
    return number if isinstance(number, int) else 0


def misfit(argument: dict[str, Any], array: Any) -> str:
    """Explain why an array does not match an argument of ``launch.json``; empty if it does."""
    names = _NAMES.get(argument["dtype"], (argument["dtype"],))
    kind = str(getattr(array, "dtype", "nothing with a dtype")).removeprefix("torch.")
    shape = list(getattr(array, "shape", []))
    if kind not in names or shape != argument["shape"]:
        return f"expected {' or '.join(names)} {argument['shape']}, got {kind} {shape}"
    if not getattr(array, "is_cuda", True):
        return "expected a tensor on the GPU, got one of the host"
    if number := _number(array):
        return f"expected a tensor on the first GPU, got one on number {number}"
    ordered = array.is_contiguous() if hasattr(array, "data_ptr") else array.flags.c_contiguous
    if not ordered or address(array) % 16:
        return "expected a contiguous array that begins at a multiple of 16 bytes"
    return ""


def compile_folder(folder: Path, capability: int) -> bytes:
    """Compile a folder's kernel by nvcc and store it there; ``None`` if nvcc fails."""
    cubin = folder / f"kernel.sm_{capability}.cubin"
    source, nvcc = folder / "kernel.cu", shutil.which("nvcc")
    if cubin.exists() and cubin.stat().st_mtime >= source.stat().st_mtime:
        return cubin.read_bytes()
    if nvcc is None:
        return b""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "kernel.cubin")
        command = [nvcc, "-std=c++17", f"-arch=sm_{capability}", "-cubin", "-o", str(out)]
        if subprocess.run([*command, str(source)], capture_output=True).returncode:
            return b""
        image = out.read_bytes()
    with contextlib.suppress(OSError):  # a folder that cannot be written only costs time
        cubin.write_bytes(image)
    return image


def images(folder: Path, capability: int) -> Iterator[bytes]:
    """Yield images for the driver: machine code for this GPU, then PTX; or raise KernelError."""
    image, ptx = compile_folder(folder, capability), folder / "kernel.ptx"
    if image:
        yield image
    if ptx.exists():
        yield ptx.read_bytes() + b"\0"
    elif not image:
        raise KernelError(f"{folder}: there is neither nvcc here nor kernel.ptx in the folder")


def main(library: str = "libcuda.so.1") -> int:
    """Print the first GPU as JSON, or why there is none."""
    try:
        device = Device(library)
    except KernelError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    gpu = {"name": device.name, "capability": device.capability, "cache": device.cache}
    sys.stdout.write(json.dumps(gpu | {"driver": device.driver}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
