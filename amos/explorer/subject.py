"""From the texts of a state to operator, intrinsic and machine, or the field at fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from amos import intrinsics, operators
from amos.errors import AmosError, MappingError, ParseError, UnknownNameError
from amos.explorer.state import FieldError, State
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine, catalogue
from amos.mapping import Mapping as Placement
from amos.mapping import MappingSpace, enumerate_mappings
from amos.operators.lookup import read_extents
from amos.validate import RULES, Verdict, check_matching

__all__ = ["AUTO", "Offer", "Subject", "default_machine"]

#: Stands for the first described machine that has a rate for the intrinsic.
AUTO = "auto"
#: This computer.
HOST = "host"

T = TypeVar("T")

#: Loops and sizes beyond which an answer would not come at once.
_LOOPS, _EXTENT = 20, 10**9


@dataclass(frozen=True)
class Offer:
    """What can be chosen.

    Attributes:
        files: intrinsics described in a file, and where that is.
        machines: machines besides the described ones.
        host: this computer, measured for an intrinsic; ``None`` if that is not on offer.
    """

    files: Mapping[str, str]
    machines: Mapping[str, Machine]
    host: Callable[[Intrinsic], Machine] | None = None

    def machine(self, name: str, unit: Intrinsic) -> Machine:
        """A machine by name, with the rate of an intrinsic if there is one.

        Raises:
            UnknownNameError: there is no such machine here.
        """
        if name in self.machines:
            return self.machines[name]
        if name == HOST and self.host is not None:
            return self.host(unit)
        if name not in catalogue.names():
            raise UnknownNameError("machine", name, self.machine_names())
        return catalogue.get(name, [unit])

    def machine_names(self) -> list[str]:
        """Every machine on offer, sorted."""
        here = [HOST] if self.host is not None else []
        return [AUTO, *sorted({*here, *self.machines, *catalogue.names()})]


@dataclass(frozen=True)
class Subject:
    """What a state stands for.

    Attributes:
        operator, intrinsic, rule: what is matched, and by which rule.
        space: its mappings under that rule.
        assignment: the matching that is looked at.
        order: the order of the sources that it is looked at in.
        machine: where the model runs it, if anywhere.
        extents: the extents that the state gives, as numbers.
    """

    operator: Operator
    intrinsic: Intrinsic
    rule: str
    space: MappingSpace
    assignment: tuple[int, ...]
    order: tuple[int, ...]
    machine: Machine | None
    extents: Mapping[str, int]

    @staticmethod
    def of(state: State, offer: Offer) -> Subject:
        """Look everything up.

        Raises:
            FieldError: a field is at fault; the message is that of the command line.
        """
        if state.rule not in RULES:
            raise FieldError("rule", str(UnknownNameError("rule", state.rule, RULES)))
        extents = _field("extents", _extents, state.extents)
        op = _operator(state, extents)
        unit = _field("intrinsic", intrinsics.get, state.intrinsic)
        space = _space(op, unit, state.rule, state.commute)
        named = default_machine(unit) if state.machine == AUTO else state.machine
        machine = _field("machine", lambda n: offer.machine(n, unit), named) if named else None
        first = space[0] if space else None
        order = _order(state.order, space, first)
        assignment = _assignment(state.assignment, op, unit, first)
        return Subject(op, unit, state.rule, space, assignment, order, machine, extents)

    @property
    def matching(self) -> np.ndarray:
        """The matching matrix that is looked at."""
        rows = np.arange(len(self.intrinsic.iterations))
        return np.asarray(np.equal.outer(rows, np.array(self.assignment, dtype=int)))

    @property
    def as_given(self) -> bool:
        """True if the intrinsic's sources are fed in the operator's own order."""
        return self.order == tuple(range(len(self.order)))

    def judged(self, rule: str, order: tuple[int, ...] | None = None) -> Verdict:
        """What a rule says of the matching that is looked at, in its order or another."""
        op, unit = self.operator, self.intrinsic
        return check_matching(op, unit, self.matching, rule, order=order or self.order)

    def accepting(self) -> list[str]:
        """The other orders of the sources in which the rule accepts the matching."""
        others = (order for order in self.space.orders if order != self.order)
        return [self.sources(order) for order in others if self.judged(self.rule, order)]

    def placed(self, rule: str) -> Placement:
        """The mapping that a rule makes of the matching that is looked at.

        Raises:
            MappingError: the rule refuses it.
        """
        return Placement.of(self.operator, self.intrinsic, self.matching, rule, self.order)

    def sources(self, order: Sequence[int]) -> str:
        """The operator's sources in an order, by name."""
        return ", ".join(self.operator.sources[m].tensor.name for m in order)


