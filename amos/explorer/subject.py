"""From the texts of a state to operator, intrinsic and machine, or the field at fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from amos import intrinsics, operators
from amos.errors import AmosError, ParseError, UnknownNameError
from amos.explorer.sizes import resize_unit
from amos.explorer.state import FieldError, State
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine, catalogue
from amos.mapping import Mapping as Placement
from amos.mapping import MappingSpace, enumerate_mappings
from amos.operators.lookup import read_extents
from amos.validate import Verdict, check_matching
from amos.validate.pairing import check_rule

#: Name of the first described machine that has a rate for the intrinsic.
AUTO = "auto"
#: This computer.
HOST = "host"

#: Most loops, and the largest size, for which an answer takes no noticeable time.
_LOOPS, _EXTENT = 20, 10**9


@dataclass(frozen=True)
class Offer:
    """Choices of the explorer.

    Attributes:
        files: intrinsics described in a file, and where that is.
        host: this computer, measured for an intrinsic; ``None`` if that is not on offer.
    """

    files: Mapping[str, str]
    machines: Mapping[str, Machine]
    host: Callable[[Intrinsic], Machine] | None = None

    def machine(self, name: str, unit: Intrinsic) -> Machine | None:
        """Return a machine by name, with the rate of an intrinsic if there is one.

        Args:
            name: ``auto`` for the first described machine that has a rate, where one of the
                intrinsic's description counts if it says of which machine it is; an empty
                name for none.

        Raises:
            UnknownNameError: there is no such machine here.
        """
        if name == AUTO:
            timed = {timing.machine for timing in unit.timing}
            names = sorted(catalogue.names())
            name = next((n for n in names if n in timed or unit.name in catalogue.get(n).peaks), "")
        if not name:
            return None
        if name in self.machines:
            return self.machines[name]
        if name == HOST and self.host is not None:
            return self.host(unit)
        if name not in catalogue.names():
            raise UnknownNameError("machine", name, self.machine_names())
        return catalogue.get(name, [unit])

    def machine_names(self) -> list[str]:
        """List every machine on offer, sorted."""
        here = [HOST] if self.host is not None else []
        return [AUTO, *sorted({*here, *self.machines, *catalogue.names()})]


@dataclass(frozen=True)
class Subject:
    """The objects that a state names.

    Attributes:
        assignment: the matching that is looked at.
        order: the order of the sources that it is looked at in.
        machine: where the model runs it, if anywhere.
    """

    space: MappingSpace
    assignment: tuple[int, ...]
    order: tuple[int, ...]
    machine: Machine | None

    @staticmethod
    def of(state: State, offer: Offer) -> Subject:
        """Look everything up; a FieldError has the message of the command line."""
        with field("rule"):
            check_rule(state.rule)
        op = operator_of(state)
        with field("intrinsic"):
            described = intrinsics.get(state.intrinsic)
        with field("machine"):
            machine = offer.machine(state.machine, described)
        unit, machine = resize_unit(described, machine, state.sizes)
        with field("intrinsic"):
            space = _enumerate(op, unit, state.rule, state.commute)
        first = space[0] if space else None
        order = _order(state.order, space, first)
        assignment = _assignment(state.assignment, op, unit, first)
        return Subject(space, assignment, order, machine)

    @property
    def matching(self) -> np.ndarray:
        """The matching matrix that is looked at."""
        rows = np.arange(len(self.space.intrinsic.iterations))
        return np.asarray(np.equal.outer(rows, np.array(self.assignment, dtype=int)))

    @property
    def as_given(self) -> bool:
        """True if the intrinsic's sources are fed in the operator's own order."""
        return self.order == tuple(range(len(self.order)))

    def judge(self, rule: str, order: tuple[int, ...] | None = None) -> Verdict:
        """Judge the current matching by a rule, in its order or another."""
        op, unit = self.space.operator, self.space.intrinsic
        return check_matching(op, unit, self.matching, rule, order=order or self.order)

    def accepting_orders(self) -> list[str]:
        """List the other orders of the sources in which the rule accepts the matching."""
        orders = (order for order in self.space.orders if order != self.order)
        return [self.sources(order) for order in orders if self.judge(self.space.rule, order)]

    def place(self, rule: str) -> Placement:
        """Create the mapping of the current matching by a rule, or raise MappingError."""
        op, unit = self.space.operator, self.space.intrinsic
        return Placement.of(op, unit, self.matching, rule, self.order)

    def sources(self, order: Sequence[int]) -> str:
        """Name the operator's sources in an order."""
        return ", ".join(self.space.operator.sources[m].tensor.name for m in order)


