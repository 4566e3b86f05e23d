"""Comparisons of results with those of another program."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amos._display import several
from amos.measure.reference import compare_arrays

#: Tolerances relative to the largest element, for sums in another order and in the dtype of the
#: results; and the least size of that element, as sums that cancel leave rounding errors.
_EXACT, _RELATIVE, _SMALL = 1e-3, {"float16": 2e-2, "bfloat16": 1e-1}, 1e-2
#: Relative 2-norm from which on a quantized network's difference is a fault: levels of 8 bits that
#: are rounded differently change the results of all layers that follow.
_ROUNDED_APART = 0.25


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
    def may_be_rounded_apart(self) -> bool:
        """Whether levels of 8 bits that are rounded differently can explain the difference."""
        return bool(np.isfinite(self.difference)) and self.share <= _ROUNDED_APART

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


def summarize_checks(checks: Sequence[Check]) -> list[str]:
    """Describe comparisons: those of kernels that are right in one line, each other in its own."""
    passing = [each for each in checks if each.reference == "NumPy" and each.passed]
    lines = [str(each) for each in checks if each not in passing]
    if passing:
        worst = max(passing, key=lambda check: check.excess)
        count, share = several(len(passing), "kernel"), f"{worst.excess:.2g}"
        lines.insert(0, f"{count}: at most {share} of the allowed difference from NumPy")
    return lines


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
    share = relative_norm(result, expected) if expected.any() else 0.0
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


def relative_norm(result: np.ndarray, expected: np.ndarray) -> float:
    """Return the 2-norm of a difference over that of what is expected.

    Integers count as numbers. What is not finite has to be the same on both sides, or the norm is
    infinite; so have strings.
    """
    if expected.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(result, expected) else math.inf
    value, exact = result.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(exact)
    same = np.array_equal(value[~finite], exact[~finite], equal_nan=True)
    if not same or not np.isfinite(value[finite]).all():
        return math.inf
    exact = exact[finite]
    size, difference = _norm(exact), _norm(value[finite] - exact)
    return difference / size if size else difference


def _norm(values: np.ndarray) -> float:
    """Return the 2-norm; NumPy's own waits for cores on which onnxruntime's threads spin."""
    with np.errstate(over="ignore"):
        return math.sqrt(np.square(values).sum())
