"""Rounding or quantizing some of the products: which parts of a network.

Products are divided into parts. Each part's error is measured where it alone is changed, several
at a time; its time is predicted. Errors of several are taken to be independent, so their squares
add up: of all combinations of parts within an allowed error, the one is selected that saves most
time. Of parts that are left out those that would save most are halved, as a single product may
spoil its part. Then the errors of the whole are measured, and what is allowed is scaled by how far
these are from the budget, down or up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from amos.network.precision.frontier import Errors, Variant
from amos.network.precision.variants import Places, Variants

#: Parts at first, in the order of the graph, and how many are halved.
_PARTS, _HALVED = 8, 8
#: Share of a part's error up to which one half leaves the rest of the squares to the other one.
_CLEAR = 0.8
#: How often the whole is measured, and the share of the budget that is enough.
_ATTEMPTS, _ENOUGH = 6, 0.92
#: Share of the budget to which errors count at least: what hardly errs allows no more than this.
_LEAST_USE = 0.1


class Products(Protocol):
    """Products of a network that can be changed, each by itself."""

    @property
    def saved(self) -> Mapping[tuple[str, int], float]:
        """Seconds that each change is predicted to save."""

    def sensitivities(self, parts: Sequence[Places]) -> list[float]:
        """Measure errors of the first sample where only one part is changed, for each."""

    def measure_errors(self, places: Places) -> Errors:
        """Measure the errors of all samples where some products are changed."""


class QuantizedProducts:
    """Products that are quantized to 8 bits; their places are counted in the quantizer's model.

    Args:
        variants: of the network.
        whole: where all operators are quantized. What that saves is divided among the products
            by their multiplications.
    """

    def __init__(self, variants: Variants, whole: Variant) -> None:
        self._variants, self._quantizer = variants, variants.quantizer
        self._names = [*self._quantizer.products]
        self._all_saved = variants.plain.predicted_seconds - whole.predicted_seconds

    @cached_property
    def saved(self) -> dict[tuple[str, int], float]:
        """Seconds that each product saves."""
        counts = self._quantizer.products.values()
        share = self._all_saved / max(sum(counts), 1.0)
        return {("", place): share * count for place, count in enumerate(counts)}

    def sensitivities(self, parts: Sequence[Places]) -> list[float]:
        """Measure errors of the first sample where only one part is quantized."""
        return self._variants.measure_parts(self._model_of, parts)

    def measure_errors(self, places: Places) -> Errors:
        """Measure the errors of all samples where only some products are quantized."""
        return self._variants.measure_model(self._model_of(places))

    def quantize(self, places: Places, errors: Errors) -> Variant:
        """Return the variant with some products quantized."""
        return self._variants.quantize_products(self._names_at(places), errors)

    def _model_of(self, places: Places) -> object:
        return self._quantizer.model_of(self._names_at(places))

    def _names_at(self, places: Places) -> list[str]:
        return [self._names[place] for _, place in places]


@dataclass(frozen=True)
class Part:
    """Some of the products.

    Attributes:
        saved: predicted seconds that its change saves.
        error: where it alone is changed.
    """

    places: Places
    saved: float
    error: float


def select_places(
    products: Products, budget: float, use: Callable[[Errors], float]
) -> tuple[Places, Errors] | None:
    """Select the products whose change saves most time within a budget.

    Args:
        budget: that a single part may take.
        use: share of the budget that errors of the whole take; what fits is at most 1.

    Returns:
        their places, and the errors where they are changed; ``None`` where nothing fits.
    """
    parts = _measure_parts(products, budget)
    best: tuple[Places, Errors] | None = None
    most_saved, tried, allowed = 0.0, set[frozenset[int]](), budget
    for _ in range(_ATTEMPTS):
        selected = select_parts(parts, allowed)
        if not selected or selected in tried:
            break
        tried.add(selected)
        places = tuple(at for n in sorted(selected) for at in parts[n].places)
        errors = products.measure_errors(places)
        saved, used = sum(parts[n].saved for n in selected), use(errors)
        if used <= 1 and saved > most_saved:
            best, most_saved = (places, errors), saved
        if _ENOUGH <= used <= 1:
            break
        allowed = math.hypot(*(parts[n].error for n in selected)) / max(used, _LEAST_USE)
    return best


def _measure_parts(products: Products, budget: float) -> list[Part]:
    """Divide the products into parts with their errors."""
    places = tuple(products.saved)
    size = math.ceil(len(places) / _PARTS)
    begins = range(0, len(places), size)
    parts = _measure_each(products, [places[begin : begin + size] for begin in begins])
    for _ in range(_HALVED):
        selected = select_parts(parts, budget)
        left_out = [n for n, each in enumerate(parts) if n not in selected and len(each.places) > 1]
        if not left_out:
            break
        n = max(left_out, key=lambda n: parts[n].saved)
        parts[n : n + 1] = _halve(products, parts[n])
    return parts


def _measure_each(products: Products, parts: Sequence[Places]) -> list[Part]:
    errors = products.sensitivities(parts)
    saved = (sum(map(products.saved.__getitem__, places)) for places in parts)
    return [Part(*each) for each in zip(parts, saved, errors, strict=True)]


def _halve(products: Products, whole: Part) -> Sequence[Part]:
    """Halve a part; the second error follows from the first one, unless that is nearly all."""
    middle = len(whole.places) // 2
    (first,) = _measure_each(products, [whole.places[:middle]])
    if abs(first.error) >= _CLEAR * abs(whole.error):  # a loss of accuracy may be negative
        return first, *_measure_each(products, [whole.places[middle:]])
    error = math.sqrt(whole.error**2 - first.error**2)
    return first, Part(whole.places[middle:], whole.saved - first.saved, error)


def select_parts(parts: Sequence[Part], budget: float) -> frozenset[int]:
    """Select the parts that save most time, whose squared errors add up to the budget's."""
    fitting = [n for n, each in enumerate(parts) if abs(each.error) <= budget]
    if not fitting or not budget:
        return frozenset()
    squares, saved = np.zeros(1), np.zeros(1)  # of all combinations, whose numbers are binary
    for n in fitting:
        squares = np.append(squares, squares + (parts[n].error / budget) ** 2)
        saved = np.append(saved, saved + parts[n].saved)
    best = int(np.where(squares <= 1, saved, -1).argmax())
    return frozenset(n for bit, n in enumerate(fitting) if best >> bit & 1)
