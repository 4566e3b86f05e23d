"""Judging one matching matrix, with reasons in the user's own names (section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from amos._display import Shown
from amos.errors import MappingError
from amos.intrinsics import Intrinsic
from amos.intrinsics import get as get_intrinsic
from amos.ir import Operator
from amos.validate.nearest import nearest_matchings
from amos.validate.pairing import Pairing, check_rule
from amos.validate.reasons import idle_reasons, quote_names, wrong_reasons


@dataclass(frozen=True)
class Verdict(Shown):
    """Judgement of a rule about a matching; true if the matching is accepted.

    Attributes:
        rule: the rule that judged.
        wrong: why the matching does not compute what the operator says, or, for
            the rules ``"paper"`` and ``"access"``, why the rule does not admit it.
        idle: intrinsic iterations that stay empty without need: a waste, not a
            wrong answer.
        cells: cells that ``wrong`` is about: (intrinsic iteration, software iteration),
            each a one of the matching matrix.
        rows: rows of the matrix that ``idle`` is about: intrinsic iterations.
        pairing: the operator paired with the intrinsic; with ``matching`` the subject of
            the verdict. Comparisons of verdicts ignore both.
        matching: the matrix, read-only bool, intrinsic × software iterations.
    """

    rule: str
    wrong: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    cells: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    rows: tuple[str, ...] = field(default=(), compare=False)
    pairing: Pairing | None = field(default=None, compare=False, repr=False)
    matching: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def reasons(self) -> tuple[str, ...]:
        """All reasons against the matching, wrong answers first."""
        return self.wrong + self.idle

    @cached_property
    def nearest(self) -> tuple[str, ...]:
        """Names of the right matchings that differ in the fewest columns, three at most.

        Empty if this one is right, if none is, or for a verdict made by hand.
        """
        if self or self.pairing is None or self.matching is None:
            return ()
        columns = [tuple(map(int, np.flatnonzero(column))) for column in self.matching.T]
        return nearest_matchings(self.pairing, self.rule, columns)

    @property
    def hint(self) -> str:
        """``nearest`` as a sentence; empty if there are none."""
        if self or self.pairing is None:
            return ""
        if not self.nearest:
            return f"Rule {self.rule!r} accepts no matching"
        return f"Near it {'are' if self.nearest[1:] else 'is'} " + ", ".join(
            map(repr, self.nearest)
        )

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        if self:
            return f"valid ({self.rule})"
        hint = f". {self.hint}" if self.hint else ""
        return f"{'wrong' if self.wrong else 'idle'} ({self.rule}): {'; '.join(self.reasons)}{hint}"


def check_matching(
    op: Operator,
    intrinsic: str | Intrinsic,
    matrix: Any,
    rule: str = "access",
    *,
    order: Sequence[int] | None = None,
) -> Verdict:
    """Judge a matching matrix under one of the three rules.

    Args:
        intrinsic: the intrinsic, by name or as a description.
        matrix: zeros and ones, intrinsic iterations × software iterations;
            columns in loop order. Two ones in a column are no matching, and the
            verdict says so.
        rule: ``"paper"``, ``"access"`` or ``"gather"``.
        order: for each source of the intrinsic the index of the operator's
            source that feeds it; the order given if omitted.

    Raises:
        MappingError: the matrix has another shape or other values, the operator
            cannot use the intrinsic whatever the matching, or the rule is unknown.
        UnknownNameError: there is no such intrinsic.
    """
    check_rule(rule)
    pairing = Pairing.of(op, get_intrinsic(intrinsic), order)
    matching = _read_matrix(pairing, matrix)
    # A column with two ones is a reason of its own, and counts for neither of them.
    shared = matching.sum(axis=0) > 1
    wrong = _shared_columns(pairing, matching)
    wrong |= wrong_reasons(pairing, _groups(matching & ~shared), rule)
    idle = idle_reasons(pairing, _groups(matching))
    steps, names = pairing.intrinsic.iterations, op.iterations
    cells = dict.fromkeys(cell for at_fault in wrong.values() for cell in at_fault)
    return Verdict(
        rule,
        tuple(wrong),
        tuple(idle.values()),
        tuple((steps[t].name, names[s].name) for t, s in cells),
        tuple(step for step in idle if step),
        pairing,
        matching,
    )


def read_matching(pairing: Pairing, matrix: Any) -> tuple[int, ...]:
    """Return the intrinsic iteration of each software iteration, or -1; refuse other matrices."""
    matching = _read_matrix(pairing, matrix)
    for text in _shared_columns(pairing, matching):
        raise MappingError(f"not a matching: {text}")
    return assignment_of(matching)


def assignment_of(matching: np.ndarray) -> tuple[int, ...]:
    """Return the intrinsic iteration of each software iteration, or -1."""
    return tuple(int(np.argmax(column)) if column.any() else -1 for column in matching.T)


def _read_matrix(pairing: Pairing, matrix: Any) -> np.ndarray:
    """Convert a matrix of zeros and ones to read-only bool, intrinsic × software iterations."""
    op, intrinsic = pairing.operator, pairing.intrinsic
    where = f"matching matrix of {op.name} on {intrinsic.name}"
    expected = (len(intrinsic.iterations), len(op.iterations))
    try:
        numbers = np.asarray(matrix)
        array = numbers.astype(bool)
        binary = numbers.dtype == bool or bool(np.all(numbers == array))
    except (TypeError, ValueError):
        raise MappingError(
            f"{where}: expected {expected[0]} rows of {expected[1]} zeros and ones, "
            "got rows of different lengths or other things"
        ) from None
    if array.shape != expected:
        got = array.shape if array.ndim else type(matrix).__name__
        raise MappingError(
            f"{where}: expected shape {expected} (intrinsic × software iterations), got {got}"
        )
    if not binary:
        raise MappingError("matching matrix: expected zeros and ones only")
    array.setflags(write=False)
    return array


def _shared_columns(pairing: Pairing, matching: np.ndarray) -> dict[str, list[tuple[int, int]]]:
    """Find columns with two ones or more, which no matching has; return reasons and cells."""
    steps, reasons = pairing.intrinsic.iterations, {}
    for s in np.flatnonzero(matching.sum(axis=0) > 1):
        targets = np.flatnonzero(matching[:, s])
        name = pairing.operator.iterations[s].name
        places = quote_names([steps[t].name for t in targets])
        text = f"`{name}` goes to {places}, expected at most one"
        reasons[text] = [(int(t), int(s)) for t in targets]
    return reasons


def _groups(matching: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in matching]