def default_machine(unit: Intrinsic) -> str:
    """The first described machine that has a rate for the intrinsic; nothing if none has.

    A rate of the intrinsic's description counts only if it says of which machine it is.
    """
    timed = {timing.machine for timing in unit.timing}
    names = sorted(catalogue.names())
    having = (n for n in names if unit.name in catalogue.get(n).peaks or n in timed)
    return next(having, "")


def _field(name: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except AmosError as error:
        raise FieldError(name, str(error)) from None


def _extents(text: str) -> dict[str, int]:
    found = read_extents(item for item in re.split(r"\s*[,;]\s*|(?<=\d)\s+", text.strip()) if item)
    for name, size in found.items():
        if size > _EXTENT:
            raise FieldError("extents", f"{name}={size}: the explorer takes extents up to 10^9")
    return found


def _operator(state: State, extents: dict[str, int]) -> Operator:
    try:
        op = _resolve(state.operator, tuple(extents.items()), state.dtype, state.layout)
    except ParseError as error:
        raise FieldError("operator", str(error)) from None
    except AmosError as error:
        raise FieldError(_at_fault(state, extents), str(error)) from None
    if len(op.iterations) > _LOOPS:
        raise FieldError("operator", f"{op.name} has {len(op.iterations)} loops; the explorer "
                         f"takes up to {_LOOPS}")  # fmt: skip
    return op


def _space(op: Operator, unit: Intrinsic, rule: str, commute: bool) -> MappingSpace:
    try:
        return _enumerated(op, unit, rule, commute)
    except AmosError as error:
        # As the command line says it, and as the field on the page is called.
        raise FieldError("intrinsic", str(error).replace("commute=True", "--commute")) from None


@lru_cache(maxsize=32)
def _enumerated(op: Operator, unit: Intrinsic, rule: str, commute: bool) -> MappingSpace:
    return enumerate_mappings(op, unit, rule, commute)


@lru_cache(maxsize=256)
def _resolve(text: str, extents: tuple[tuple[str, int], ...], dtype: str, layout: str) -> Operator:
    return operators.resolve(text, dict(extents), dtype=dtype or None, layout=layout or None)


def _at_fault(state: State, extents: dict[str, int]) -> str:
    """The first field without which the operator would be one."""
    for name in ("layout", "dtype", "extents"):
        if not getattr(state, name):
            continue
        left = {} if name == "extents" else extents
        dtype, layout = ("" if name == key else getattr(state, key) for key in ("dtype", "layout"))
        try:
            _resolve(state.operator, tuple(left.items()), dtype, layout)
        except AmosError:
            continue
        return name
    # Math needs its extents; without them nothing else can be told.
    return "extents" if "[" in state.operator else "operator"


def _assignment(
    given: Sequence[int] | None, op: Operator, unit: Intrinsic, first: Placement | None
) -> tuple[int, ...]:
    """What was given if it fits these iterations, else the first mapping, else nothing."""
    if given is not None and len(given) == len(op.iterations):
        if max(given, default=-1) >= len(unit.iterations):
            raise FieldError("matching", str(MappingError(
                f"matching of {op.name} on {unit.name}: expected iterations up to "
                f"{len(unit.iterations) - 1}, got {max(given)}")))  # fmt: skip
        return tuple(given)
    return first.assignment if first is not None else (-1,) * len(op.iterations)


def _order(
    given: tuple[int, ...] | None, space: MappingSpace, first: Placement | None
) -> tuple[int, ...]:
    """What was given if the space has it, else that of the first mapping."""
    if given is None or len(given) != len(space.orders[0]):
        return first.order if first is not None else space.orders[0]
    if given not in space.orders:
        known = "; ".join(", ".join(map(str, order)) for order in space.orders)
        raise FieldError(
            "order", f"expected an order of the sources that is looked at ({known}), got "
            f"{', '.join(map(str, given))}")  # fmt: skip
    return given
