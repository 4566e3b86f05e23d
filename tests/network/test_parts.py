"""Which parts of a network are rounded within a budget."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from amos.network.precision.frontier import Errors
from amos.network.precision.parts import Part, select_parts, select_places
from amos.network.precision.variants import Places


def _parts(saved: Sequence[float], errors: Sequence[float]) -> list[Part]:
    return [Part((("", n),), *each) for n, each in enumerate(zip(saved, errors, strict=True))]


class _Products:
    """Variants of products whose errors are known.

    Args:
        errors: of each product alone.
        factor: of the errors of several, over the root of the sum of their squares.
    """

    def __init__(self, errors: Sequence[float], factor: float = 1.0) -> None:
        self.errors, self.factor, self.measured = errors, factor, 0
        self.saved = {("", n): 1.0 + 0.01 * n for n in range(len(errors))}

    def sensitivity(self, places: Places) -> float:
        return math.hypot(*(self.errors[n] for _, n in places))

    def sensitivities(self, parts: Sequence[Places]) -> list[float]:
        return [self.sensitivity(places) for places in parts]

    def measure_errors(self, places: Places) -> Errors:
        self.measured += 1
        return Errors(self.factor * self.sensitivity(places))

    def select(self, budget: float) -> set[int]:
        """Places within the budget."""
        variants: Any = self
        selected = select_places(variants, budget, lambda errors: errors.choosing / budget)
        if selected is None:
            return set()
        places, errors = selected
        assert errors.choosing == self.factor * self.sensitivity(places) <= budget
        return {n for _, n in places}


@pytest.mark.parametrize("seed", range(5))
def test_what_is_selected_saves_most_within_the_budget(seed: int) -> None:
    rng = np.random.default_rng(seed)
    places, saved, errors, budget = range(8), rng.random(8), rng.random(8), 0.8
    subsets = (
        each for count in range(9) for each in itertools.combinations(places, count)
        if sum(errors[p] ** 2 for p in each) <= budget**2
    )  # fmt: skip
    best = max(sum(saved[p] for p in each) for each in subsets)
    chosen = select_parts(_parts(saved.tolist(), errors.tolist()), budget)
    assert sum(errors[p] ** 2 for p in chosen) <= budget**2
    assert sum(saved[p] for p in chosen) == pytest.approx(best)


def test_no_product_fits_an_empty_budget() -> None:
    assert not select_parts(_parts([1.0], [1e-9]), 0.0)
    assert not _Products([0.1] * 5).select(0.0)


@pytest.mark.parametrize(("factor", "count"), [(1.0, 4), (0.5, 10), (2.0, 1)])
def test_the_errors_of_the_whole_decide(factor: float, count: int) -> None:
    """They may be smaller than those of independent ones, or larger."""
    assert len(_Products([0.1] * 10, factor).select(0.2)) == count


def test_a_product_that_errs_most_is_parted_from_others() -> None:
    errors = [0.001] * 48
    errors[13] = 1.0
    assert _Products(errors).select(0.01) == {*range(48)} - {13}


def test_nothing_fits_where_each_product_errs_more() -> None:
    products = _Products([0.1] * 30)
    assert not products.select(0.05) and not products.measured


def test_gains_of_accuracy_and_infinite_errors_are_no_fault() -> None:
    products = _Products([0.2] * 30)
    usual = products.sensitivity
    products.sensitivity = lambda places: -usual(places)  # type: ignore[method-assign]
    products.factor = -1.0
    assert products.select(0.5)
    assert not _Products([math.inf] * 30).select(0.5)
    assert select_parts(_parts([1.0, 1.0], [-0.2, 1e-12]), 1e-10) == {1}
