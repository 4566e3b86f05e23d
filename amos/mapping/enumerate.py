"""All mappings of an operator onto an intrinsic (AMOS, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from amos._display import Shown
from amos.errors import MappingError, quote
from amos.intrinsics import get as get_intrinsic
from amos.mapping.mapping import Mapping
from amos.mapping.spaces import Assignment, AssignmentSet, assignments
from amos.validate.naming import read_name
from amos.validate.pairing import Pairing, check_compatible, check_rule, check_types
from amos.validate.verdict import check_matching

if TYPE_CHECKING:
    import pandas as pd

    from amos.intrinsics import Intrinsic
    from amos.ir import Operator

#: Most rows of a table without an explicit limit.
_ROWS = 100_000


@dataclass(frozen=True)
class _Subspace:
    """The mappings of one order of the sources."""

    pairing: Pairing
    rule: str
    assignments: AssignmentSet

    @staticmethod
    def of(pairing: Pairing, rule: str) -> _Subspace:
        conflicts = pairing.conflicts if rule == "paper" else ()
        return _Subspace(
            pairing, rule, assignments(pairing.candidates(rule), pairing.rank, conflicts)
        )

    def mapping(self, assignment: Assignment) -> Mapping:
        return Mapping.from_pairing(self.pairing, assignment, self.rule)


class MappingSpace(Shown, Sequence[Mapping]):
    """All mappings under one rule, as a sequence that is never built as a whole.

    Mappings are ordered by order of the sources, then lexicographically over the
    software iterations in loop order, where an intrinsic iteration comes before
    none. So the first mapping of a 2-D convolution uses all its iterations.
    """

    def __init__(
        self, operator: Operator, intrinsic: Intrinsic, rule: str, parts: Sequence[_Subspace]
    ) -> None:
        self.operator, self.intrinsic, self.rule = operator, intrinsic, rule
        self._subspaces = tuple(parts)

    # Hides Sequence.count, which is useless where every mapping occurs once.
    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of mappings, exact however many; ``len`` is limited to a word."""
        return sum(subspace.assignments.count for subspace in self._subspaces)

    @property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        """The orders of the sources that were tried and that the intrinsic takes."""
        return tuple(subspace.pairing.order for subspace in self._subspaces)

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        return self.count > 0

    @overload
    def __getitem__(self, index: int) -> Mapping: ...
    @overload
    def __getitem__(self, index: slice) -> list[Mapping]: ...
    def __getitem__(self, index: int | slice) -> Mapping | list[Mapping]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.count))]
        place = index + self.count if index < 0 else index
        if place >= 0:
            for subspace in self._subspaces:
                if place < subspace.assignments.count:
                    return subspace.mapping(subspace.assignments.at(place))
                place -= subspace.assignments.count
        raise IndexError(f"mapping {index} of a space of {self.count}")

    def __iter__(self) -> Iterator[Mapping]:
        for subspace in self._subspaces:
            yield from map(subspace.mapping, subspace.assignments)

    def __contains__(self, mapping: object) -> bool:
        return isinstance(mapping, Mapping) and any(
            mapping.order == subspace.pairing.order
            and mapping.assignment in subspace.assignments
            and mapping.intrinsic == self.intrinsic
            and mapping.operator == subspace.pairing.typed
            for subspace in self._subspaces
        )

    def find(self, name: str) -> Mapping:
        """Look up the mapping of that name; takes the same time in a space of any size.

        Raises:
            MappingError: the space has no such mapping; the message gives the reasons
                against it under the space's rule, and near names.
        """
        if not isinstance(name, str):
            raise MappingError(f"expected the name of a mapping, got {quote(name)}")
        assignment, order = read_name(str(name), self.operator, self.intrinsic)
        for subspace in self._subspaces:
            if subspace.pairing.order == order and assignment in subspace.assignments:
                mapping = subspace.mapping(assignment)
                if mapping.name != name:
                    raise MappingError(
                        f"no mapping is called {name!r}; the same groups in loop order "
                        f"are {mapping.name!r}"
                    )
                return mapping
        matrix = np.equal.outer(np.arange(len(self.intrinsic.iterations)), assignment)
        verdict = check_matching(self.operator, self.intrinsic, matrix, self.rule, order=order)
        if verdict:
            raise MappingError(
                f"the space has no {name!r}: it holds the sources in their given order only, "
                "see commute=True"
            )
        raise MappingError(
            f"{name!r} is no mapping of {self.operator.name} on {self.intrinsic.name} under "
            f"rule {self.rule!r}: {verdict.reasons[0]}. {verdict.hint}"
        )

    def to_frame(self, limit: int | None = None) -> pd.DataFrame:
        """Tabulate the mappings, one a row.

        Columns: name, the group of each intrinsic iteration as text, calls, utilization (0 to 1),
        and the order of the sources if it varies.

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
            raise MappingError(f"limit: expected 0 or more, got {quote(limit)}")
        varies = len(self._subspaces) > 1
        rows = []
        for mapping in islice(self, None if limit is None else min(limit, self.count)):
            physical = mapping.physical()
            row: dict[str, Any] = {"name": mapping.name}
            row |= {t: ", ".join(group) for t, group in mapping.groups.items()}
            row |= {"calls": physical.calls, "utilization": physical.utilization}
            rows.append(row | ({"order": mapping.order} if varies else {}))
        steps = [it.name for it in self.intrinsic.iterations]
        columns = ["name", *steps, "calls", "utilization", *(["order"] if varies else [])]
        frame = pd.DataFrame(rows, columns=columns)
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
    """Enumerate every mapping that a rule accepts.

    Args:
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
    orders = _orders(op, intrinsic)
    pairings, refusals = _pair_orders(op, intrinsic, orders if commute else orders[:1])
    if not pairings:
        alternatives, _ = _pair_orders(op, intrinsic, () if commute else orders[1:])
        if alternatives:
            order = ", ".join(f"`{load.tensor.name}`" for load in alternatives[0].loads[:-1])
            hint = f"; with its sources in the order {order} it can: commute=True"
            raise MappingError(f"{refusals[0]}{hint}")
        raise refusals[0]
    return MappingSpace(op, intrinsic, rule, [_Subspace.of(pairing, rule) for pairing in pairings])


def _orders(op: Operator, intrinsic: Intrinsic) -> list[tuple[int, ...]]:
    """List orders of the sources, without those that only swap equal accesses.

    Where the intrinsic takes another number of sources, no order fits, and one suffices to say so.
    """
    written = tuple(range(len(op.sources)))
    if len(written) != len(intrinsic.sources):
        return [written]
    distinct: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for order in permutations(written):
        distinct.setdefault(tuple(op.sources[m] for m in order), order)
    return list(distinct.values())


def _pair_orders(
    op: Operator, intrinsic: Intrinsic, orders: Sequence[tuple[int, ...]]
) -> tuple[list[Pairing], list[MappingError]]:
    """Pair the orders that the intrinsic takes, and collect its reasons against the others."""
    pairings, refusals = [], []
    for order in orders:
        try:
            pairings.append(check_compatible(op, intrinsic, order))
        except MappingError as error:
            refusals.append(error)
    return pairings, refusals