@contextmanager
def field(name: str) -> Iterator[None]:
    """Attribute an error to a field; options are named as on the command line."""
    try:
        yield
    except AmosError as error:
        raise FieldError(name, str(error).replace("commute=True", "--commute")) from None


def extents_of(text: str) -> dict[str, int]:
    """Parse the extents of a state; raise AmosError if one is not a number, or is too large."""
    extents = read_extents(
        item for item in re.split(r"\s*[,;]\s*|(?<=\d)\s+", text.strip()) if item
    )
    for name, size in extents.items():
        if size > _EXTENT:
            raise FieldError("extents", f"{name}={size}: the explorer takes extents up to 10^9")
    return extents


def operator_of(state: State) -> Operator:
    """Resolve the operator that the texts of a state name, or raise FieldError."""
    with field("extents"):
        extents_of(state.extents)
    texts = {name: getattr(state, name) for name in ("operator", "extents", "dtype", "layout")}
    try:
        op = _resolve(**texts)
    except AmosError as error:
        raise FieldError(_at_fault(texts, error), str(error)) from None
    if len(op.iterations) > _LOOPS:
        raise FieldError("operator", f"{op.name} has {len(op.iterations)} loops; the explorer "
                         f"takes up to {_LOOPS}")  # fmt: skip
    return op


@lru_cache(maxsize=32)
def _enumerate(op: Operator, unit: Intrinsic, rule: str, commute: bool) -> MappingSpace:
    return enumerate_mappings(op, unit, rule, commute)


@lru_cache(maxsize=256)
def _resolve(operator: str, extents: str, dtype: str, layout: str) -> Operator:
    return operators.resolve(
        operator, extents_of(extents), dtype=dtype or None, layout=layout or None
    )


def _at_fault(texts: dict[str, str], error: AmosError) -> str:
    """Return the first field without which there would be an operator."""
    if isinstance(error, ParseError):
        return "operator"
    for name in ("layout", "dtype", "extents"):
        if texts[name]:
            with suppress(AmosError):
                _resolve(**texts | {name: ""})
                return name
    # Math needs its extents; without them no other field can be blamed.
    return "extents" if "[" in texts["operator"] else "operator"


def _assignment(
    assignment: tuple[int, ...] | None, op: Operator, unit: Intrinsic, first: Placement | None
) -> tuple[int, ...]:
    """Return the requested assignment if it fits, else the first mapping's, else none."""
    if assignment is None or len(assignment) != len(op.iterations):
        return first.assignment if first is not None else (-1,) * len(op.iterations)
    if (most := max(assignment, default=-1)) >= len(unit.iterations):
        raise FieldError(
            "matching",
            f"matching of {op.name} on {unit.name}: expected iterations up to "
            f"{len(unit.iterations) - 1}, got {most}",
        )
    return assignment


def _order(
    order: tuple[int, ...] | None, space: MappingSpace, first: Placement | None
) -> tuple[int, ...]:
    """Return the requested order if the space has it, else that of the first mapping."""
    if order is None or len(order) != len(space.orders[0]):
        return first.order if first is not None else space.orders[0]
    if order not in space.orders:
        orders = "; ".join(", ".join(map(str, each)) for each in space.orders)
        raise FieldError(
            "order",
            f"expected an order of the sources that is looked at ({orders}), got "
            f"{', '.join(map(str, order))}",
        )
    return order
