"""Inputs of networks: bound to their ports, checked, and drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from amos.errors import BuildError, NetworkError
from amos.ir import Tensor, dtype
from amos.network.network import Network, Port
from amos.network.shapes import BYTES
from amos.runtime.borrow import ArgumentAdapter

if TYPE_CHECKING:
    from amos.network.external.partition import PartitionedNetwork

#: Relative change of inputs by which results are tested for stability.
_PERTURBATION = 1e-6
#: dtypes that onnxruntime alone computes with, as NumPy holds them.
_EXTERNAL = {"string": np.dtype(object), "uint64": np.dtype(np.uint64)}


def bind_inputs(
    ports: Sequence[Port], arrays: tuple[Any, ...], named: Mapping[str, Any]
) -> list[Any]:
    """Return the arrays of a call in the order of the ports, or raise NetworkError."""
    if len(arrays) == len(ports) and not named:
        return [*arrays]
    names = [port.name for port in ports]
    if len(arrays) > len(names):
        raise NetworkError(f"expected {len(names)} arrays ({', '.join(names)}), got {len(arrays)}")
    values = dict(zip(names, arrays, strict=False))
    for name, array in named.items():
        if name not in names:
            raise NetworkError(f"unknown input {name!r}; inputs are {', '.join(names)}")
        if name in values:
            raise NetworkError(f"input {name!r} is given twice")
        values[name] = array
    if missing := [name for name in names if name not in values]:
        raise NetworkError(f"missing input {', '.join(missing)}")
    return [values[name] for name in names]


class CallableNetwork(ABC):
    """A compiled network that is called with its inputs, in order or by name."""

    network: Network | PartitionedNetwork

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Run the network.

        Returns:
            the output, or a tuple of them.

        Raises:
            NetworkError: an input is missing or unknown, or onnxruntime fails.
            BuildError: an input is of another shape, dtype or device.
        """
        results = self.outputs_of(bind_inputs(self.network.inputs, arrays, named))
        return results[0] if self.network.single else results

    @abstractmethod
    def outputs_of(self, arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """Run it on inputs in order; returns all outputs. Errors are those of a call."""


def random_arrays(
    network: Network | PartitionedNetwork, seed: int = 0, integers: tuple[int, int] | None = None
) -> list[np.ndarray]:
    """Draw inputs of a network: floats of a normal distribution, bytes, and integers of a range.

    Integers are by default 0 and 1, which can be indices, or 1 where some divide.
    """
    low, high = integers or (int(network.divides_integers), 1)
    rng = np.random.default_rng(seed)
    return [_random(port, rng, low, high) for port in network.inputs]


def _random(port: Port, rng: np.random.Generator, low: int, high: int) -> np.ndarray:
    kind = _numpy_dtype(port)
    if kind.kind == "O":
        return np.full(port.shape, "", object)
    if kind.kind == "f":
        return rng.standard_normal(port.shape).astype(kind)
    if port.dtype in BYTES:
        low, high = dtype(port.dtype).limits
    if kind.kind != "i":
        low, high = max(low, 0), max(high, 0)
    return rng.integers(low, high, port.shape, endpoint=True).astype(kind)


def _numpy_dtype(port: Port) -> np.dtype[Any]:
    return _EXTERNAL.get(port.dtype) or dtype(port.dtype).numpy


def perturb(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Move floats up or down by a relative 1e-6, about as far as sums in another order do."""
    rng = np.random.default_rng(0)
    return [
        (each * (1 + _PERTURBATION * rng.choice([-1, 1], each.shape))).astype(each.dtype)
        if each.dtype.kind == "f"
        else each
        for each in values
    ]


def values_of(port: Port, value: Any) -> np.ndarray:
    """Return an input as an array of NumPy; bfloat16 as float32.

    Raises:
        BuildError: it is of another shape, dtype or device.
    """
    try:
        if port.dtype in _EXTERNAL or 0 in port.shape:
            array = _external_values(port, _view_bytes(value, port.dtype))
        else:
            array = _adapter(port).values(_view_bytes(value, port.dtype))
        return array.astype(bool) if port.dtype == "bool" else array
    except (TypeError, ValueError):  # NumPy's, of lists whose parts have different lengths too
        raise BuildError(
            f"input {port.name!r}: expected {port.dtype} of shape {port.shape}, "
            f"got a {type(value).__name__} that is no array"
        ) from None


def _external_values(port: Port, value: Any) -> np.ndarray:
    """Return an input that no kernel reads: of another dtype, or without elements."""
    array, kind = np.asarray(value), _numpy_dtype(port)
    if kind.kind == "O":  # onnxruntime would take any other object for its text
        fits = all(isinstance(each, str) for each in array.flat)
    else:
        fits = array.dtype == kind
    if not fits or array.shape != port.shape:
        raise BuildError(
            f"input {port.name!r}: expected {port.dtype} of shape {port.shape}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array.astype(kind)


@lru_cache(maxsize=1024)  # to make one takes longer than some networks
def _adapter(port: Port) -> ArgumentAdapter:
    return ArgumentAdapter(Tensor(port.name, port.shape, port.dtype), port.shape)


def _view_bytes(value: Any, kind: str) -> Any:
    """Return an input with truth values as bytes, as adapters take them."""
    if kind == "bool" and np.asarray(value).dtype == np.bool_:
        return np.asarray(value).view(np.uint8)
    return value
