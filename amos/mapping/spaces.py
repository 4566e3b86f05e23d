"""Sets of assignments that are counted and indexed without being listed.

An assignment gives each software iteration an intrinsic iteration, or -1. Every
set is ordered lexicographically over software iterations in loop order, with
intrinsic iterations in their order and "none" last.

Under the rules ``"access"`` and ``"gather"`` any choice of candidates that fills enough
intrinsic iterations is a matching. Under ``"paper"`` it has to be a union of base matches
(AMOS, Table 6): each of its pairs lies in a base match inside it, so that for every other
filled intrinsic iteration a software iteration can be chosen, no two of the chosen ones in
conflict. Only iterations that can be in conflict at all ("bound" ones, such as p and r of
``p + r``) affect this; the others ("free" ones) can always be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

from amos.errors import MappingError

Assignment = tuple[int, ...]

#: For each software iteration some intrinsic iterations, ascending.
Options = tuple[tuple[int, ...], ...]

#: Largest set that is stored as a list once it is enumerated.
KEPT = 2048

#: Most choices of candidates that are enumerated to store the unions among them.
_WALKED = 1 << 16

#: Most kinds of assignments of bound iterations that counting examines.
_LOOKED_AT = 1 << 12

#: Number of memoized judgements.
_JUDGED = 1 << 14

#: Kinds of assignments by key: an example, and the size of the kind.
_Kinds = dict[Any, tuple[Assignment, int]]


def bound_iterations(options: Options, conflicts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Group software iterations that can be in conflict into connected components."""
    components: list[set[int]] = []
    for a, b in combinations(range(len(options)), 2):
        if conflicts[a] >> b & 1 and any(t != u for t in options[a] for u in options[b]):
            touching = [c for c in components if a in c or b in c]
            components = [c for c in components if c not in touching]
            components.append({a, b}.union(*touching))
    return tuple(sorted(tuple(sorted(c)) for c in components))


