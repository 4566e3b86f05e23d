"""Arrays of others as TVM arrays over the same memory, checked before anything runs.

These run at every call of a kernel, which has loaded TVM before.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from amos.codegen.tir.arrays import held, to_tensor
from amos.errors import BuildError
from amos.ir import Tensor, dtype
from amos.ir.floats import unpack

__all__ = ["ArgumentAdapter", "borrow", "values_of"]

#: DLPack's number of the device whose memory the CPU reads.
_CPU = 1


class ArgumentAdapter:
    """Takes an array for one argument of a kernel, call after call.

    What fits as it is, which an array nearly always does, is found out by a few comparisons;
    for anything else, and to say what is wrong, there is :func:`borrow`.
    """

    def __init__(
        self, tensor: Tensor, shape: tuple[int, ...], *, role: str = "input", write: bool = False
    ) -> None:
        import tvm_ffi

        self._tensor, self._shape, self._role, self._write = tensor, shape, role, write
        kind = str(tensor.dtype)
        # What a container stands for another dtype in is not taken as it is.
        plain = held(kind) == dtype(kind).numpy.name and not _limited(kind)
        self._dtype = dtype(kind).numpy if plain else None
        self._given, self._reshaped = tensor.shape, shape != tensor.shape
        self._share = tvm_ffi.from_dlpack

    def __call__(self, value: Any) -> Any:
        """A TVM array over the memory of ``value``; see :func:`borrow`."""
        if (
            type(value) is np.ndarray
            and value.dtype is self._dtype
            and value.shape == self._given
            and (flags := value.flags).c_contiguous
            and flags.writeable
        ):
            made = value.reshape(self._shape) if self._reshaped else value
            return self._share(made, require_alignment=0)
        return borrow(value, self._tensor, self._shape, role=self._role, write=self._write)


def borrow(
    value: Any, tensor: Tensor, shape: tuple[int, ...], *, role: str = "input", write: bool = False
) -> Any:
    """A TVM array over the memory of an array, as the kernel takes it.

    NumPy arrays and whatever speaks DLPack are taken as they are. NumPy has no
    bfloat16: such values may come in float32, which is converted, or as bit patterns
    in uint16, which are not.

    Args:
        value: the array.
        tensor: the operator's tensor that it stands for.
        shape: shape that the kernel takes, of as many elements.
        role: ``"input"`` or ``"output"``, for messages.
        write: whether the kernel writes to it.

    Raises:
        BuildError: wrong shape, dtype, layout or device; not writable.
    """
    where = f"{role} {tensor.name!r}"
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        found = _from_dlpack(value, tensor, where)
        kind = str(tensor.dtype)
        if _limited(kind):
            _in_range(found.numpy(), kind, where)
        return found._create_view(shape, held(kind) if held(kind) != str(found.dtype) else None)
    array = _checked(np.asarray(value), tensor, where)
    if not array.flags.c_contiguous:
        raise BuildError(
            f"{where}: expected a contiguous array, its last index fastest, got strides "
            f"{array.strides} of shape {array.shape}; numpy.ascontiguousarray makes one"
        )
    if write and not array.flags.writeable:
        raise BuildError(f"{where}: expected an array to write to, got a read-only one")
    if array.dtype != _container(str(tensor.dtype)):
        if write:
            raise BuildError(
                f"{where}: expected {tensor.dtype} as bit patterns in {held(str(tensor.dtype))}, "
                f"got {array.dtype}"
            )
        return to_tensor(array.reshape(shape), str(tensor.dtype))
    return _share(array if array.flags.writeable else _unlocked(array), shape)


def values_of(value: Any, tensor: Tensor) -> np.ndarray:
    """An input's values in the dtype's container, whatever its layout; shares memory if it can.

    Raises:
        BuildError: wrong shape, dtype or device.
    """
    where, kind = f"input {tensor.name!r}", str(tensor.dtype)
    bits: np.ndarray
    if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        compact = value.contiguous() if hasattr(value, "contiguous") else value
        found = _from_dlpack(compact, tensor, where)
        bits = _in_range(found._create_view(tensor.shape, held(kind)).numpy(), kind, where)
    else:
        bits = _checked(np.asarray(value), tensor, where)
    if kind == "bfloat16" and bits.dtype == np.uint16:
        flat = np.ascontiguousarray(bits).reshape(-1).view(np.uint8)
        return unpack(flat, kind, tensor.shape)
    return bits


@cache
def _container(kind: str) -> np.dtype[Any]:
    """NumPy's dtype of what holds the values of a dtype."""
    return np.dtype(held(kind))


def _checked(array: np.ndarray, tensor: Tensor, where: str) -> np.ndarray:
    """The array, bfloat16 of other packages as bits; an error if it is of another kind."""
    kind = str(tensor.dtype)
    if kind == "bfloat16" and array.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    wanted = [dtype(kind).numpy] + ([np.dtype(np.uint16)] if kind == "bfloat16" else [])
    if array.shape != tensor.shape or array.dtype not in wanted or not array.dtype.isnative:
        raise BuildError(
            f"{where}: expected {wanted[0]} of shape {tensor.shape}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    return _in_range(array, kind, where)


def _limited(kind: str) -> bool:
    """Whether a container has values that are none of the dtype."""
    return dtype(kind).digits > 0


def _in_range(array: np.ndarray, kind: str, where: str) -> np.ndarray:
    if _limited(kind):
        low, high = dtype(kind).limits
        if array.size and (array.min() < low or array.max() > high):
            at = tuple(int(i) for i in np.argwhere((array < low) | (array > high))[0])
            raise BuildError(
                f"{where}: expected values in [{low}, {high}], got {array[at]} at {list(at)}"
            )
    return array


def _from_dlpack(value: Any, tensor: Tensor, where: str) -> Any:
    import tvm_ffi

    device = value.__dlpack_device__()
    if int(device[0]) != _CPU:
        raise BuildError(f"{where}: expected an array in the CPU's memory, got one on {device}")
    shape = tuple(int(extent) for extent in getattr(value, "shape", tensor.shape))
    name = str(getattr(value, "dtype", "")).rpartition(".")[2]
    kind = "float32" if tensor.dtype == "tfloat32" else str(tensor.dtype)
    told = f"{where}: expected {kind} of shape {tensor.shape}"
    if shape != tensor.shape:
        raise BuildError(f"{told}, got {name} of shape {shape}")
    source = value.detach() if hasattr(value, "detach") else value
    try:
        found = tvm_ffi.from_dlpack(source, require_alignment=0)
    except (RuntimeError, BufferError, TypeError, ValueError) as error:
        raise BuildError(f"{where}: {str(error).splitlines()[0]}") from error
    if not found.is_contiguous():
        raise BuildError(
            f"{where}: expected a contiguous tensor, its last index fastest, got strides "
            f"{tuple(found.strides)} of shape {shape}; tensor.contiguous() makes one"
        )
    if str(found.dtype) != kind:
        raise BuildError(f"{told}, got {found.dtype} of shape {shape}")
    return found


def _share(array: np.ndarray, shape: tuple[int, ...]) -> Any:
    import tvm_ffi

    return tvm_ffi.from_dlpack(array.reshape(shape), require_alignment=0)


def _unlocked(array: np.ndarray) -> np.ndarray:
    """The same memory without the mark that it is read-only, which DLPack cannot express.

    Only for inputs, which kernels do not write to.
    """
    memory: Any = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    memory._owner = array  # lives as long as what is made of it
    return np.frombuffer(memory, dtype=array.dtype).reshape(array.shape)
