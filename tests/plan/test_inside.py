"""The share of points inside agrees with walking all of them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from amos.ir import Affine
from amos.plan.structure import share_inside
from tests.support.drawing.generators import drawn


@drawn(60)
def test_the_share_is_that_of_all_points(rng: np.random.Generator) -> None:
    steps = {f"x{n}": int(rng.choice([-3, -1, 1, 2, 5])) for n in range(rng.integers(0, 4))}
    extents = {name: int(rng.integers(1, 9)) for name in steps}
    index, size = Affine.of(steps, int(rng.integers(-5, 6))), int(rng.integers(1, 20))
    values = [
        index.evaluate(dict(zip(extents, point, strict=True)))
        for point in product(*map(range, extents.values()))
    ]
    expected = sum(0 <= value < size for value in values) / len(values)
    assert share_inside(index, extents, size) == expected, (index, extents, size)


def test_huge_loops_are_not_walked() -> None:
    extents = {"p": 2**50, "q": 2**40, "r": 3}
    assert share_inside(Affine.of({"p": 1, "r": 1}, -1), extents, 2**50) == pytest.approx(1)
    assert share_inside(Affine.of({"p": 1, "q": 2**10}), extents, 2**50) == pytest.approx(0.5, 0.01)
