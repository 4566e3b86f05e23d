"""All mappings of an operator onto an intrinsic (AMOS, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice, permutations
from typing import TYPE_CHECKING, Any, overload

from amos._display import Shown
from amos.errors import MappingError, shown
from amos.intrinsics import get as get_intrinsic
from amos.mapping.mapping import Mapping
from amos.mapping.names import not_found, read_name
from amos.mapping.spaces import AssignmentSet, ProductSet
from amos.mapping.unions import UnionSet, bound_iterations
from amos.validate.candidates import Pairing, check_rule, check_types
from amos.validate.compatible import check_compatible

if TYPE_CHECKING:
    import pandas as pd

    from amos.intrinsics import Intrinsic
    from amos.ir import Operator

__all__ = ["MappingSpace", "enumerate_mappings", "forget"]

#: Rows that a table may have without being asked for.
_ROWS = 100_000


@dataclass(frozen=True)
class _Part:
    """The mappings of one order of the sources."""

    pairing: Pairing
    assignments: AssignmentSet

    @cached_property
    def operator(self) -> Operator:
        """The operator with open dtypes taken from the intrinsic."""
        loads, dtypes = self.pairing.loads, self.pairing.intrinsic.dtypes
        if all(load.tensor.dtype for load in loads):
            return self.pairing.operator
        names = {load.tensor.name: d for load, d in zip(loads, dtypes, strict=True)}
        return self.pairing.operator.with_dtypes(names)


class MappingSpace(Shown, Sequence[Mapping]):
    """All mappings under one rule, as a sequence that is never built as a whole.

    Mappings are ordered by order of the sources, then lexicographically over the
    software iterations in loop order, where an intrinsic iteration comes before
    none. So the first mapping of a 2-D convolution uses all its iterations.

    Attributes:
        operator: the operator, as given.
        intrinsic: the intrinsic.
        rule: the rule of validity.
    """

    def __init__(
        self, operator: Operator, intrinsic: Intrinsic, rule: str, parts: Sequence[_Part]
    ) -> None:
        self.operator, self.intrinsic, self.rule = operator, intrinsic, rule
        self._parts = tuple(parts)

    # Hides Sequence.count, which is of no use where every mapping occurs once.
    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of mappings, exact however many; ``len`` is limited to a word."""
        return sum(part.assignments.count for part in self._parts)

    @property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        """The orders of the sources that were tried and that the intrinsic takes."""
        return tuple(part.pairing.order for part in self._parts)

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        return self.count > 0

    def _make(self, part: _Part, assignment: tuple[int, ...]) -> Mapping:
        return Mapping(part.operator, self.intrinsic, assignment, part.pairing.order, self.rule)

    @overload
    def __getitem__(self, index: int) -> Mapping: ...
    @overload
    def __getitem__(self, index: slice) -> list[Mapping]: ...
    def __getitem__(self, index: int | slice) -> Mapping | list[Mapping]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.count))]
        place = index + self.count if index < 0 else index
        if place >= 0:
            for part in self._parts:
                if place < part.assignments.count:
                    return self._make(part, part.assignments.at(place))
                place -= part.assignments.count
        raise IndexError(f"mapping {index} of a space of {self.count}")

    def __iter__(self) -> Iterator[Mapping]:
        for part in self._parts:
            for assignment in part.assignments:
                yield self._make(part, assignment)

    def __contains__(self, mapping: object) -> bool:
        return isinstance(mapping, Mapping) and any(
            mapping.order == part.pairing.order
            and mapping.assignment in part.assignments
            and mapping.intrinsic == self.intrinsic
            and mapping.operator == part.operator
            for part in self._parts
        )

    def find(self, name: str) -> Mapping:
        """The mapping of that name; it costs the same in a space of any size.

        Raises:
            MappingError: the space has no such mapping; the message says what
                speaks against it under the space's rule, and gives near names.
        """
        if not isinstance(name, str):
            raise MappingError(f"expected the name of a mapping, got {shown(name)}")
        assignment, order = read_name(str(name), self.operator, self.intrinsic)
        for part in self._parts:
            if part.pairing.order == order and assignment in part.assignments:
                found = self._make(part, assignment)
                if found.name != name:
                    raise MappingError(
                        f"no mapping is called {name!r}; the same groups in loop order "
                        f"are {found.name!r}"
                    )
                return found
        raise not_found(str(name), self.operator, self.intrinsic, self.rule, assignment, order)

    def to_frame(self, limit: int | None = None) -> pd.DataFrame:
        """One row a mapping: name, the group of each intrinsic iteration as text,
        calls, utilization (0 to 1), and the order of the sources if it varies.

        ``frame.attrs["count"]`` is the number of mappings in the whole space.

        Args:
            limit: make a table of the first ``limit`` mappings only.

        Raises:
            MappingError: the space has more than a hundred thousand mappings and
                no limit is given, or the limit is negative.
        """
        import pandas as pd

        if limit is None and self.count > _ROWS:
            raise MappingError(
                f"a table of all {self.count} mappings of {self.operator.name} on "
                f"{self.intrinsic.name} would be too large: to_frame(limit={_ROWS}) gives "
                "the first ones, iterating gives them one by one"
            )
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise MappingError(f"limit: expected 0 or more, got {shown(limit)}")
        steps = [it.name for it in self.intrinsic.iterations]
        rows = []
        for mapping in islice(self, None if limit is None else min(limit, self.count)):
            row: dict[str, Any] = {"name": mapping.name}
            row |= {t: ", ".join(group) for t, group in mapping.groups.items()}
            physical = mapping.physical()
            row |= {"calls": physical.calls, "utilization": physical.utilization}
            if len(self._parts) > 1:
                row["order"] = mapping.order
            rows.append(row)
        last = ["order"] if len(self._parts) > 1 else []
        frame = pd.DataFrame(rows, columns=["name", *steps, "calls", "utilization", *last])
        frame.attrs["count"] = self.count
        return frame

    def __repr__(self) -> str:
        return (
            f"MappingSpace({self.operator.name} on {self.intrinsic.name}, "
            f"rule {self.rule!r}: {self.count} mappings)"
        )