class AssignmentSet:
    """Every choice of one candidate or none per software iteration that is a matching.

    Args:
        options: for each software iteration its candidates, ascending.
        rank: the least number of intrinsic iterations to be filled.
        conflicts: for each software iteration the bit set of those that no base match
            has with it; nothing where matchings need not be unions of base matches.
    """

    def __init__(self, options: Options, rank: int, conflicts: Sequence[int] = ()) -> None:
        self.options, self.rank = options, rank
        self._choices: Options = tuple((*targets, -1) for targets in options)
        self._components = bound_iterations(options, conflicts) if conflicts else ()
        # Only conflicts within a component matter: others never need different places.
        self._conflicts = {
            s: conflicts[s] & sum(1 << o for o in component)
            for component in self._components
            for s in component
        }
        self._bound = tuple(s for component in self._components for s in component)
        self._free = tuple(s for s in range(len(options)) if s not in self._bound)
        self._good = lru_cache(_JUDGED)(self._has_base_matches)

    @cached_property
    def count(self) -> int:
        """Number of assignments, exact; the cost grows with the kinds of bound iterations.

        Raises:
            MappingError: there are too many kinds of them.
        """
        return self._size(())

    def at(self, index: int) -> Assignment:
        """Return the assignment at ``0 <= index < count``, by unranking."""
        if self._is_kept:
            return self._members[index]
        prefix: Assignment = ()
        for targets in self._choices:
            for t in targets:
                size = self._size((*prefix, t))
                if index < size:
                    prefix = (*prefix, t)
                    break
                index -= size
        return prefix

    def __iter__(self) -> Iterator[Assignment]:
        return iter(self._members) if self._is_kept else self._walk()

    def __contains__(self, assignment: object) -> bool:
        if not isinstance(assignment, tuple) or len(assignment) != len(self.options):
            return False
        fits = all(t in targets for t, targets in zip(assignment, self._choices, strict=True))
        return fits and _mask(assignment).bit_count() >= self.rank and self._accepts(assignment)

    @property
    def _is_kept(self) -> bool:
        return self.count <= KEPT and self._tails[0][0] <= _WALKED

    @cached_property
    def _members(self) -> list[Assignment]:
        return list(self._walk())

    @cached_property
    def _tails(self) -> list[dict[int, int]]:
        """For each position and set of filled intrinsic iterations: the ways to fill enough."""
        levels = [{0}]
        for targets in self._choices:
            levels.append({mask | _bit(t) for mask in levels[-1] for t in targets})
        tails = [{mask: int(mask.bit_count() >= self.rank) for mask in levels[-1]}]
        for targets, level in zip(reversed(self._choices), reversed(levels[:-1]), strict=True):
            following = tails[-1]
            tails.append({mask: sum(following[mask | _bit(t)] for t in targets) for mask in level})
        return tails[::-1]

    def _walk(self) -> Iterator[Assignment]:
        """Yield the assignments in order, without choices that cannot fill enough."""
        tails, choices, end = self._tails, self._choices, len(self.options)

        def extend(mask: int, chosen: Assignment) -> Iterator[Assignment]:
            position = len(chosen)
            if position == end:
                yield chosen
                return
            for t in choices[position]:
                if tails[position + 1][mask | _bit(t)]:
                    yield from extend(mask | _bit(t), (*chosen, t))

        assignments = extend(0, ()) if tails[0][0] else iter(())
        return filter(self._accepts, assignments) if self._bound else assignments

    def _size(self, prefix: Assignment) -> int:
        """Count the assignments with this prefix."""
        if not self._bound:
            return self._tails[len(prefix)][_mask(prefix)]
        choices = (*((t,) for t in prefix), *self._choices[len(prefix) :])
        fills = self._states(self._free, choices)
        total = 0
        for bound, weight in self._kinds(choices):
            filled = _mask(bound)
            for mask, (_, ways) in fills.items():
                enough = (filled | mask).bit_count() >= self.rank
                if enough and self._good(bound, filled & ~mask):
                    total += weight * ways
        return total

    def _kinds(self, choices: Options) -> Iterator[tuple[Assignment, int]]:
        """Yield one assignment of the bound iterations of each kind, and the size of that kind.

        Equal components are interchangeable. Within one, an intrinsic iteration needs some of
        several twins, no matter which or how many: a base match takes one of each.
        """
        kinds: _Kinds = {(): ((), 1)}
        for component in self._components:
            pattern = tuple(self._conflicts[a] >> b & 1 for a in component for b in component)
            alike = (tuple(choices[s] for s in component), pattern)
            extended: _Kinds = {}
            for filled, (members, number) in self._states(component, choices).items():
                for key, (bound, ways) in kinds.items():
                    joint = tuple(sorted((*key, (alike, filled))))
                    _add(extended, joint, (*bound, *members), ways * number)
            kinds = self._check_count(extended)
        return iter(kinds.values())

    def _states(self, component: tuple[int, ...], choices: Options) -> _Kinds:
        """Classify the assignments of a component by the places that its twins fill.

        Free iterations are all twins: their states are the places that they fill together.
        """
        steps = 1 + max(t for targets in self.options for t in targets)
        states: _Kinds = {0: ((), 1)}
        for s in component:
            twin = next(n for n, o in enumerate(component) if self._are_twins(s, o, choices))
            extended: _Kinds = {}
            for filled, (members, ways) in states.items():
                for t in choices[s]:
                    _add(extended, filled | _bit(t) << twin * steps, (*members, t), ways)
            states = extended if component is self._free else self._check_count(extended)
        return states

    def _check_count(self, kinds: _Kinds) -> _Kinds:
        if len(kinds) > _LOOKED_AT:
            raise MappingError(
                f"rule 'paper' would look at more than {_LOOKED_AT:,} combinations of the "
                f"{len(self._bound)} iterations that share dimensions; rules 'access' and "
                "'gather' take any number of them"
            )
        return kinds

    def _are_twins(self, a: int, b: int, choices: Options) -> bool:
        """Return whether exchanging two iterations changes nothing."""
        if a in self._free:
            return True
        differ = (self._conflicts[a] ^ self._conflicts[b]) & ~(1 << a | 1 << b)
        return not differ and choices[a] == choices[b]

    def _accepts(self, assignment: Assignment) -> bool:
        """Return whether a choice of candidates is a union of base matches."""
        bound = tuple(assignment[s] for s in self._bound)
        free = _mask(tuple(assignment[s] for s in self._free))
        return self._good(bound, _mask(bound) & ~free)

    def _has_base_matches(self, bound: Assignment, needy: int) -> bool:
        """Return whether each bound iteration is in a base match.

        ``needy`` is the bit set of intrinsic iterations without a free one, for which a bound
        one must be chosen.
        """
        groups = {t: 0 for t in range(needy.bit_length()) if needy >> t & 1}
        for s, t in zip(self._bound, bound, strict=True):
            if t in groups:
                groups[t] |= 1 << s
        return all(
            self._can_choose([g for t, g in groups.items() if t != at], self._conflicts[s])
            for s, at in zip(self._bound, bound, strict=True)
            if at >= 0
        )

    def _can_choose(self, groups: Sequence[int], barred: int) -> bool:
        """Return whether one of each group (a bit set) can be chosen, none of them barred."""
        if not groups:
            return True
        available = groups[0] & ~barred
        return any(
            self._can_choose(groups[1:], barred | self._conflicts[s])
            for s in self._bound
            if available >> s & 1
        )


#: One set for all pairs of the same access structure, whatever their sizes.
assignments = lru_cache(maxsize=256)(AssignmentSet)


def _add(kinds: _Kinds, key: object, example: Assignment, number: int) -> None:
    example, previous = kinds.get(key, (example, 0))
    kinds[key] = example, previous + number


def _bit(target: int) -> int:
    return 1 << target if target >= 0 else 0


def _mask(targets: Assignment) -> int:
    """Return the filled intrinsic iterations as a bit set."""
    mask = 0
    for t in targets:
        mask |= _bit(t)
    return mask
