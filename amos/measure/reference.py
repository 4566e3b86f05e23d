"""NumPy's reference: its cost, its results, and comparison with a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from amos import validate
from amos.errors import MeasureError
from amos.ir import Operator, dtype

#: Multiply-adds that NumPy does in a second on one core, the making of inputs included.
_RATE = 5e9
#: Least bytes of an element while the reference is computed.
_WORKING = 4
#: Operators whose inputs and reference results are cached; one exploration has one.
_KEPT = 2
_SEED = 20220618
#: Distance of 1 from the next number.
STEPS = {name: float(np.finfo(name).eps) for name in ("float16", "float32", "float64")}
STEPS["bfloat16"] = 2.0**-8
#: Elements that are compared at a time.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Demand:
    """Bytes and rough seconds for inputs of an operator, its result and NumPy's reference."""

    bytes: int
    seconds: float

    @staticmethod
    def of(op: Operator) -> Demand:
        """Estimate the demand of an operator; an open dtype counts as float32."""
        read = {load.tensor.name: load.tensor for load in op.sources}
        # The reference works on wider copies, and on a sum for each point of the output.
        working = sum(prod(x.shape) for x in read.values()) + prod(x.extent for x in op.spatial)
        results = sum(each.nbytes for each in op.results)
        tensor_bytes = sum(x.nbytes for x in op.inputs) + 2 * results
        largest = max(tensor_bytes, tensor_bytes - results + _WORKING * working)
        return Demand(largest, op.points / _RATE)

    def check(self, op: Operator, memory: int) -> None:
        """Raise MeasureError if there is less memory than that; 0 is no limit."""
        if 0 < memory < self.bytes:
            raise MeasureError(
                f"{op.name}: inputs, result and NumPy's reference take at least "
                f"{_gib(self.bytes)}, and a candidate may have {_gib(memory)} of memory"
            )


class References:
    """Inputs and expected outputs, computed once for each operator."""

    def __init__(self) -> None:
        self._memo: dict[Operator, tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]] = {}

    def get(self, operator: Operator) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]:
        """Return random inputs of an operator, and its results."""
        results = self._memo.get(operator)
        if results is None:
            inputs = validate.random_inputs(operator, np.random.default_rng(_SEED))
            results = self._memo[operator] = inputs, as_tuple(validate.evaluate(operator, inputs))
            if len(self._memo) > _KEPT:
                del self._memo[next(iter(self._memo))]
        return results

    @property
    def operators(self) -> frozenset[Operator]:
        """Operators whose results are there."""
        return frozenset(self._memo)

    @property
    def bytes(self) -> int:
        """Bytes of everything that is kept."""
        arrays = [
            x for inputs, outputs in self._memo.values() for x in (*outputs, *inputs.values())
        ]
        return sum(array.nbytes for array in arrays)


def as_tuple(results: Any) -> tuple[np.ndarray, ...]:
    """Return results as a tuple, also where there is one."""
    return results if isinstance(results, tuple) else (results,)


def compare_arrays(got: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Return the largest difference, and how many elements are wrongly NaN.

    In blocks, since the arrays as floats and their differences would take many times the memory.
    """
    difference, nan_count = 0.0, 0
    for got_block, expected_block in zip(_blocks(got), _blocks(expected), strict=True):
        difference = max(difference, _difference(got_block, expected_block))
        nan_count += int(np.count_nonzero(_not_numbers(got_block) & ~_not_numbers(expected_block)))
    return difference, nan_count


def _blocks(values: np.ndarray) -> Iterator[np.ndarray]:
    flat = values.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK]


def _not_numbers(values: np.ndarray) -> np.ndarray:
    if np.issubdtype(values.dtype, np.integer):
        return np.zeros(values.shape, dtype=bool)
    return np.isnan(values.astype(np.float64))


def _difference(got: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest absolute difference; NaN against a number counts as infinite."""
    if got.size == 0:
        return 0.0
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.where(same, 0, np.where(np.isnan(distance), np.inf, distance)).max())


def tolerance(operator: Operator, expected: np.ndarray, number: int = 0) -> float:
    """Return the tolerated difference: 0 for integers, for floats the rounding errors of the sum.

    Those are of a sum as long as the reduction, and of the result. Integers that an epilogue makes
    of float sums may round to a neighbour, each of those that are added up.
    """
    if np.issubdtype(expected.dtype, np.integer):
        accumulator = operator.output.tensor.dtype or "int32"
        if dtype(accumulator).is_integer:
            return 0.0
        result = operator.further[number - 1] if number else None
        added = result is not None and result.combination == "+="
        if result is None or not added or result.combination_dtype(accumulator) == "float32":
            return 1.0
        return prod(it.extent for it in operator.spatial) / expected.size
    length = operator.points / max(1, expected.size)
    scale = max(1.0, *(_largest(block) for block in _blocks(expected)))
    accumulator = str(operator.output.tensor.dtype or expected.dtype.name)
    results = str(operator.results[number].dtype), expected.dtype.name
    stored = max(STEPS.get(kind, 0.0) for kind in results)
    summed = STEPS.get(accumulator, STEPS["float32"])
    if number and operator.further[number - 1].combination == "+=":  # results that are added up
        summed = max(summed, stored)
    return float(scale * max(summed * max(8.0, length), stored * 8.0))


def _largest(values: np.ndarray) -> float:
    """Return the largest magnitude of a finite value."""
    sizes = np.abs(values.astype(np.float64))
    return float(sizes.max(initial=0.0, where=np.isfinite(sizes)))


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB"
