"""The right matchings nearest to a wrong one."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice

from amos.validate.candidates import Pairing, choose
from amos.validate.naming import matching_name

__all__ = ["nearest_matchings"]

#: Matchings that are named, and matchings that rule "paper" may refuse on the way to them.
_NAMED, _TRIED = 3, 128

#: Cost of a column with two ones that keeps one of them, and of one that changes otherwise.
_KEPT, _CHANGED = 2, 3


def nearest_matchings(
    pairing: Pairing,
    rule: str,
    columns: Sequence[Sequence[int]],
) -> tuple[str, ...]:
    """Names of the right matchings that differ in the fewest columns, three at most.

    Args:
        pairing: the operator held against the intrinsic.
        rule: the rule that they have to satisfy.
        columns: for each software iteration the intrinsic iterations it goes to.
    """
    costs = [
        {t: _cost(t, column) for t in (*targets, -1)}
        for targets, column in zip(pairing.candidates(rule), columns, strict=True)
    ]
    best, names = None, []
    for cost, assignment in islice(_by_cost(costs, pairing.rank), _TRIED):
        if best is not None and cost > best:
            break
        # What is put together of candidates and fills enough is right by the other rules.
        if rule != "paper" or _is_union(pairing, assignment):
            best = cost
            names.append(_name(pairing, assignment))
            if len(names) == _NAMED:
                break
    return tuple(names)


def _cost(target: int, column: Sequence[int]) -> int:
    if target in column:
        return 0 if len(column) == 1 else _KEPT
    return 0 if target < 0 and not column else _CHANGED


def _by_cost(costs: Sequence[dict[int, int]], rank: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Assignments that fill at least ``rank`` intrinsic iterations, cheapest first.

    A search along the software iterations whose bound, the least cost of the
    rest for what is filled so far, is exact: no step of it is in vain. What
    costs the same comes in the order of a mapping space.
    """
    rest = _least_costs(costs, rank)
    # Bound, places among the options, filled intrinsic iterations, cost so far.
    heap: list[tuple[int, tuple[int, ...], int, int]] = [(rest[0].get(0, 0), (), 0, 0)]
    while heap:
        _, places, mask, spent = heapq.heappop(heap)
        at = len(places)
        if at == len(costs):
            yield spent, tuple(tuple(o)[n] for o, n in zip(costs, places, strict=True))
            continue
        for place, (target, cost) in enumerate(costs[at].items()):
            filled = mask | _bit(target)
            if filled in rest[at + 1]:
                total = spent + cost
                heapq.heappush(
                    heap, (total + rest[at + 1][filled], (*places, place), filled, total)
                )


def _least_costs(costs: Sequence[dict[int, int]], rank: int) -> list[dict[int, int]]:
    """For each position and set of filled intrinsic iterations the least cost of the rest."""
    reached = [{0}]
    for options in costs:
        reached.append({mask | _bit(t) for mask in reached[-1] for t in options})
    rest = [{mask: 0 for mask in reached[-1] if mask.bit_count() >= rank}]
    for options, masks in zip(reversed(costs), reversed(reached[:-1]), strict=True):
        after = rest[-1]
        level = {}
        for mask in masks:
            ways = [c + after[m] for t, c in options.items() if (m := mask | _bit(t)) in after]
            if ways:
                level[mask] = min(ways)
        rest.append(level)
    return rest[::-1]


def _bit(target: int) -> int:
    return 1 << target if target >= 0 else 0


def _is_union(pairing: Pairing, assignment: Sequence[int]) -> bool:
    """Whether each pair of an assignment of candidates is in a base match inside it."""
    filled = sorted(set(assignment) - {-1})
    groups = [[s for s, at in enumerate(assignment) if at == t] for t in filled]
    return all(
        next(choose([*groups[:n], [s], *groups[n + 1 :]], pairing.conflicts), None) is not None
        for n, group in enumerate(groups)
        for s in group
    )


def _name(pairing: Pairing, assignment: Sequence[int]) -> str:
    names = [it.name for it in pairing.operator.iterations]
    groups = [
        [name for name, at in zip(names, assignment, strict=True) if at == t]
        for t in range(len(pairing.intrinsic.iterations))
    ]
    return matching_name(groups, pairing.order, set(names))