def enumerate_mappings(
    op: Operator, intrinsic: str | Intrinsic, rule: str = "access", commute: bool = False
) -> MappingSpace:
    """Every mapping that a rule accepts.

    Args:
        op: the operator.
        intrinsic: the intrinsic, by name or as a description.
        rule: ``"paper"`` (unions of base matches), ``"access"`` (Algorithm 1 over
            the matched iterations) or ``"gather"`` (everything that computes the
            right result when fragments are gathered).
        commute: also try the other orders of the sources.

    Raises:
        MappingError: the rule is unknown, or the operator cannot use the
            intrinsic in any order that may be tried.
        UnknownNameError: there is no such intrinsic.
    """
    check_rule(rule)
    intrinsic = get_intrinsic(intrinsic)
    check_types(op, intrinsic)
    parts, refused = [], None
    orders = _orders(op, intrinsic)
    for order in orders if commute else orders[:1]:
        try:
            check_compatible(op, intrinsic, order)
        except MappingError as error:
            refused = refused or error
            continue
        pairing = Pairing.of(op, intrinsic, order)
        parts.append(_Part(pairing, _assignments(pairing, rule)))
    if not parts and refused is not None:
        if not commute and (other := _other_order(op, intrinsic)):
            hint = f"; with its sources in the order {other} it can: commute=True"
            raise MappingError(f"{refused}{hint}") from None
        raise refused
    return MappingSpace(op, intrinsic, rule, parts)


def _assignments(pairing: Pairing, rule: str) -> AssignmentSet:
    conflicts = pairing.conflicts if rule == "paper" else ()
    return _assignment_set(pairing.candidates(rule), conflicts, pairing.rank)


@lru_cache(maxsize=256)
def _assignment_set(
    options: tuple[tuple[int, ...], ...], conflicts: tuple[int, ...], rank: int
) -> AssignmentSet:
    """One set for all pairs of the same access structure, whatever their sizes."""
    if conflicts and bound_iterations(options, conflicts):
        return UnionSet(options, conflicts, rank)
    # Where no two iterations exclude each other, what fills enough is a union.
    return ProductSet(options, rank)


def forget() -> None:
    """Drop what spaces of the same access structure share, to measure without it."""
    _assignment_set.cache_clear()


def _orders(op: Operator, intrinsic: Intrinsic) -> list[tuple[int, ...]]:
    """Orders of the sources, without those that only swap equal accesses.

    Where the intrinsic takes another number of sources, no order will do, and one says so.
    """
    written = tuple(range(len(op.sources)))
    if len(written) != len(intrinsic.sources):
        return [written]
    seen: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for order in permutations(written):
        seen.setdefault(tuple(op.sources[m] for m in order), order)
    return list(seen.values())


def _other_order(op: Operator, intrinsic: Intrinsic) -> str:
    """The sources in another order in which the intrinsic takes them, or nothing."""
    for order in _orders(op, intrinsic)[1:]:
        try:
            check_compatible(op, intrinsic, order)
        except MappingError:
            continue
        return ", ".join(f"`{op.sources[m].tensor.name}`" for m in order)
    return ""
