"""Algorithm 1 on the matrices of Figure 4, and its batch form."""

from __future__ import annotations

from time import thread_time

import numpy as np
import pytest

from amos.errors import MappingError
from amos.validate import algorithm_1, algorithm_1_batch, holds_on_matched

# Columns n k p q c r s; rows image, weight, out.
X = np.array([[1, 0, 1, 1, 1, 1, 1], [0, 1, 0, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
# Columns i1 i2 r1; rows Src1, Src2, Dst.
Z = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 0]])
FIGURE_4 = np.array([[1, 0, 1, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1]])


def test_figure_4_is_valid() -> None:
    assert algorithm_1(X, FIGURE_4, Z)
    assert holds_on_matched(X, FIGURE_4, Z)


def test_n_and_k_in_one_group_are_wrong() -> None:
    wrong = FIGURE_4.copy()
    wrong[:2, 1] = 1, 0
    assert not algorithm_1(X, wrong, Z)
    assert not holds_on_matched(X, wrong, Z)


def test_an_unmatched_iteration_is_refused_by_the_letter_only() -> None:
    some = FIGURE_4.copy()
    some[:, 6] = 0
    assert not algorithm_1(X, some, Z)
    assert holds_on_matched(X, some, Z)


def test_counts_over_all_candidates() -> None:
    """49 of the 4^7 matchings pass on matched iterations with no group empty."""
    targets = np.indices([4] * 7).reshape(7, -1).T
    batch = np.stack([targets == t for t in range(3)], axis=1)
    full = np.all(batch.any(axis=2), axis=1)
    assert algorithm_1_batch(X, batch, Z, matched=True)[full].sum() == 49
    assert algorithm_1_batch(X, batch, Z).sum() == 1


def literal(x: np.ndarray, y: np.ndarray, z: np.ndarray, matched: bool) -> bool:
    """Algorithm 1, element by element."""
    (operands, steps), software = z.shape, x.shape[1]
    return all(
        any(z[m, t] and y[t, s] for t in range(steps)) == x[m, s]
        for m in range(operands) for s in range(software) if y[:, s].any() or not matched
    ) and all(
        any(x[m, s] and y[t, s] for s in range(software)) == z[m, t]
        for m in range(operands) for t in range(steps) if y[t].any() or not matched
    )  # fmt: skip


@pytest.mark.parametrize("software", [3, 9])
def test_matrices_agree_with_elements(software: int) -> None:
    rng = np.random.default_rng(software)
    x, z = rng.random((3, software)) < 0.5, rng.random((3, 4)) < 0.5
    y = rng.random((500, 4, software)) < 0.3
    # Some that hold: send each iteration where the column of Z is its own.
    y[::2] &= np.all(z.T[:, :, None] == x[None], axis=1)
    for matched, one_by_one in ((False, algorithm_1), (True, holds_on_matched)):
        batch = list(algorithm_1_batch(x, y, z, matched=matched))
        assert batch == [literal(x, matching, z, matched) for matching in y]
        assert batch == [one_by_one(x, matching, z) for matching in y]
    assert any(batch)


def test_a_million_matchings_a_second() -> None:
    y = np.random.default_rng(0).random((300_000, 3, 7)) < 0.2
    best = np.inf
    for _ in range(3):
        start = thread_time()
        algorithm_1_batch(X, y, Z, matched=True)
        best = min(best, thread_time() - start)
    assert best < 0.3


@pytest.mark.parametrize(
    ("x", "y", "z", "message"),
    [
        (X[:, :6], FIGURE_4, Z, "do not fit"),
        (X, FIGURE_4[:2], Z, "do not fit"),
        (X * 2, FIGURE_4, Z, "zeros and ones"),
        (X, FIGURE_4[0], Z, "2 dimensions"),
        (X, [[1], [1, 0]], Z, "matrix Y"),
    ],
)
def test_bad_matrices(x: object, y: object, z: object, message: str) -> None:
    with pytest.raises(MappingError, match=message):
        algorithm_1(x, y, z)
