"""The kernels of a region, values of its ports, and comparisons with other programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from amos.errors import BuildError, NetworkError
from amos.ir import Tensor, dtype
from amos.measure.reference import compare_arrays
from amos.network.groups import Job
from amos.network.kernels import TaskKernel
from amos.network.network import Network, Port
from amos.network.shapes import BYTES
from amos.runtime.borrow import ArgumentAdapter

if TYPE_CHECKING:
    from amos.network.comparison import Comparison
    from amos.network.external.partition import PartitionedNetwork

#: Tolerances relative to the largest element, for sums in another order and in the dtype of the
#: results; and the least size of that element, as sums that cancel leave rounding errors.
_EXACT, _RELATIVE, _SMALL = 1e-3, {"float16": 2e-2, "bfloat16": 1e-1}, 1e-2
#: Relative change of inputs by which results are tested for stability.
_PERTURBATION = 1e-6
#: dtypes that onnxruntime alone computes with, as NumPy holds them.
_EXTERNAL = {"string": np.dtype(object), "uint64": np.dtype(np.uint64)}


@dataclass(frozen=True)
class Check:
    """A comparison of results with a reference.

    Attributes:
        name: of the network, or of a kernel's operator.
        reference: name of the program that computed the reference.
        difference: the largest one.
        allowed: tolerance of the difference.
        spread: elements that Winograd's tiles of floats spoil, as they spread NaN and
            infinities; they are not compared.
        share: the 2-norm of all differences over that of the reference.
        accepted: why a larger difference is no fault; empty if it is one.
    """

    name: str
    reference: str
    difference: float
    allowed: float
    spread: int = 0
    share: float = 0.0
    accepted: str = ""

    @property
    def passed(self) -> bool:
        """Whether it is right."""
        return self.difference <= self.allowed

    @property
    def is_fault(self) -> bool:
        """Whether a difference is too large."""
        return not self.passed and not self.accepted

    @property
    def excess(self) -> float:
        """The difference over what is allowed."""
        if not self.difference:
            return 0.0
        return self.difference / self.allowed if self.allowed else np.inf

    def __str__(self) -> str:
        spread = f", without {self.spread} that tiles spoil" if self.spread else ""
        reason = f", but {self.accepted}" if self.accepted else ""
        return (
            f"differs from {self.reference} by {self.difference:.3g}, {self.allowed:.3g} is "
            f"allowed{spread}{reason}: {self.name}"
        )


@dataclass(frozen=True, eq=False)
class CompiledRegion:
    """The kernels of a region, which is one operator of onnxruntime.

    Attributes:
        network: that was compiled.
        kernels: of tasks and cascades.
        fallbacks: why tasks are computed by plain loops.
        checks: of kernels, with NumPy.
        comparisons: of kernels of tasks that were timed in the network.
        unused: number of records of its tasks that do not count here, by the reason.
        failures: why kernels were replaced by others or by plain loops.
        function: name of its operator.
    """

    network: Network
    kernels: Mapping[Job, TaskKernel]
    fallbacks: Mapping[Job, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    unused: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    function: str = "main"

    @property
    def spreads(self) -> bool:
        """Whether Winograd's tiles of floats may spread NaN and infinities."""
        return any(kernel.lowering.spreads for kernel in self.kernels.values())


def bind_inputs(
    ports: Sequence[Port], arrays: tuple[Any, ...], named: Mapping[str, Any]
) -> list[Any]:
    """Return the arrays of a call in the order of the ports.

    Raises:
        NetworkError: an input is missing or unknown.
    """
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


