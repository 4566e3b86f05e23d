"""The right matchings nearest to a wrong one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import nsmallest

from amos.validate.naming import matching_name
from amos.validate.pairing import Pairing
from amos.validate.reasons import find_outside_base_matches

#: Most matchings that are named, and that are tried under rule "paper".
_NAMED, _TRIED = 3, 128

#: Cost of a column with two ones that keeps one of them, and of one that changes otherwise.
_KEPT, _CHANGED = 2, 3


def nearest_matchings(
    pairing: Pairing, rule: str, columns: Sequence[Sequence[int]]
) -> tuple[str, ...]:
    """Name the right matchings that differ in the fewest columns, three at most.

    Ties are in the order of a mapping space. ``columns`` lists the intrinsic iterations of each
    software iteration in the wrong matching, which may be several.
    """
    options = [(*targets, -1) for targets in pairing.candidates(rule)]
    # Under the other rules, any combination of candidates that fills enough is right.
    limit = _TRIED if rule == "paper" else _NAMED
    # Filled intrinsic iterations → the cheapest choices: cost, and places among the options.
    cheapest: dict[int, list[tuple[int, tuple[int, ...]]]] = {0: [(0, ())]}
    for targets, column in zip(options, columns, strict=True):
        longer: defaultdict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
        for filled, choices in cheapest.items():
            for place, t in enumerate(targets):
                extra_cost = _cost(t, column)
                mask = filled | 1 << t if t >= 0 else filled
                longer[mask] += [(cost + extra_cost, (*places, place)) for cost, places in choices]
        cheapest = {mask: nsmallest(limit, choices) for mask, choices in longer.items()}
    full = [choice for mask, choices in cheapest.items() if mask.bit_count() >= pairing.rank
            for choice in choices]  # fmt: skip
    best, names = None, []
    for cost, places in nsmallest(limit, full):
        if best is not None and cost > best:
            break
        assignment = [targets[place] for targets, place in zip(options, places, strict=True)]
        groups = [
            [s for s, at in enumerate(assignment) if at == t]
            for t in range(len(pairing.intrinsic.iterations))
        ]
        if rule != "paper" or not find_outside_base_matches(pairing, groups):
            best = cost
            names.append(_name(pairing, groups))
    return tuple(names[:_NAMED])


def _name(pairing: Pairing, groups: Sequence[Sequence[int]]) -> str:
    names = [it.name for it in pairing.operator.iterations]
    return matching_name([[names[s] for s in group] for group in groups], pairing.order, set(names))


def _cost(target: int, column: Sequence[int]) -> int:
    if target in column:
        return 0 if len(column) == 1 else _KEPT
    return 0 if target < 0 and not column else _CHANGED
