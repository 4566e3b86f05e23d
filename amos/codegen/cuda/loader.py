"""Load, check and time exported CUDA kernels: NumPy and the NVIDIA driver are enough.

This file is copied beside every exported kernel, with ``driver.py``. Used from
Python it launches the kernel on the arrays of CuPy or PyTorch::

    kernel = Kernel("folder")
    kernel(image, weight, out)      # anything with data_ptr() or data.ptr, on the GPU

and as a program, ``python load.py [FOLDER]``, it checks the kernel and times it.
Machine code is made on the machine itself by nvcc, or else by the driver from
``kernel.ptx``. PyTorch's types are taken as they are; CuPy has no bfloat16 and no
eight-bit floats, whose bit patterns it holds as ``uint16`` and ``uint8``.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from amos.codegen.cuda.driver import Device, KernelError, address, machine_code, misfit

__all__ = ["Device", "Kernel", "KernelError", "read_launch", "reference"]

#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the CUDA driver API.
_DYNAMIC_SHARED = 8
#: Shared memory that a launch may ask for without opting in.
_STATIC_LIMIT = 48 * 1024
#: Output elements that are compared.
_SAMPLES = 4096
#: Milliseconds that one timing spans at least.
_SPAN = 5.0


class Kernel:
    """One kernel on a GPU.

    Args:
        folder: with ``kernel.cu`` and ``launch.json``; of a kernel that is in no folder
            what messages call it.
        device: the GPU; the first one by default.
        launch: what ``launch.json`` would say.
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
        image = image or machine_code(self.folder, self.device.capability)
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self.device.call("cuModuleLoadData", ctypes.byref(self._module), image)
        self.device.call(
            "cuModuleGetFunction", ctypes.byref(self._function), self._module,
            self.launch["kernel"].encode(),
        )  # fmt: skip
        if (dynamic := self.launch["dynamic_shared_bytes"]) > _STATIC_LIMIT:
            self.device.call("cuFuncSetAttribute", self._function, _DYNAMIC_SHARED, dynamic)

    def unload(self) -> None:
        """Give the module back."""
        self.device.call("cuModuleUnload", self._module)

    def __call__(self, *arrays: Any, stream: int = 0) -> None:
        """Launch on arrays of the GPU: the inputs in order, then the output.

        Raises:
            KernelError: an array is missing, or has another type, shape or order.
        """
        wanted = self.launch["arguments"]
        if len(arrays) != len(wanted):
            names = ", ".join(a["name"] for a in wanted)
            raise KernelError(
                f"{self.launch['kernel']}: expected {names}, got {len(arrays)} arrays"
            )
        for argument, array in zip(wanted, arrays, strict=True):
            if problem := misfit(argument, array):
                raise KernelError(f"{self.launch['kernel']}: {argument['name']}: {problem}")
        self.run([ctypes.c_uint64(address(a)) for a in arrays], stream)

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

    def compute(self, inputs: list[np.ndarray]) -> np.ndarray:
        """Run once on arrays of the host.

        Args:
            inputs: bit patterns of each input as the GPU reads them, of any shape.

        Returns:
            the bytes of the output, which were not zero before unless the kernel asks
            for that.
        """
        made = np.full(_bytes(self.launch["arguments"][-1]), 0xCD, np.uint8)
        pointers: list[ctypes.c_uint64] = []
        try:
            for data in (*map(np.ascontiguousarray, inputs), made):
                pointers.append(self.device.allocate(data.nbytes))
                self.device.upload(pointers[-1], data)
            self.run(pointers)
            self.device.call("cuCtxSynchronize")
            self.device.download(made, pointers[-1])
        finally:
            for pointer in pointers:
                self.device.free(pointer)
        return made

    def check(self, seed: int = 0) -> dict[str, Any]:
        """Run on random data, and compare some elements of the output with NumPy.

        Returns:
            ``correct``, ``largest_difference`` and the number of ``elements`` compared.
        """
        rng = np.random.default_rng(seed)
        *inputs, out = self.launch["arguments"]
        values = {a["name"]: _draw(a, rng) for a in inputs}
        made = self.compute([_encode(values[a["name"]], a["dtype"]) for a in inputs])
        got = _decode(made, out["dtype"]).astype(np.float64)
        where, expected, scale = reference(self.launch["operator"], values, rng)
        difference = np.abs(got[where] - expected)
        difference[~np.isfinite(got[where])] = np.inf
        allowed = scale * _tolerance(inputs, out)
        return {
            "correct": bool((difference <= allowed).all()),
            "largest_difference": float(difference.max()),
            "elements": len(where),
        }

    def times(
        self, repeat: int = 20, flush: int = 0, inputs: list[np.ndarray] | None = None
    ) -> list[float]:
        """Seconds of one launch, several times, measured by events of the GPU.

        Args:
            repeat: how many timings. Without ``flush`` each is the mean of a span of
                launches that find in the cache what the one before has left.
            flush: bytes that are overwritten before each timing, which then is that of
                a single launch. Events resolve about half a microsecond.
            inputs: bit patterns of each input; random ones by default. Zeros would
                take less power, and less time.
        """
        *described, out = self.launch["arguments"]
        if inputs is None:
            rng = np.random.default_rng(0)
            inputs = [_encode(_draw(a, rng), a["dtype"]) for a in described]
        pointers: list[ctypes.c_uint64] = []
        events = [ctypes.c_void_p(), ctypes.c_void_p()]
        try:
            for data in map(np.ascontiguousarray, inputs):
                pointers.append(self.device.allocate(data.nbytes))
                self.device.upload(pointers[-1], data)
            pointers.append(self.device.allocate(_bytes(out)))
            self._fill(pointers[-1], _bytes(out))
            for event in events:
                self.device.call("cuEventCreate", ctypes.byref(event), 0)
            once = self._span(pointers, events, 3) / 3
            if flush:
                pointers.append(self.device.allocate(flush))
                spans = [self._cold(pointers, events, flush) for _ in range(repeat)]
            else:
                count = max(1, min(10000, int(_SPAN / max(once, 1e-4))))
                spans = [self._span(pointers, events, count) / count for _ in range(repeat)]
            return [span / 1e3 for span in spans]
        finally:
            for event in filter(None, events):
                self.device.call("cuEventDestroy_v2", event)
            for pointer in pointers:
                self.device.free(pointer)

    def _fill(self, pointer: ctypes.c_uint64, size: int) -> None:
        self.device.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(size))

    def _cold(
        self, pointers: list[ctypes.c_uint64], events: list[ctypes.c_void_p], flush: int
    ) -> float:
        """Milliseconds of one launch after so many bytes, the last tensor, were overwritten."""
        self._fill(pointers[-1], flush)
        return self._span(pointers[:-1], events, 1)

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


