"""A mapping space as rows that can be filtered, sorted and shown in part."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from amos.explorer.state import FieldError
from amos.mapping import Mapping, MappingSpace

__all__ = ["RANKED", "Listing"]

#: Mappings of a space whose times are predicted, so that they can be ranked.
RANKED = 256

#: Mappings of a space that can be filtered and sorted; a larger one is shown as it is.
_SORTED = 50_000
#: Rows of one answer.
_ROWS = 400
_ORDERS = ("", "name", "calls", "utilization", "seconds")

#: Seconds that a mapping is predicted to take; ``None`` where no schedule fits.
Predict = Callable[[Mapping], float | None]


class Listing:
    """Rows of a mapping space.

    Args:
        space: the mappings.
    """

    def __init__(self, space: MappingSpace) -> None:
        self.space = space

    @property
    def whole(self) -> bool:
        """True if the space can be filtered and sorted."""
        return self.space.count <= _SORTED

    @cached_property
    def _names(self) -> list[str]:
        return [mapping.name for mapping in self.space]

    @cached_property
    def _assignments(self) -> np.ndarray:
        """int8, mappings × software iterations."""
        loops = len(self.space.operator.iterations)
        rows = [mapping.assignment for mapping in self.space]
        return np.array(rows, dtype=np.int8).reshape(len(rows), loops)

    @cached_property
    def _calls(self) -> np.ndarray:
        """Calls of each mapping; as floats, since they may exceed a word."""
        extents = np.array([it.extent for it in self.space.operator.iterations], dtype=float)
        given = self._assignments
        calls = np.where(given < 0, extents, 1.0).prod(axis=1)
        for t, step in enumerate(self.space.intrinsic.iterations):
            calls *= np.ceil(np.where(given == t, extents, 1.0).prod(axis=1) / step.extent)
        return np.asarray(calls)

    @cached_property
    def _utilization(self) -> np.ndarray:
        points = float(np.prod([float(it.extent) for it in self.space.intrinsic.iterations]))
        return np.asarray(float(self.space.operator.points) / (self._calls * points))

    def rows(
        self,
        first: int,
        count: int,
        *,
        words: str = "",
        least: float = 0.0,
        order: str = "",
        down: bool = False,
        predict: Predict | None = None,
    ) -> dict[str, Any]:
        """Some rows.

        Args:
            first, count: which of the rows that are left, from 0; at most 400.
            words: words that a name must hold, or ``i1:pq`` for loops that must be
                among those of a dimension.
            least: least utilization, 0 to 1.
            order: ``"name"``, ``"calls"``, ``"utilization"``, ``"seconds"``, or the
                space's own.
            down: the other way round.
            predict: how long a mapping takes, if anything can tell.

        Returns:
            ``total`` rows of the space, how many are ``left``, ``rows``, and whether they
            are ``predicted``.

        Raises:
            FieldError: the filter cannot be read, or the space is too large for it.
        """
        if order not in _ORDERS:
            raise FieldError("filter", f"sort: expected one of {', '.join(_ORDERS[1:])}")
        if order == "seconds" and predict is None:
            raise FieldError(
                "filter",
                f"times are predicted where there is a machine, of up to {RANKED} mappings",
            )
        plain = not (words.strip() or least > 0 or order or down)
        if plain or not self.whole:
            if not plain:
                raise FieldError(
                    "filter",
                    f"{self.space.count:,} mappings are listed as they are; "
                    f"up to {_SORTED:,} can be filtered and sorted",
                )
            left = self.space.count
            picked = range(first, min(first + min(count, _ROWS), left))
        else:
            chosen = self._select(words, least, order, down, predict)
            left = len(chosen)
            picked = chosen[first : first + min(count, _ROWS)].tolist()
        rows = [self._row(number, self.space[number], predict) for number in picked]
        return {
            "total": self.space.count,
            "left": left,
            "first": first,
            "rows": rows,
            "predicted": predict is not None,
        }

    def _select(
        self, words: str, least: float, order: str, down: bool, predict: Predict | None
    ) -> np.ndarray:
        keep = self._utilization >= least - 1e-12 if least > 0 else np.ones(self.space.count, bool)
        for word in words.split():
            keep &= self._matches(word)
        chosen = np.flatnonzero(keep)
        if order == "name":
            chosen = chosen[np.argsort(np.array(self._names)[chosen], kind="stable")]
        elif order == "seconds" and predict is not None:
            times = [predict(self.space[int(number)]) for number in chosen]
            chosen = chosen[np.argsort([np.inf if t is None else t for t in times], kind="stable")]
        elif order:
            values = self._calls if order == "calls" else self._utilization
            chosen = chosen[np.argsort(values[chosen], kind="stable")]
        return chosen[::-1] if down else chosen

    def _matches(self, word: str) -> np.ndarray:
        if ":" not in word:
            return np.array([word in name for name in self._names], dtype=bool)
        step, _, loops = word.partition(":")
        steps = [it.name for it in self.space.intrinsic.iterations]
        names = [it.name for it in self.space.operator.iterations]
        if step not in steps:
            raise FieldError("filter", f"{word!r}: expected one of {', '.join(steps)} before ':'")
        wanted = loops.split(".") if "." in loops or loops in names else list(loops)
        if strange := [n for n in wanted if n not in names]:
            raise FieldError(
                "filter", f"{word!r}: {strange[0]!r} is no loop; loops are {', '.join(names)}"
            )
        columns = [names.index(n) for n in wanted]
        return np.asarray((self._assignments[:, columns] == steps.index(step)).all(axis=1))

    def _row(self, number: int, mapping: Mapping, predict: Predict | None) -> dict[str, Any]:
        physical = mapping.physical()
        return {
            "number": number,
            "name": mapping.name,
            "groups": [", ".join(group) for group in mapping.groups.values()],
            # A text: JavaScript's numbers end at 2^53.
            "calls": f"{physical.calls:,}",
            "utilization": physical.utilization,
            "seconds": None if predict is None else predict(mapping),
            "assignment": list(mapping.assignment),
            "order": list(mapping.order),
        }
