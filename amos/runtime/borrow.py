"""Arrays of others as TVM arrays over the same memory, checked before anything runs.

These run at every call of a kernel, which has loaded TVM before.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from amos._toolchain import tvm_ffi
from amos.codegen.tir.arrays import container_dtype, to_tensor
from amos.errors import BuildError
from amos.ir import Tensor, dtype
from amos.ir.floats import unpack

#: DLPack's number of the device whose memory the CPU reads.
_CPU = 1


class ArgumentAdapter:
    """Takes an array for one argument of a kernel, call after call.

    NumPy arrays and tensors that support DLPack are taken as they are. NumPy has no
    bfloat16: such values may come in float32, which is converted, or as bit patterns
    in uint16, which are not.

    Args:
        shape: shape that the kernel takes, of as many elements.
        role: ``"input"`` or ``"output"``, for messages.
        write: whether the kernel writes to it.
    """

    def __init__(
        self, tensor: Tensor, shape: tuple[int, ...], *, role: str = "input", write: bool = False
    ) -> None:
        self._tensor, self._shape, self._write = tensor, shape, write
        self._where, self._kind = f"{role} {tensor.name!r}", str(tensor.dtype)
        self._stored_dtype = np.dtype(container_dtype(self._kind))
        #: Whether the container can hold values that the dtype cannot.
        self._limited = tensor.bounds is not None
        # A container of another dtype needs a conversion.
        plain = self._stored_dtype == dtype(self._kind).numpy and not self._limited
        self._dtype = dtype(self._kind).numpy if plain else None
        self._user_shape, self._reshaped = tensor.shape, shape != tensor.shape
        self._share = tvm_ffi.from_dlpack

    def __call__(self, value: Any) -> Any:
        """Return a TVM array over the memory of ``value``, as the kernel takes it.

        Raises:
            BuildError: wrong shape, dtype, layout or device; not writable.
        """
        # A few comparisons recognise an array that fits as it is, as nearly all do.
        if (
            type(value) is np.ndarray
            and value.dtype is self._dtype
            and value.shape == self._user_shape
            and (flags := value.flags).c_contiguous
            and flags.writeable
        ):
            return self._view_array(value)
        if _speaks_dlpack(value):
            tensor = self._from_dlpack(value)
            if self._limited:
                self._check_range(tensor.numpy())
            differs = str(self._stored_dtype) != str(tensor.dtype)
            return tensor._create_view(self._shape, str(self._stored_dtype) if differs else None)
        array = self._check(np.asarray(value))
        if not array.flags.c_contiguous:
            raise BuildError(
                f"{self._where}: expected a contiguous array, its last index fastest, got strides "
                f"{array.strides} of shape {array.shape}; numpy.ascontiguousarray makes one"
            )
        if self._write and not array.flags.writeable:
            raise BuildError(f"{self._where}: expected an array to write to, got a read-only one")
        if array.dtype == self._stored_dtype:
            return self._view_array(array if array.flags.writeable else _unlock(array))
        if self._write:
            raise BuildError(
                f"{self._where}: expected {self._kind} as bit patterns in {self._stored_dtype}, "
                f"got {array.dtype}"
            )
        return to_tensor(array.reshape(self._shape), self._kind)

    def values(self, value: Any) -> np.ndarray:
        """Return the values in the dtype's container, of any layout; share memory if possible.

        Raises:
            BuildError: wrong shape, dtype or device.
        """
        bits: np.ndarray
        if _speaks_dlpack(value):
            compact = value.contiguous() if hasattr(value, "contiguous") else value
            view = self._from_dlpack(compact)._create_view(
                self._user_shape, str(self._stored_dtype)
            )
            bits = self._check_range(view.numpy())
        else:
            bits = self._check(np.asarray(value))
        if self._kind == "bfloat16" and bits.dtype == np.uint16:
            flat = np.ascontiguousarray(bits).reshape(-1).view(np.uint8)
            return unpack(flat, self._kind, self._user_shape)
        return bits

    def _view_array(self, array: np.ndarray) -> Any:
        shaped = array.reshape(self._shape) if self._reshaped else array
        return self._share(shaped, require_alignment=0)

    def _check(self, array: np.ndarray) -> np.ndarray:
        """Return an array, bfloat16 of other packages as bits; raise if it is of another kind."""
        if self._kind == "bfloat16" and array.dtype.name == "bfloat16":
            array = array.view(np.uint16)
        accepted = [dtype(self._kind).numpy]
        if self._kind == "bfloat16":
            accepted.append(self._stored_dtype)
        if (
            array.shape != self._user_shape
            or array.dtype not in accepted
            or not array.dtype.isnative
        ):
            raise BuildError(
                f"{self._where}: expected {accepted[0]} of shape {self._user_shape}, "
                f"got {array.dtype} of shape {array.shape}"
            )
        return self._check_range(array)

    def _check_range(self, array: np.ndarray) -> np.ndarray:
        """Return an array; raise if the dtype cannot hold one of its values."""
        kind = self._tensor.kind
        if self._limited and kind is not None and (violation := kind.find_violation(array)):
            raise BuildError(f"{self._where}: {violation}")
        return array

    def _from_dlpack(self, value: Any) -> Any:
        shape = tuple(int(extent) for extent in getattr(value, "shape", self._user_shape))
        name = str(getattr(value, "dtype", "")).rpartition(".")[2]
        kind = "float32" if self._kind == "tfloat32" else self._kind
        expected = f"{self._where}: expected {kind} of shape {self._user_shape}"
        if shape != self._user_shape:
            raise BuildError(f"{expected}, got {name} of shape {shape}")
        source = value.detach() if hasattr(value, "detach") else value
        try:
            device = value.__dlpack_device__()
            tensor = None if int(device[0]) != _CPU else self._share(source, require_alignment=0)
            stored = "" if tensor is None else str(tensor.dtype)
        except (RuntimeError, BufferError, TypeError, ValueError) as error:
            raise BuildError(f"{self._where}: {str(error).splitlines()[0]}") from error
        if tensor is None:
            raise BuildError(
                f"{self._where}: expected an array in the CPU's memory, got one on {device}"
            )
        if not tensor.is_contiguous():
            raise BuildError(
                f"{self._where}: expected a contiguous tensor, its last index fastest, got "
                f"strides {tuple(tensor.strides)} of shape {shape}; tensor.contiguous() makes one"
            )
        if stored != kind or tuple(tensor.shape) != shape:  # those without ``shape``
            raise BuildError(f"{expected}, got {stored} of shape {tuple(tensor.shape)}")
        return tensor


def _speaks_dlpack(value: Any) -> bool:
    return not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__")


def _unlock(array: np.ndarray) -> np.ndarray:
    """Return the same memory as writable, because DLPack cannot express read-only arrays.

    Only for inputs, which kernels do not write to.
    """
    memory: Any = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    memory._owner = array  # lives as long as its views
    return np.frombuffer(memory, dtype=array.dtype).reshape(array.shape)
