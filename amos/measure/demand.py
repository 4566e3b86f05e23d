"""What checking a kernel asks of a machine, known before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from amos.errors import MeasureError
from amos.ir import Operator, Tensor, dtype

__all__ = ["Demand"]

#: Multiply-adds that NumPy does in a second, in products of float64 matrices on one core.
_RATE = 1e10
#: Bytes of an element while the reference is computed, at the least.
_WORKING = 4


@dataclass(frozen=True)
class Demand:
    """What the inputs of an operator, its result and NumPy's reference take.

    Attributes:
        bytes: of memory, at the least.
        seconds: that computing the reference takes, roughly.
    """

    bytes: int
    seconds: float

    @staticmethod
    def of(op: Operator) -> Demand:
        """The demand of an operator; an open dtype counts as float32."""
        read = {load.tensor.name: load.tensor for load in op.sources}
        result = op.result
        # The reference works on wider copies, and on a sum for each point of the output.
        working = sum(prod(x.shape) for x in read.values()) + prod(x.extent for x in op.spatial)
        held = sum(_size(x) for x in op.inputs) + 2 * _size(result)
        largest = max(held, held - _size(result) + _WORKING * working)
        return Demand(largest, op.points / _RATE)

    def check(self, op: Operator, memory: int) -> None:
        """Raise if there is less memory than that; 0 is no limit.

        Raises:
            MeasureError: there is.
        """
        if 0 < memory < self.bytes:
            raise MeasureError(
                f"{op.name}: inputs, result and NumPy's reference take at least "
                f"{_gib(self.bytes)}, and a candidate may have {_gib(memory)} of memory"
            )


def _size(tensor: Tensor) -> int:
    return prod(tensor.shape) * dtype(tensor.dtype or "float32").numpy.itemsize


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB"
