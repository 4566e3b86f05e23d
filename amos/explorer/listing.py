"""A mapping space as rows that can be filtered, sorted and shown in part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from amos.errors import quote
from amos.explorer.state import FieldError
from amos.mapping import Mapping, MappingSpace

if TYPE_CHECKING:
    import pandas as pd

#: Mappings of a space whose times are predicted, so that they can be ranked.
RANKED = 256

#: Mappings of a space that can be filtered and sorted; a larger one is shown as it is.
_SORTED = 50_000
#: Rows of one answer, and characters of a filter.
_ROWS, _LONGEST = 400, 200
_ORDERS = ("", "name", "calls", "utilization", "seconds")

#: Seconds that a mapping is predicted to take; ``None`` where no schedule fits.
Predict = Callable[[Mapping], float | None]


@dataclass(frozen=True)
class Query:
    """A request for rows of a space.

    Attributes:
        first, count: which of the rows that are left, from 0; at most 400.
        words: words that a name must hold, or ``i1:pq`` for loops that must be
            among those of a dimension.
        least: least utilization, 0 to 1.
        order: ``"name"``, ``"calls"``, ``"utilization"``, ``"seconds"``, or empty for the
            space's own.
        down: the other way round.
    """

    first: int = 0
    count: int = 0
    words: str = ""
    least: float = 0.0
    order: str = ""
    down: bool = False

    def __post_init__(self) -> None:
        for name, value, most in (("first", self.first, 2**53), ("count", self.count, _ROWS)):
            if not 0 <= value <= most:
                raise FieldError("filter", f"{name}: expected a whole number up to {most}")
        if len(self.words) > _LONGEST:
            raise FieldError("filter", f"expected a text of at most {_LONGEST} characters")
        if self.order not in _ORDERS:
            raise FieldError("filter", f"sort: expected one of {', '.join(_ORDERS[1:])}")
        if not 0 <= self.least <= 1:
            raise FieldError("least", f"expected a share from 0 to 1, got {quote(self.least)}")

    @property
    def plain(self) -> bool:
        """Whether all rows are requested, in the order of the space."""
        return not (self.words.strip() or self.least > 0 or self.order or self.down)


class Listing:
    """Rows of a mapping space."""

    def __init__(self, space: MappingSpace) -> None:
        self.space = space

    @cached_property
    def _frame(self) -> pd.DataFrame:
        return self.space.to_frame()

    def rows(self, query: Query, predict: Predict | None) -> dict[str, Any]:
        """Return the requested rows.

        Returns:
            ``total`` rows of the space, how many are ``match_count``, ``rows``, and whether they
            are ``predicted``.

        Raises:
            FieldError: the filter cannot be read, or the space is too large for it.
        """
        total, shown = self.space.count, slice(query.first, query.first + query.count)
        if query.order == "seconds" and predict is None:
            raise FieldError(
                "filter",
                f"times are predicted where there is a machine, of up to {RANKED} mappings",
            )
        if query.plain:
            match_count, numbers = total, [*range(total)[shown]]
        elif total <= _SORTED:
            chosen = self._select(query, predict)
            match_count, numbers = len(chosen), chosen[shown]
        else:
            raise FieldError(
                "filter",
                f"{total:,} mappings are listed as they are; up to {_SORTED:,} can be filtered "
                "and sorted",
            )
        return {
            "total": total,
            "left": match_count,
            "rows": [self._row(number, predict) for number in numbers],
            "predicted": predict is not None,
        }

    def _select(self, query: Query, predict: Predict | None) -> list[int]:
        """Return the numbers of the filtered mappings, in the requested order."""
        frame = self._frame[self._frame["utilization"] >= query.least - 1e-12]
        for word in query.words.split():
            frame = frame[self._matches(frame, word)]
        if query.order == "seconds" and predict is not None:
            times = [predict(self.space[number]) for number in frame.index]
            frame = frame.assign(seconds=np.array(times, dtype=float))
        if query.order:
            frame = frame.sort_values(query.order, kind="stable")
        numbers = [int(number) for number in frame.index]
        return numbers[::-1] if query.down else numbers

    def _matches(self, frame: pd.DataFrame, word: str) -> pd.Series[bool]:
        if ":" not in word:
            return frame["name"].str.contains(word, regex=False)
        step, _, loops = word.partition(":")
        steps = [it.name for it in self.space.intrinsic.iterations]
        names = [it.name for it in self.space.operator.iterations]
        if step not in steps:
            raise FieldError("filter", f"{word!r}: expected one of {', '.join(steps)} before ':'")
        members = loops.split(".") if "." in loops or loops in names else list(loops)
        if unknown := [n for n in members if n not in names]:
            raise FieldError(
                "filter", f"{word!r}: {unknown[0]!r} is no loop; loops are {', '.join(names)}"
            )
        return frame[step].map(lambda group: {*members} <= {*group.split(", ")})

    def _row(self, number: int, predict: Predict | None) -> dict[str, Any]:
        mapping = self.space[number]
        physical = mapping.physical()
        return {
            "name": mapping.name,
            "groups": [", ".join(group) for group in mapping.groups.values()],
            # A text: JavaScript's numbers end at 2^53.
            "calls": f"{physical.calls:,}",
            "utilization": physical.utilization,
            "seconds": None if predict is None else predict(mapping),
            "assignment": list(mapping.assignment),
            "order": list(mapping.order),
        }
