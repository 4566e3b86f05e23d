"""The unions of base matches, counted without building them (AMOS, Table 6).

A matching is a union of base matches exactly if each of its pairs lies in a base
match inside it: for each pair there is a choice of one software iteration for
every other filled intrinsic iteration, no two of the chosen ones in conflict.
Only iterations that can be in conflict at all ("bound" ones, such as p and r of
``p + r``) matter to that; the others ("free" ones) are always good choices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations, combinations_with_replacement, product
from math import factorial, prod

from amos.mapping.spaces import KEPT, Assignment, ProductSet

__all__ = ["UnionSet", "bound_iterations"]

#: Judgements that are remembered at a time.
_JUDGED = 1 << 14

#: For each software iteration what it may be: intrinsic iterations, -1 for none.
_Choices = tuple[tuple[int, ...], ...]


def bound_iterations(
    options: Sequence[Sequence[int]], conflicts: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Software iterations that can be in conflict, as connected components.

    Args:
        options: for each software iteration its intrinsic iterations.
        conflicts: for each software iteration the bit set of those that share a
            dimension with it.
    """
    near: dict[int, set[int]] = {}
    for a, b in combinations(range(len(options)), 2):
        if conflicts[a] >> b & 1 and any(t != u for t in options[a] for u in options[b]):
            near.setdefault(a, set()).add(b)
            near.setdefault(b, set()).add(a)
    components = []
    while near:
        found, rest = set[int](), {min(near)}
        while rest:
            s = rest.pop()
            found.add(s)
            rest |= near.pop(s, set()) - found
        components.append(tuple(sorted(found)))
    return tuple(components)


class UnionSet:
    """The distinct unions of base matches that are matchings.

    Args:
        options: for each software iteration the intrinsic iterations that a base
            match may send it to, ascending.
        conflicts: for each software iteration those it excludes, as a bit set.
        rank: number of intrinsic iterations that a base match fills.
    """

    def __init__(
        self, options: Sequence[Sequence[int]], conflicts: Sequence[int], rank: int
    ) -> None:
        self._product = ProductSet(options, rank)
        self._conflicts = tuple(conflicts)
        self._components = bound_iterations(options, conflicts)
        self._bound = tuple(s for component in self._components for s in component)
        free = set(range(len(options))) - set(self._bound)
        self._free = tuple(sorted(free))
        self._steps = 1 + max((t for targets in options for t in targets), default=-1)
        self._judged: dict[tuple[Assignment, int], bool] = {}

    @cached_property
    def _choices(self) -> _Choices:
        return tuple((*targets, -1) for targets in self._product.options)

    @cached_property
    def count(self) -> int:
        """Number of unions, exact; what it costs grows with the bound iterations only."""
        return self._count(self._choices)

    def _count(self, choices: _Choices) -> int:
        """Unions in which each software iteration is one of its choices."""
        fills = _fills([choices[s] for s in self._free])
        total = 0
        for bound, weight in self._bound_parts(choices):
            given = _mask(bound)
            for mask, ways in fills.items():
                enough = (given | mask).bit_count() >= self._product.rank
                if enough and self._good(bound, given & ~mask):
                    total += weight * ways
        return total

    def _bound_parts(self, choices: _Choices) -> Iterator[tuple[Assignment, int]]:
        """Assignments of the bound iterations, up to exchanging equal components.

        The second part says how many assignments each of them stands for.
        """
        alike: dict[object, list[tuple[int, ...]]] = {}
        for component in self._components:
            inside = tuple(tuple(self._conflicts[a] >> b & 1 for b in component) for a in component)
            alike.setdefault((tuple(choices[s] for s in component), inside), []).append(component)
        order = [s for components in alike.values() for c in components for s in c]
        place = {s: n for n, s in enumerate(order)}
        sets = [
            combinations_with_replacement(
                list(product(*(choices[s] for s in components[0]))), len(components)
            )
            for components in alike.values()
        ]
        for states in product(*sets):
            flat = [target for members in states for state in members for target in state]
            weight = prod(
                factorial(len(members)) // prod(map(factorial, Counter(members).values()))
                for members in states
            )
            yield tuple(flat[place[s]] for s in self._bound), weight

    def _good(self, bound: Assignment, needy: int) -> bool:
        """Each bound iteration is in a base match.

        Args:
            bound: intrinsic iteration of each bound iteration.
            needy: the intrinsic iterations, as a bit set, that hold no free
                iteration, so that a bound one must be chosen for them.
        """
        key = (bound, needy)
        if key not in self._judged:
            if len(self._judged) >= _JUDGED:
                self._judged.clear()
            groups = dict.fromkeys((t for t in range(self._steps) if needy >> t & 1), 0)
            for s, at in zip(self._bound, bound, strict=True):
                if at in groups:
                    groups[at] |= 1 << s
            self._judged[key] = all(
                self._chosen(tuple(g for t, g in groups.items() if t != at), self._conflicts[s])
                for s, at in zip(self._bound, bound, strict=True)
                if at >= 0
            )
        return self._judged[key]

    def _chosen(self, groups: tuple[int, ...], barred: int) -> bool:
        """Whether one of each group (a bit set) can be chosen, none of them barred."""
        if not groups:
            return True
        left = groups[0] & ~barred
        while left:
            lowest = left & -left
            conflict = self._conflicts[lowest.bit_length() - 1]
            if self._chosen(groups[1:], barred | conflict):
                return True
            left ^= lowest
        return False

    def _accepts(self, assignment: Assignment) -> bool:
        """Whether an assignment of the product is a union."""
        bound = tuple(assignment[s] for s in self._bound)
        free = _mask([assignment[s] for s in self._free])
        return self._good(bound, _mask(bound) & ~free)

    @cached_property
    def _members(self) -> list[Assignment]:
        return list(filter(self._accepts, self._product))

    def at(self, index: int) -> Assignment:
        """The union at ``0 <= index < count``."""
        if self.count <= KEPT:
            return self._members[index]
        choices = list(self._choices)
        for s, targets in enumerate(self._choices):
            for target in targets:
                choices[s] = (target,)
                size = self._count(tuple(choices))
                if index < size:
                    break
                index -= size
        return tuple(target for (target,) in choices)

    def __iter__(self) -> Iterator[Assignment]:
        if self.count <= KEPT:
            return iter(self._members)
        return filter(self._accepts, self._product)

    def __contains__(self, assignment: object) -> bool:
        return assignment in self._product and self._accepts(assignment)  # type: ignore[arg-type]


def _mask(targets: Sequence[int]) -> int:
    mask = 0
    for t in targets:
        if t >= 0:
            mask |= 1 << t
    return mask


def _fills(choices: Sequence[Sequence[int]]) -> dict[int, int]:
    """For each set of intrinsic iterations the number of choices that fill it exactly."""
    ways = {0: 1}
    for targets in choices:
        after: dict[int, int] = {}
        for mask, number in ways.items():
            for t in targets:
                filled = mask | 1 << t if t >= 0 else mask
                after[filled] = after.get(filled, 0) + number
        ways = after
    return ways
