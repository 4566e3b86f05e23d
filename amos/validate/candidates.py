"""Which software iterations may go to which intrinsic iterations, rule by rule.

A :class:`Pairing` holds an operator against an intrinsic as bit sets: bit ``m``
of a column says that the iteration indexes operand ``m`` (sources in order, then
the destination). Everything that enumerates or judges matchings starts here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index as as_index
from typing import TYPE_CHECKING

from amos.errors import MappingError, shown
from amos.intrinsics import Intrinsic
from amos.ir import Operator

if TYPE_CHECKING:
    from amos.ir import BufferLoad, Compute

__all__ = ["RULES", "Pairing", "check_rule", "check_types", "choose"]

#: Rules of validity, from the strictest to the widest.
RULES = ("paper", "access", "gather")

Candidates = tuple[tuple[int, ...], ...]


def check_rule(rule: str) -> str:
    """The rule itself.

    Raises:
        MappingError: there is no such rule.
    """
    if rule not in RULES:
        raise MappingError(f"unknown rule {shown(rule)}: rules are {', '.join(map(repr, RULES))}")
    return rule


def choose(options: Sequence[Sequence[int]], conflicts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every choice of one software iteration per entry, none in conflict with another.

    Args:
        options: for each entry the software iterations to choose from.
        conflicts: for each software iteration the bit set of those that it
            cannot be chosen with, itself included.
    """

    def extend(at: int, barred: int, chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if at == len(options):
            yield chosen
            return
        for s in options[at]:
            if not barred >> s & 1:
                yield from extend(at + 1, barred | conflicts[s], (*chosen, s))

    return extend(0, 0, ())


@dataclass(frozen=True)
class Pairing:
    """An operator held against an intrinsic, operand by operand.

    Attributes:
        operator: the software.
        intrinsic: the hardware.
        order: for each source of the intrinsic the index of the operator's
            source that feeds it.
    """

    operator: Operator
    intrinsic: Intrinsic
    order: tuple[int, ...]

    @staticmethod
    def of(operator: Operator, intrinsic: Intrinsic, order: Sequence[int] | None = None) -> Pairing:
        """Pair sources in the order given, or in ``order``.

        Raises:
            MappingError: these are no operator and intrinsic, the numbers of
                sources differ, or ``order`` is no permutation of the sources.
        """
        check_types(operator, intrinsic)
        count, expected = len(operator.sources), len(intrinsic.sources)
        if count != expected:
            raise MappingError(
                f"{operator.name} cannot use {intrinsic.name}: it has {count} "
                f"source{'s' * (count != 1)}, the intrinsic takes {expected}"
            )
        chosen = _read_order(order, count)
        if sorted(chosen) != list(range(count)):
            raise MappingError(
                f"order {shown(order)}: expected a permutation of the {count} sources "
                f"of {operator.name}"
            )
        return Pairing(operator, intrinsic, chosen)

    @cached_property
    def loads(self) -> tuple[BufferLoad, ...]:
        """The operator's accesses, one for each operand of the intrinsic."""
        return (*(self.operator.sources[m] for m in self.order), self.operator.output)

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """Columns of X: for each software iteration the operands it indexes."""
        return _columns(self.operator.compute, self.loads)

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Columns of Z: for each intrinsic iteration the operands it indexes."""
        return _columns(self.intrinsic.compute, self.intrinsic.operands)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """A name for each operand's tensor; the whole access if a tensor occurs twice."""
        tensors = [load.tensor.name for load in self.loads]
        return tuple(
            str(load) if tensors.count(load.tensor.name) > 1 else load.tensor.name
            for load in self.loads
        )

    @cached_property
    def conflicts(self) -> tuple[int, ...]:
        """For each software iteration those that share a dimension with it, and itself.

        Two iterations in one index, such as ``p*2 + r``, cannot both be chosen
        by a base match: an operand of an intrinsic has one iteration a dimension.
        """
        place = {it.name: s for s, it in enumerate(self.operator.iterations)}
        barred = [1 << s for s in range(len(place))]
        for load in self.loads:
            for index in load.indices:
                members = [place[name] for name in index.names]
                mask = sum(1 << s for s in members)
                for s in members:
                    barred[s] |= mask
        return tuple(barred)

    def candidates(self, rule: str) -> Candidates:
        """For each software iteration the intrinsic iterations it may go to.

        ``"gather"``: kinds agree and every source that the software iteration
        indexes is indexed by the intrinsic iteration. ``"access"``: the columns
        of X and Z are equal. ``"paper"``: also, set apart from all others, the
        iteration turns each index list into the intrinsic's.
        """
        if check_rule(rule) == "gather":
            return self._gather
        if rule == "access":
            return tuple(
                tuple(t for t in options if self.slots[t] == column)
                for options, column in zip(self._gather, self.columns, strict=True)
            )
        return tuple(
            tuple(t for t in options if self.obstacle(s, t) is None)
            for s, options in enumerate(self.candidates("access"))
        )

    @cached_property
    def _gather(self) -> Candidates:
        # Kinds agree exactly when the destination's entries do.
        dst = 1 << len(self.order)
        return tuple(
            tuple(t for t, z in enumerate(self.slots) if not x & ~z and not (x ^ z) & dst)
            for x in self.columns
        )

    def obstacle(self, s: int, t: int) -> str | None:
        """Why no base match sends ``s`` to ``t``, given that their columns are equal.

        None if one may: in every operand ``s`` occurs in as many dimensions as
        ``t`` does (one, as a rule), each time with a positive coefficient.
        """
        name, step = self.operator.iterations[s].name, self.intrinsic.iterations[t].name
        for load, operand, label in zip(
            self.loads, self.intrinsic.operands, self.labels, strict=True
        ):
            places = [
                (d, c) for d, index in enumerate(load.indices) for n, c in index.terms if n == name
            ]
            expected = sum(step in index.names for index in operand.indices)
            if len(places) != expected:
                return (
                    f"`{name}` indexes {len(places)} dimensions of `{label}` "
                    f"and `{step}` indexes {expected} of `{operand.tensor.name}`"
                )
            for d, c in places:
                if c < 0:
                    return f"`{name}` is reversed in dimension {d} of `{label}`"
        return None

    @cached_property
    def rank(self) -> int:
        """The largest number of intrinsic iterations that can be non-empty at once.

        A maximum bipartite matching over the gather candidates, whatever the
        rule: then paper ⊆ access ⊆ gather also holds for what is idle. A
        matching that fills fewer is idle. Nearly always every intrinsic
        iteration that has a candidate can be filled at the same time, and this
        says that one may be empty only if nothing could go there. It differs
        only where two of them compete for the same software iteration, and that
        sentence would leave no mapping at all.
        """
        owner: dict[int, int] = {}

        def place(s: int, seen: set[int]) -> bool:
            for t in self._gather[s]:
                if t not in seen:
                    seen.add(t)
                    if t not in owner or place(owner[t], seen):
                        owner[t] = s
                        return True
            return False

        return sum(place(s, set()) for s in range(len(self._gather)))


def check_types(operator: object, intrinsic: object) -> None:
    """Refuse anything else by name.

    Raises:
        MappingError: these are no operator and intrinsic.
    """
    if not isinstance(operator, Operator):
        raise MappingError(
            f"expected an Operator, got {_shown(operator)}; amos.Operator.parse reads math, "
            "amos.operators.resolve names"
        )
    if not isinstance(intrinsic, Intrinsic):
        raise MappingError(
            f"expected an Intrinsic, got {_shown(intrinsic)}; amos.intrinsics.get finds one by name"
        )


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else type(value).__name__


def _read_order(order: object, count: int) -> tuple[int, ...]:
    """The order as integers; empty if it is none."""
    if order is None:
        return tuple(range(count))
    try:
        return tuple(as_index(m) for m in order)  # type: ignore[attr-defined]
    except TypeError:
        return ()


def _columns(compute: Compute, loads: Sequence[BufferLoad]) -> tuple[int, ...]:
    rows = [load.names for load in loads]
    return tuple(
        sum(1 << m for m, row in enumerate(rows) if it.name in row) for it in compute.iterations
    )
