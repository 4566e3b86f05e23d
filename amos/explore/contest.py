"""Several instructions share one budget: each gets trials while it may win.

Successive halving (Karnin, Koren and Somekh, ICML 2013): every remaining instruction
gets the same few trials, the slower half is dropped, and the last one gets all other trials. Each
has a session of its own, whose records are those of a search on that instruction alone.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from amos.explore.contenders import Contender
from amos.explore.objective import value_of
from amos.explore.session import Session
from amos.records import Trial

#: Trials of each instruction in a round; least share of all trials for the last one.
_SHARE, _REST = 4, 0.5
#: An instruction takes part if it is predicted within this factor of the fastest.
_NEAR = 2.0


class Leaders(Protocol):
    """Trials so far, of one instruction or of several."""

    @property
    def trials(self) -> Sequence[Trial]:
        """All of them, in order."""

    def best(self, count: int) -> list[Trial]:
        """Return the best trials, best first, without failures."""


@dataclass
class Entry:
    """An instruction in the contest, with its session."""

    contender: Contender
    session: Session

    @property
    def seconds(self) -> float:
        """Seconds of its best trial; infinite without one that ran."""
        return min((trial.seconds for trial in self.session.problem.trials), default=math.inf)

    @property
    def value(self) -> float:
        """The objective of its best trial; infinite if none ran."""
        problem = self.session.problem
        return min(map(problem.value, problem.trials), default=math.inf)


@dataclass
class Contest:
    """Sessions of instructions that share the trials, and those that are out, with the reason."""

    entries: list[Entry]
    out: list[Contender] = field(default_factory=list)
    _order: list[tuple[Session, int]] = field(default_factory=list)
    _live: list[Entry] = field(init=False)
    _waiting: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._live = list(self.entries)

    @staticmethod
    def select_entrants(
        contenders: Sequence[Contender], trials: int
    ) -> tuple[list[Contender], ...]:
        """Split contenders by predicted time into entrants for ``trials``, and excluded ones."""
        ranked = sorted(contenders, key=lambda contender: contender.predicted)
        most = max(1, math.floor(trials * _REST / _SHARE))
        entrants: list[Contender] = []
        excluded: list[Contender] = []
        for contender in ranked:
            slower = contender.predicted / ranked[0].predicted
            if math.isinf(slower):
                excluded.append(replace(contender, reason="no schedule that was drawn for it fits"))
            elif slower > _NEAR:
                excluded.append(
                    replace(contender, reason=f"predicted {slower:.1f} times the fastest")
                )
            elif len(entrants) >= most:
                enough = "1 trial is" if trials == 1 else f"{trials} trials are"
                reason = f"{enough} enough for {most}, and others are predicted faster"
                excluded.append(replace(contender, reason=reason))
            else:
                entrants.append(contender)
        return entrants, excluded

    @property
    def trials(self) -> list[Trial]:
        """Trials of all instructions, numbered in the order in which they were made."""
        return [
            replace(session.problem.trials[number], number=n)
            for n, (session, number) in enumerate(self._order)
        ]

    def best(self, count: int) -> list[Trial]:
        """Return the best trials of all instructions."""
        numbered = [(s.problem.trials[number], n) for n, (s, number) in enumerate(self._order)]
        done = [(trial, n) for trial, n in numbered if math.isfinite(trial.seconds)]
        objective = self.entries[0].session.problem.objective
        leaders = heapq.nsmallest(count, done, key=lambda pair: value_of(pair[0], objective))
        return [replace(trial, number=n) for trial, n in leaders]

    @property
    def winner(self) -> Entry:
        """The entry with the fastest trial; before any the one that is predicted fastest."""
        return self._rank(self.entries)[0]

    @staticmethod
    def _rank(entries: Sequence[Entry]) -> list[Entry]:
        return sorted(entries, key=lambda entry: (entry.value, entry.contender.predicted))

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """Outcome of every instruction, the fastest first."""
        first, *losers = self._rank(self.entries)
        outcomes = [(first, ""), *((each, self._explain(each, first)) for each in losers)]
        return (
            *(
                replace(
                    each.contender,
                    trials=len(each.session.problem.trials),
                    seconds=each.seconds,
                    reason=reason,
                )
                for each, reason in outcomes
            ),
            *self.out,
        )

    def _explain(self, entry: Entry, first: Entry) -> str:
        done = len(entry.session.problem.trials)
        if not done:
            return "the search ended before its first trial"
        ratio = entry.value / first.value
        result = f"{ratio:.2f} times the best" if ratio < math.inf else "none ran"
        return f"left out after {done} trials: {result}"

    def run(
        self, total: int, time_limit: float | None = None, stagnation: int | None = None
    ) -> Iterator[Trial]:
        """Make trials up to a total; arguments as of :meth:`Session.trials`.

        Another call with a larger total continues.
        """
        end = math.inf if time_limit is None else time.monotonic() + time_limit
        while len(self._live) > 1 and len(self._order) < total and time.monotonic() < end:
            if not self._waiting:
                self._waiting = list(self._live)
            entry = self._waiting[0]
            remaining = _SHARE - len(entry.session.problem.trials) % _SHARE
            ends = len(self._order) + remaining
            yield from self._advance(entry, min(ends, total) - len(self._order), end, stagnation)
            # An interrupted turn resumes where it stopped.
            if len(self._order) == ends or len(self._order) < total:
                self._waiting.pop(0)
            if not self._waiting:
                self._live = self._rank(self._live)[: (len(self._live) + 1) // 2]
        if len(self._live) == 1 or not self._order:
            yield from self._advance(self._live[0], total - len(self._order), end, stagnation)

    def _advance(
        self, entry: Entry, count: int, end: float, stagnation: int | None
    ) -> Iterator[Trial]:
        """Make more trials of one instruction while time remains; at least one in all."""
        session, remaining = entry.session, end - time.monotonic()
        if count < 1 or (remaining <= 0 and self._order):
            return
        limit = None if math.isinf(remaining) else max(remaining, 0.0)
        for trial in session.trials(len(session.problem.trials) + count, limit, stagnation):
            self._order.append((session, trial.number))
            yield replace(trial, number=len(self._order) - 1)

    def confirm(self, tell: Callable[[Leaders], None]) -> None:
        """Measure leaders again, longer, until the instruction that leads has been confirmed."""
        confirmed: set[str] = set()
        while (name := self.winner.contender.intrinsic.name) not in confirmed:
            confirmed.add(name)
            self.winner.session.confirm(lambda _: tell(self))
