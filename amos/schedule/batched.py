"""Many random assignments at once: the propagation of :mod:`amos.schedule.sampler` on arrays.

All assignments of a batch decide their variables in one order, each with values of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from amos.errors import ScheduleError
from amos.schedule.csp import CSP, Choice

#: Values below this multiply within 64 bits.
_LARGEST = 2**31

_Array = NDArray[np.int64]


def descend_many(
    csp: CSP, batch: int, rng: np.random.Generator, order: Sequence[str]
) -> list[dict[str, int]]:
    """Draw different feasible assignments, as positions.

    Raises:
        ScheduleError: values of the problem are too large for arrays.
    """
    if not all(csp.allowed.values()) or not csp.is_possible(csp.allowed):
        return []
    low, high = csp.bounds(csp.allowed)
    if max(map(abs, (*low, *high)), default=0) >= _LARGEST:
        raise ScheduleError(f"batched sampling: expected values below {_LARGEST:,}")
    drawn = _Batch(csp, batch, low, high).decide(rng, order)
    keys = dict.fromkeys(map(tuple, drawn.T.tolist()))
    return [dict(zip(csp.allowed, key, strict=True)) for key in keys]


class _Batch:
    """Partial assignments with the bounds of every variable, one per column."""

    def __init__(self, csp: CSP, size: int, low: list[int], high: list[int]) -> None:
        self.csp = csp
        self.low = np.repeat(np.array(low, np.int64)[:, None], size, axis=1)
        self.high = np.repeat(np.array(high, np.int64)[:, None], size, axis=1)
        self.positions = {n: np.full(size, at[0], np.int64) for n, at in csp.allowed.items()}
        self.decided = {name for name, at in csp.allowed.items() if len(at) == 1}

    def decide(self, rng: np.random.Generator, order: Sequence[str]) -> _Array:
        """Return the positions of all tunables in those assignments that can be completed."""
        allowed = self.csp.allowed
        for name in [name for name in order if name not in self.decided]:
            self.decided.add(name)
            columns = self.low.shape[1]
            options = rng.permuted(np.tile(np.array(allowed[name])[:, None], columns), axis=0)
            pending = np.arange(columns)
            for choice in options:
                pending = pending[~self._try(name, choice[pending], pending)]
                if not len(pending):
                    break
            self._drop(pending)
        return np.stack([*self.positions.values()])

    def _drop(self, dead_ends: _Array) -> None:
        if len(dead_ends):
            self.low, self.high = (np.delete(x, dead_ends, axis=1) for x in (self.low, self.high))
            self.positions = {n: np.delete(at, dead_ends) for n, at in self.positions.items()}

    def _try(self, name: str, choice: _Array, columns: _Array) -> NDArray[np.bool_]:
        """Decide a tunable in some columns; false where that breaks a limit."""
        number, codes, definitions, limits = self.csp.dependent(name)
        values = np.array(codes, np.int64)[choice]
        bounds = _Columns(self, columns, {number: values}, {number: values})
        for kind, target, parts, choices, index in definitions:
            if kind == "SELECT":
                at = choice if index == name else self._position(index, columns)
                bounds.select(target, choices, at, self.csp.allowed[index])
            else:
                bounds.combine(target, np.multiply if kind == "PROD" else np.add, parts)
        ok = np.ones(len(columns), bool)
        for _, test, a, b in limits:
            ok &= bounds.hold(test, a, b)
        into = columns[ok]
        for row in bounds.low:
            self.low[row, into], self.high[row, into] = (bounds.low[row][ok], bounds.high[row][ok])
        self.positions[name][into] = choice[ok]
        return ok

    def _position(self, index: str, columns: _Array) -> _Array | None:
        return self.positions[index][columns] if index in self.decided else None


class _Columns:
    """Bounds of some columns of a batch, some rows of which are recomputed."""

    def __init__(
        self, batch: _Batch, columns: _Array, low: dict[int, _Array], high: dict[int, _Array]
    ) -> None:
        self.batch, self.columns, self.low, self.high = batch, columns, low, high

    def lower(self, row: int) -> _Array:
        return self.low[row] if row in self.low else self.batch.low[row, self.columns]

    def upper(self, row: int) -> _Array:
        return self.high[row] if row in self.high else self.batch.high[row, self.columns]

    def combine(self, target: int, operation: np.ufunc, parts: Sequence[int]) -> None:
        """Bound a sum or a product of values that are not negative."""
        self.low[target] = operation.reduce([self.lower(term) for term in parts])
        self.high[target] = operation.reduce([self.upper(term) for term in parts])

    def select(
        self, target: int, choices: Sequence[Choice], at: _Array | None, allowed: Sequence[int]
    ) -> None:
        """Bound the choice at a position, or at any allowed one while it is undecided."""

        def rows(read: Callable[[int], _Array], positions: Sequence[int]) -> _Array:
            values = np.empty((len(positions), len(self.columns)), np.int64)
            for row, (named, c) in zip(values, (choices[at] for at in positions), strict=True):
                row[:] = read(c) if named else c
            return values

        if at is None:
            self.low[target] = rows(self.lower, allowed).min(axis=0)
            self.high[target] = rows(self.upper, allowed).max(axis=0)
        else:
            own, everything = np.arange(len(at)), range(len(choices))
            self.low[target] = rows(self.lower, everything)[at, own]
            self.high[target] = rows(self.upper, everything)[at, own]

    def hold(self, test: str, a: int, b: object) -> NDArray[np.bool_]:
        """Return whether a limit can still be met, as :meth:`CSP.is_possible` judges it."""
        low, high = self.lower(a), self.upper(a)
        if isinstance(b, frozenset):
            values = np.array(sorted(b), np.int64)[:, None]
            near: NDArray[np.bool_] = np.logical_or.reduce((low <= values) & (values <= high))
            return near
        assert isinstance(b, int)
        holds: NDArray[np.bool_] = low <= self.upper(b)
        return holds if test == "LE" else holds & (self.lower(b) <= high)
