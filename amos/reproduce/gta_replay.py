"""A search replayed on measured samples of a task, on the mappings that it retains (GTA).

Stored measurements replace the machine, so that the result is the same everywhere. A batch
takes the candidates of the retained mappings that the corrected model ranks first, and sometimes
a random one; without a model, all are random, and a mapping counts as the best until it was
measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from amos.explore.guided import EPSILON
from amos.explore.objective import corrections
from amos.explore.retention import select_retained

#: Candidates between two looks at the results, unless a scheduler looks more often.
BATCH = 4


def replay_search(
    names: Sequence[str],
    measured: np.ndarray,
    rate: float,
    seed: int | Sequence[int],
    predicted: np.ndarray | None,
    batch: int = BATCH,
) -> Iterator[int]:
    """Yield the samples in the order in which a search measures them.

    Args:
        rate: share of the mappings that is retained.
        predicted: seconds of each by the model; ``None`` to search without.
    """
    rng, order = np.random.default_rng(seed), list[int]()
    chance = rng.permutation(len(names)).astype(float) if predicted is None else None
    while len(order) < len(names):
        best: dict[str, float] = {}
        for n in order:
            best[names[n]] = min(best.get(names[n], math.inf), float(measured[n]))
        if chance is None:
            assert predicted is not None
            scores = _correct(names, measured, predicted, order)
            seconds = dict.fromkeys(names, math.inf)
            for n, name in enumerate(names):
                seconds[name] = min(seconds[name], float(scores[n]))
        else:
            scores, seconds = chance, dict.fromkeys(names, min(best.values(), default=1.0))
        retained_names = select_retained(seconds | best, Counter(names[n] for n in order), rate)
        remaining = [int(n) for n in np.argsort(scores) if n not in order]
        ranked = [n for n in remaining if names[n] in retained_names] + [
            n for n in remaining if names[n] not in retained_names
        ]
        for _ in range(min(batch, len(remaining))):
            is_random = rng.random() < EPSILON
            order.append(ranked.pop(int(rng.integers(len(ranked))) if is_random else 0))
            yield order[-1]


def _correct(
    names: Sequence[str], measured: np.ndarray, predicted: np.ndarray, order: Sequence[int]
) -> np.ndarray:
    """Correct predicted seconds by the model's error for each mapping so far."""
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for n in order:
        ratios[names[n]].append(math.log(measured[n] / predicted[n]))
    factors = corrections(ratios)
    corrected: np.ndarray = predicted * np.array([factors[name] for name in names])
    return corrected
