"""NumPy arrays to TVM's and back, also of types that NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from amos._toolchain import load_tvm
from amos.ir.floats import pack, unpack

__all__ = ["from_tensor", "to_tensor"]


def to_tensor(array: np.ndarray, kind: str) -> Any:
    """A TVM array of dtype ``kind``; bfloat16 is given in its container, float32."""
    load_tvm()
    import tvm

    if kind != "bfloat16":
        return tvm.runtime.tensor(np.ascontiguousarray(array))
    # A dependency of TVM, and the type that its arrays know bfloat16 by.
    import ml_dtypes

    bits = pack(array, kind).view(np.uint16).reshape(array.shape)
    return tvm.runtime.tensor(bits.view(ml_dtypes.bfloat16))


def from_tensor(tensor: Any, kind: str) -> np.ndarray:
    """The values of a TVM array, in the dtype's container."""
    array: np.ndarray = tensor.numpy()
    if kind != "bfloat16":
        return array
    return unpack(np.ascontiguousarray(array).reshape(-1).view(np.uint8), kind, array.shape)