def check_results(
    name: str,
    reference: str,
    results: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    *,
    rounded: bool,
    spreads: bool = False,
    precision: str = "",
) -> Check:
    """Compare results with those of another program; return the worst difference.

    Args:
        reference: name of the other program.
        results: of the network.
        expected: of the other program.
        rounded: whether the network rounds floats to integers, which may then differ by one.
        spreads: whether Winograd's tiles may spread what is not finite.
        precision: dtype that factors of products are rounded to; of floats by default as they are.
    """
    worst, spread = Check(name, reference, 0.0, 0.0), 0
    arrays, rights = [*flatten_results(results)], [*flatten_results(expected)]
    if len(arrays) != len(rights):  # sequences, whose lengths may depend on values
        return Check(name, reference, np.inf, 0.0)
    for result, right in zip(arrays, rights, strict=True):
        if result.shape != right.shape or result.dtype != right.dtype:
            return Check(name, reference, np.inf, 0.0)
        if spreads and right.dtype.kind == "f":
            spoiled = ~np.isfinite(result) & ~np.isnan(right)
            spread += int(np.count_nonzero(spoiled & (result != right)))
            result = np.where(spoiled, right, result)
        kind = precision if precision and right.dtype.kind == "f" else str(right.dtype)
        check = _check_result(name, reference, result, right, kind, rounded)
        worst = check if check.excess >= worst.excess else worst
    return replace(worst, spread=spread)


def flatten_results(results: Sequence[Any]) -> Iterator[np.ndarray]:
    """Yield the arrays of results, of which some may be sequences or maps."""
    for result in results:
        if isinstance(result, Mapping):
            yield from (np.asarray([*each]) for each in (result, result.values()))
        elif isinstance(result, list):
            yield from flatten_results(result)
        else:
            yield np.asarray(result)


def _check_result(
    name: str, reference: str, result: np.ndarray, expected: np.ndarray, kind: str, rounded: bool
) -> Check:
    if expected.dtype.kind not in "fiub":
        return Check(name, reference, float(not np.array_equal(result, expected)), 0.0)
    difference, strange = compare_arrays(result, expected)
    limit = tolerance_of(kind, expected, rounded)
    exact, sums = expected.astype(np.float64), result.astype(np.float64)
    with np.errstate(all="ignore"):
        size = float(np.linalg.norm(np.nan_to_num(exact)))
        share = float(np.linalg.norm(np.nan_to_num(sums - exact))) / size if size else 0.0
    return Check(name, reference, np.inf if strange else difference, limit, share=share)


def tolerance_of(kind: str, expected: np.ndarray, rounded: bool) -> float:
    """Return the tolerance of a result of a dtype, relative to its largest finite element.

    Integers are exact, unless they are rounded floats, which may differ by one.
    """
    if "float" not in kind:
        return float(rounded and kind != "bool")
    sizes = np.abs(expected.astype(np.float64))
    largest = float(sizes.max(initial=_SMALL, where=np.isfinite(sizes)))
    return _RELATIVE.get(kind, _EXACT) * largest


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
    kind = _EXTERNAL.get(port.dtype) or dtype(port.dtype).numpy
    if kind.kind == "O":
        return np.full(port.shape, "", object)
    if kind.kind == "f":
        return rng.standard_normal(port.shape).astype(kind)
    if port.dtype in BYTES:
        low, high = dtype(port.dtype).limits
    if kind.kind != "i":
        low, high = max(low, 0), max(high, 0)
    return rng.integers(low, high, port.shape, endpoint=True).astype(kind)


def perturb(values: Sequence[np.ndarray], seed: int = 0) -> list[np.ndarray]:
    """Move floats up or down by a relative 1e-6, about as far as sums in another order do."""
    rng = np.random.default_rng(seed)
    return [
        (each * (1 + _PERTURBATION * rng.choice([-1, 1], each.shape))).astype(each.dtype)
        if each.dtype.kind == "f"
        else each
        for each in values
    ]


def values_of(port: Port, value: Any) -> np.ndarray:
    """Return an input as an array of NumPy: bfloat16 as float32, truth values as bytes.

    Raises:
        BuildError: it is of another shape, dtype or device.
    """
    try:
        if port.dtype in _EXTERNAL:
            return _external_values(port, value)
        return _adapter(port).values(_view_bytes(value, port.dtype))
    except ValueError:  # NumPy's, of lists whose parts have different lengths
        raise BuildError(
            f"input {port.name!r}: expected {port.dtype} of shape {port.shape}, "
            f"got a {type(value).__name__} that is no array"
        ) from None


def _external_values(port: Port, value: Any) -> np.ndarray:
    """Return an input of a dtype that no kernel has."""
    array, kind = np.asarray(value), _EXTERNAL[port.dtype]
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
