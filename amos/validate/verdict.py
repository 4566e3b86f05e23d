"""Judging one matching matrix, with reasons in the user's own names (section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from amos._display import Shown
from amos.errors import MappingError
from amos.intrinsics import get as get_intrinsic
from amos.validate.candidates import Pairing, check_rule, choose
from amos.validate.compatible import check_structure
from amos.validate.nearest import nearest_matchings

if TYPE_CHECKING:
    from amos.intrinsics import Intrinsic
    from amos.ir import Operator

__all__ = ["Verdict", "check_matching", "read_matching"]


@dataclass(frozen=True)
class Verdict(Shown):
    """What a rule says about a matching; true if the matching is accepted.

    Attributes:
        rule: the rule that judged.
        wrong: why the matching does not compute what the operator says, or, for
            the rules ``"paper"`` and ``"access"``, why the rule does not admit it.
        idle: intrinsic iterations that stay empty without need: a waste, not a
            wrong answer.
        cells: what ``wrong`` is about: (intrinsic iteration, software iteration),
            each a one of the matching matrix.
        rows: what ``idle`` is about: intrinsic iterations, rows of the matrix.
        pairing: the operator held against the intrinsic; with ``matching`` what
            was judged. Neither counts when verdicts are compared.
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
        """Everything that speaks against the matching, wrong answers first."""
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
        """``nearest`` as a sentence; nothing where there is nothing to say."""
        if self.nearest:
            return f"Near it {'is' if len(self.nearest) == 1 else 'are'} " + ", ".join(
                map(repr, self.nearest)
            )
        return "" if self or self.pairing is None else f"Rule {self.rule!r} accepts no matching"

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        if self:
            return f"valid ({self.rule})"
        kind = "wrong" if self.wrong else "idle"
        return f"{kind} ({self.rule}): {'; '.join(self.reasons)}" + f". {self.hint}" * bool(
            self.hint
        )


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
        op: the operator.
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
    intrinsic = get_intrinsic(intrinsic)
    check_structure(op, intrinsic, order)
    pairing = Pairing.of(op, intrinsic, order)
    matching = _read_matrix(op, intrinsic, matrix)
    # A column with two ones has that against it, and counts for neither of them.
    shared = matching.sum(axis=0) > 1
    wrong, cells = _wrong(pairing, _groups(matching & ~shared), rule)
    cells += [(int(t), int(s)) for s, t in np.argwhere((matching & shared).T)]
    idle = _idle(pairing, _groups(matching))
    steps, names = intrinsic.iterations, op.iterations
    return Verdict(
        rule,
        (*_shared_columns(op, intrinsic, matching), *wrong),
        tuple(idle.values()),
        tuple((steps[t].name, names[s].name) for t, s in cells),
        tuple(step for step in idle if step),
        pairing,
        matching,
    )


def read_matching(op: Operator, intrinsic: Intrinsic, matrix: Any) -> tuple[int, ...]:
    """For each software iteration its intrinsic iteration, or -1.

    Raises:
        MappingError: wrong shape, values other than 0 and 1, or two ones in a
            column.
    """
    matching = _read_matrix(op, intrinsic, matrix)
    for text in _shared_columns(op, intrinsic, matching):
        raise MappingError(f"not a matching: {text}")
    return tuple(int(np.argmax(column)) if column.any() else -1 for column in matching.T)


def _read_matrix(op: Operator, intrinsic: Intrinsic, matrix: Any) -> np.ndarray:
    """Zeros and ones of the right shape: read-only bool, intrinsic × software iterations."""
    expected = (len(intrinsic.iterations), len(op.iterations))
    try:
        given = np.asarray(matrix)
        array = given.astype(bool)
        binary = given.dtype == bool or bool(np.all(given == array))
    except (TypeError, ValueError):
        raise MappingError(
            f"matching matrix of {op.name} on {intrinsic.name}: expected {expected[0]} rows of "
            f"{expected[1]} zeros and ones, got rows of different lengths or other things"
        ) from None
    if not array.ndim:
        raise MappingError(
            f"matching matrix of {op.name} on {intrinsic.name}: expected shape {expected} "
            f"(intrinsic × software iterations), got {type(matrix).__name__}"
        )
    if array.shape != expected:
        raise MappingError(
            f"matching matrix of {op.name} on {intrinsic.name}: expected shape {expected} "
            f"(intrinsic × software iterations), got {array.shape}"
        )
    if not binary:
        raise MappingError("matching matrix: expected zeros and ones only")
    array.setflags(write=False)
    return array


def _shared_columns(op: Operator, intrinsic: Intrinsic, matching: np.ndarray) -> list[str]:
    """What is said of columns with two ones or more, which no matching has."""
    return [
        f"`{it.name}` goes to {_listed(targets)}, expected at most one"
        for it, column in zip(op.iterations, matching.T, strict=True)
        if len(targets := [intrinsic.iterations[t].name for t in np.flatnonzero(column)]) > 1
    ]


def _groups(matching: np.ndarray) -> list[list[int]]:
    """The software iterations of each intrinsic iteration."""
    return [np.flatnonzero(row).tolist() for row in matching]


