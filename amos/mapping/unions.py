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
from math import comb, factorial, prod

from amos.errors import MappingError
from amos.mapping.spaces import KEPT, Assignment, ProductSet

__all__ = ["UnionSet", "bound_iterations"]

#: Judgements that are remembered at a time.
_JUDGED = 1 << 14

#: Combinations of bound iterations that counting may look at.
_LOOKED_AT = 1 << 16

#: Products of so many assignments are walked to keep the unions among them.
_WALKED = 1 << 16

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
        """Number of unions, exact; what it costs grows with the kinds of bound iterations.

        Raises:
            MappingError: there are too many kinds of them.
        """
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
        """Assignments of the bound iterations, up to exchanging what is equal.

        Equal are components, and twins within one. The second part says how many
        assignments each of them stands for.
        """
        alike: dict[object, list[tuple[int, ...]]] = {}
        for component in self._components:
            inside = tuple(tuple(self._conflicts[a] >> b & 1 for b in component) for a in component)
            alike.setdefault((tuple(choices[s] for s in component), inside), []).append(component)
        order = [s for components in alike.values() for c in components for s in c]
        place = {s: n for n, s in enumerate(order)}
        twins = [self._twins(components[0], choices) for components in alike.values()]
        sizes = [prod(2 ** (len(choices[members[0]]) - 1) for members in one) for one in twins]
        looked_at = prod(map(_multisets, sizes, map(len, alike.values())))
        if looked_at > _LOOKED_AT:
            raise MappingError(
                f"rule 'paper' would look at {looked_at:,} combinations of the {len(self._bound)} "
                f"iterations that share dimensions, expected at most {_LOOKED_AT:,}; rules "
                "'access' and 'gather' take any number of them"
            )
        sets = [
            combinations_with_replacement(
                self._states(components[0], one, choices), len(components)
            )
            for components, one in zip(alike.values(), twins, strict=True)
        ]
        for states in product(*sets):
            flat = [target for members in states for state, _ in members for target in state]
            weight = prod(
                factorial(len(members))
                // prod(map(factorial, Counter(members).values()))
                * prod(ways for _, ways in members)
                for members in states
            )
            yield tuple(flat[place[s]] for s in self._bound), weight

    def _twins(self, component: tuple[int, ...], choices: _Choices) -> list[list[int]]:
        """Members of a component that may change places: equal choices, equal conflicts."""
        inside = sum(1 << s for s in component)
        kinds: list[list[int]] = []
        for s in component:
            for members in kinds:
                other = members[0]
                rest = inside & ~(1 << s | 1 << other)
                same = self._conflicts[s] & rest == self._conflicts[other] & rest
                if same and choices[s] == choices[other]:
                    members.append(s)
                    break
            else:
                kinds.append([s])
        return kinds

    def _states(
        self, component: tuple[int, ...], twins: list[list[int]], choices: _Choices
    ) -> list[tuple[Assignment, int]]:
        """One assignment for each way to say which twins are where, and how many it stands for.

        What counts is only whether some twin is at an intrinsic iteration, not how many are:
        a choice takes one of each.
        """
        options = []
        for members in twins:
            targets = [t for t in choices[members[0]] if t >= 0]
            none = -1 in choices[members[0]]
            options.append([
                (dict(zip(members, _fill(filled, len(members)), strict=True)), ways)
                for size in range(min(len(targets), len(members)) + 1)
                for filled in combinations(targets, size)
                if (ways := _onto(len(members), size, none))
            ])  # fmt: skip
        states = []
        for parts in product(*options):
            where = {s: t for part, _ in parts for s, t in part.items()}
            states.append((tuple(where[s] for s in component), prod(ways for _, ways in parts)))
        return states

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

    @property
    def _listed(self) -> bool:
        return self.count <= KEPT and self._product.count <= _WALKED

    def at(self, index: int) -> Assignment:
        """The union at ``0 <= index < count``."""
        if self._listed:
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
        if self._listed:
            return iter(self._members)
        return filter(self._accepts, self._product)

    def __contains__(self, assignment: object) -> bool:
        return assignment in self._product and self._accepts(assignment)  # type: ignore[arg-type]


def _fill(filled: Sequence[int], members: int) -> list[int]:
    """Each of these intrinsic iterations once, the last one or none for the other members."""
    return [*filled, *[-1] * (members - len(filled))]


def _onto(members: int, size: int, none: bool) -> int:
    """Ways to put members to so many intrinsic iterations, each used, or to none as well."""
    spare = int(none)
    return sum((-1) ** k * comb(size, k) * (size - k + spare) ** members for k in range(size + 1))


def _multisets(size: int, picked: int) -> int:
    return comb(size + picked - 1, picked)


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