#: Share of the sum of absolute terms by which a result may be off, by its type.
_TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 5e-3, "int32": 0.0}
#: The same for sources of eight bits: their sums keep about 14 bits (see the intrinsic).
_EIGHT_BITS = 2e-3
#: What holds the bit pattern of an element.
_BITS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
    "tfloat32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int32": np.dtype(np.int32),
    "float8_e4m3": np.dtype(np.uint8),
    "float8_e5m2": np.dtype(np.uint8),
}
#: Bits after the point and exponent's bias of an eight-bit float.
_EIGHT = {"float8_e4m3": (3, 7), "float8_e5m2": (2, 15)}


def read_launch(folder: Path) -> dict[str, Any]:
    """What ``launch.json`` says of a folder's kernel.

    Raises:
        KernelError: there is none, or it is damaged.
    """
    try:
        launch: dict[str, Any] = json.loads((folder / "launch.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KernelError(f"{folder}: no launch.json that can be read: {error}") from None
    return launch


def _bytes(argument: dict[str, Any]) -> int:
    return int(np.prod(argument["shape"], dtype=np.int64)) * _BITS[argument["dtype"]].itemsize


def _tolerance(inputs: list[dict[str, Any]], out: dict[str, Any]) -> float:
    if any(argument["dtype"] in _EIGHT for argument in inputs):
        return _EIGHT_BITS
    return _TOLERANCE[out["dtype"]]


def _draw(argument: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """Integers over their full range; floats of few bits, which every type holds exactly."""
    kind, shape = argument["dtype"], argument["shape"]
    if kind in ("int8", "uint8"):
        low = -128 if kind == "int8" else 0
        whole: np.ndarray = rng.integers(low, low + 256, shape).astype(np.float64)
        return whole
    if kind in _EIGHT:
        return np.asarray(rng.integers(-4, 5, shape) / 4.0)
    values: np.ndarray = rng.integers(-128, 129, shape) / 64.0
    return values


def _encode(values: np.ndarray, kind: str) -> np.ndarray:
    """Bit patterns of values that the type holds exactly."""
    if kind == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if kind in _EIGHT:
        bits, bias = _EIGHT[kind]
        size = np.abs(values)
        exponent = np.maximum(np.frexp(size)[1] - 1, 1 - bias)
        steps = np.rint(size / np.ldexp(1.0, exponent - bits)).astype(np.int64)
        # A normal number's leading one and a subnormal's zero fall out of one formula.
        code = ((exponent + bias - 1) << bits) + steps
        code = np.where(size > 0, code, 0)
        return np.asarray(code + (np.signbit(values).astype(np.int64) << 7)).astype(np.uint8)
    made: np.ndarray = values.astype(_BITS[kind])
    return made


def _decode(data: np.ndarray, kind: str) -> np.ndarray:
    if kind == "bfloat16":
        wide: np.ndarray = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return wide
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