def _wrong(
    pairing: Pairing, groups: Sequence[Sequence[int]], rule: str
) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """What makes a matching wrong, and the pairs (intrinsic, software iteration) at fault."""
    cells: dict[tuple[int, int], list[str]] = {}
    for t, group in enumerate(groups):
        cells |= _wrong_access(pairing, t, group, exact=rule != "gather")
    if rule != "paper" or cells:
        return tuple(reason for reasons in cells.values() for reason in reasons), list(cells)
    causes = _wrong_base(pairing, groups)
    at_fault = {s for members in causes.values() for s in members}
    pairs = sorted((s, t) for t, group in enumerate(groups) for s in group if s in at_fault)
    wrong = tuple(_no_base(pairing, members, text) for text, members in causes.items())
    return wrong, [(t, s) for s, t in pairs]


def _wrong_access(
    pairing: Pairing, t: int, group: Sequence[int], *, exact: bool
) -> dict[tuple[int, int], list[str]]:
    """Members of one group whose column of X does not fit the column of Z, and why."""
    names = [it.name for it in pairing.operator.iterations]
    step = pairing.intrinsic.iterations[t]
    slot = pairing.slots[t]
    dst = 1 << len(pairing.order)

    def misfit(s: int) -> int:
        extra, missing = pairing.columns[s] & ~slot, slot & ~pairing.columns[s]
        return extra | (missing if exact else missing & dst)

    fitting = [s for s in group if not misfit(s)]
    found: dict[tuple[int, int], list[str]] = {}
    for s in group:
        bits = misfit(s)
        if not bits:
            continue
        reasons = found.setdefault((t, s), [])
        name = names[s]
        members = [names[g] for g in group if g == s or g in fitting]
        if len(members) > 1:
            start = f"{_listed(members)} {'both' if len(members) == 2 else 'all'} go to"
        else:
            start = f"`{name}` goes to"
        start += f" `{step.name}`, but"
        if bits & dst:
            # The destination's entry is the kind; naming it says more.
            kind = pairing.operator.iterations[s].kind
            reasons.append(f"{start} `{name}` is {kind} and `{step.name}` is {step.kind}")
            bits &= ~dst
        # What the intrinsic cannot address first: that is wrong by every rule.
        extra = pairing.columns[s]
        for m in sorted(range(len(pairing.order)), key=lambda m: not extra >> m & 1):
            if bits >> m & 1:
                does, lacks = ("indexes", "does not index")[:: 1 if extra >> m & 1 else -1]
                operand = pairing.intrinsic.operands[m].tensor.name
                reasons.append(
                    f"{start} `{name}` {does} `{pairing.labels[m]}` "
                    f"and `{step.name}` {lacks} `{operand}`"
                )
    return found


def _wrong_base(pairing: Pairing, groups: Sequence[Sequence[int]]) -> dict[str, list[int]]:
    """Matched iterations that no base match inside the matching contains, by cause."""
    filled = [t for t, group in enumerate(groups) if group]
    obstacles = {
        s: text for t in filled for s in groups[t] if (text := pairing.obstacle(s, t)) is not None
    }
    usable = [[s for s in groups[t] if s not in obstacles] for t in filled]
    # Text of the cause → iterations: a pair that excludes each other is said once.
    causes: dict[str, list[int]] = {}
    indirect: list[int] = []
    for at, t in enumerate(filled):
        for s in groups[t]:
            if s in obstacles:
                causes.setdefault(obstacles[s], []).append(s)
                continue
            options = [[s] if i == at else usable[i] for i in range(len(filled))]
            if next(choose(options, pairing.conflicts), None) is None:
                why = _why_alone(pairing, s, options)
                (indirect if why is None else causes.setdefault(why, [])).append(s)
    if indirect and not causes:
        causes["their possible partners share dimensions with one another"] = indirect
    return causes


def _no_base(pairing: Pairing, members: Sequence[int], text: str) -> str:
    names = [f"`{pairing.operator.iterations[s].name}`" for s in members]
    return f"no base match contains {' or '.join(names)}: {text}"


def _why_alone(pairing: Pairing, s: int, options: Sequence[Sequence[int]]) -> str | None:
    """A group in which every member shares a dimension with ``s``; None if there is none."""
    for group in options:
        if group and list(group) != [s] and all(pairing.conflicts[s] >> o & 1 for o in group):
            return ", ".join(_shared(pairing, *sorted((s, other))) for other in group)
    return None


def _shared(pairing: Pairing, first: int, second: int) -> str:
    a, b = (pairing.operator.iterations[i].name for i in (first, second))
    return next(
        f"`{a}` and `{b}` share dimension {d} of `{label}`"
        for load, label in zip(pairing.loads, pairing.labels, strict=True)
        for d, index in enumerate(load.indices)
        if a in index.names and b in index.names
    )


def _idle(pairing: Pairing, groups: Sequence[Sequence[int]]) -> dict[str, str]:
    """Intrinsic iterations that are empty without need, and why; an empty name for all of them."""
    filled = sum(map(bool, groups))
    if not pairing.rank and not filled:
        return {"": "nothing is matched: no iteration of the operator could go anywhere"}
    if filled >= pairing.rank:
        return {}
    names = [it.name for it in pairing.operator.iterations]
    options = pairing.candidates("gather")
    reasons = {}
    for t, it in enumerate(pairing.intrinsic.iterations):
        could = [names[s] for s, targets in enumerate(options) if t in targets]
        if could and not groups[t]:
            shown = ", ".join(f"`{name}`" for name in could)
            reasons[it.name] = f"`{it.name}` stays empty though {shown} could go there"
    return reasons


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
