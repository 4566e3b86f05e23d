"""Select the instructions that take part in a search, and explain the exclusion of others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from amos.errors import (
    AmosError,
    BuildError,
    ExploreError,
    MappingError,
    ScheduleError,
    UnknownNameError,
)
from amos.explore.options import SearchOptions
from amos.explore.sampled import best_sampled
from amos.intrinsics import Intrinsic, is_native, names
from amos.intrinsics import get as get_intrinsic
from amos.ir import Operator
from amos.machine import Machine, catalogue
from amos.machine.cpu import cpu
from amos.mapping import Mapping, MappingSpace, enumerate_mappings
from amos.plan.target import target_of
from amos.schedule import spaces_of

#: Cycles between calls of an instruction whose description has no rate.
_INTERVAL = 0.5
#: An instruction predicted slower than the best by this factor is not measured.
_HOPELESS = 2.5
#: Mappings of an instruction that the model evaluates, and schedules of each.
_MAPPINGS, _SCHEDULES = 6, 12
#: The same for a brief look.
_BRIEFLY = 1, 8
#: A larger space is searched through this many mappings, spread evenly over it.
_MOST_MAPPINGS = 512


@dataclass(frozen=True)
class Contender:
    """An instruction in a search, or one that could not take part.

    Attributes:
        mappings: how many it has under the rule.
        utilization: the best of them.
        bound: least cycles of its calls, summed over all cores.
        predicted: seconds of its best evaluated candidate by the model; infinite without one.
        trials: how many candidates were measured.
        seconds: of the best one; infinite without one.
        reason: why it was excluded or dropped.
    """

    intrinsic: Intrinsic
    mappings: int = 0
    utilization: float = 0.0
    bound: float = math.inf
    predicted: float = math.inf
    trials: int = 0
    seconds: float = math.inf
    reason: str = ""

    def least_seconds(self, machine: Machine) -> float:
        """Return the seconds of its calls alone, a lower bound, by the machine's rate."""
        if self.intrinsic.name not in machine.peaks:
            return math.inf
        calls = self.bound / _interval_of(self.intrinsic)
        return calls * machine.peak(self.intrinsic.name).interval / machine.cores

    @property
    def compared(self) -> bool:
        """Whether it was measured, or at least predicted."""
        return self.trials > 0 or math.isfinite(self.predicted)

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON; times in seconds, ``None`` where unknown."""
        return {
            "intrinsic": self.intrinsic.name,
            "mappings": self.mappings,
            "utilization": self.utilization,
            "predicted_seconds": _finite(self.predicted),
            "trials": self.trials,
            "seconds": _finite(self.seconds),
            "reason": self.reason,
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def select_intrinsics(
    request: str | Intrinsic | Sequence[str | Intrinsic] | None,
    machine: str | Machine,
    features: frozenset[str] | None = None,
) -> list[Intrinsic]:
    """Select the instructions that a search is asked to use.

    Args:
        request: one, several, the name of a family, or ``None`` for all that the machine has.
        features: of the CPU that measures, if it is not this one.

    Raises:
        ExploreError: the machine has none.
        UnknownNameError: there is no such intrinsic or machine.
    """
    if request is None:
        units = [unit for unit in map(get_intrinsic, names()) if executes(machine, unit, features)]
        if not units:
            name = machine if isinstance(machine, str) else machine.name
            raise ExploreError(f"machine {name!r} has no instruction that is registered; name one")
        return units
    if isinstance(request, str | Intrinsic):
        if request not in names() and isinstance(request, str):
            family = [unit for unit in map(get_intrinsic, names()) if unit.family == request]
            if native := [unit for unit in family if executes(machine, unit, features)] or family:
                return native
        return [get_intrinsic(request)]
    if not request:
        raise ExploreError("intrinsic: expected at least one, got none")
    return list({unit.name: unit for unit in map(get_intrinsic, request)}.values())


def executes(
    machine: str | Machine, unit: Intrinsic, features: frozenset[str] | None = None
) -> bool:
    """Return whether a machine executes an instruction itself; ``features`` as above."""
    if getattr(machine, "name", machine) == "host":
        if not unit.requires:
            return isinstance(machine, Machine) and unit.name in machine.peaks
        return is_native(unit, features or cpu().features)
    target = catalogue.get(machine)
    if unit.name in target.peaks or not unit.requires:
        return unit.name in target.peaks
    return target_of(target).executes(unit, target)


def contenders(
    operator: Operator,
    units: Iterable[Intrinsic],
    rule: str,
    search: SearchOptions = SearchOptions(),  # noqa: B008 (frozen)
) -> list[Contender]:
    """List every instruction with its mappings, usable ones first, best bound first.

    Of instructions that compute the same in calls of the same size, one is kept; one whose call
    count cannot come near the best is left out before anything is measured.

    Raises:
        MappingError: a dtype of the operator is open, and they compute in several.
    """
    units = list(units)
    if open_ := [t.name for t in operator.inputs if t.dtype is None]:
        compatible = [u for u in units if u.compute.arithmetic == operator.compute.arithmetic]
        if len(kinds := {" x ".join(d.spelled for d in u.kinds[:-1]) for u in compatible}) > 1:
            raise MappingError(
                f"{operator.name}: the dtype of `{open_[0]}` is open, so that instructions would "
                f"compute different things ({', '.join(sorted(kinds))}); give dtypes, or name one "
                "instruction"
            )
    all_contenders = [_contender(operator, unit, rule, search) for unit in units]
    mapped = [each for each in all_contenders if not each.reason]
    mapped.sort(
        key=lambda contender: (
            contender.bound,
            -contender.intrinsic.registers,
            contender.intrinsic.name,
        )
    )
    usable, refused = [], []
    seen: dict[object, str] = {}
    for contender in mapped:
        unit = contender.intrinsic
        signature = str(unit.compute), tuple(unit.extents.items()), unit.dtypes
        slower = contender.bound / mapped[0].bound
        if (first := seen.setdefault(signature, unit.name)) != unit.name:
            refused.append(replace(contender, reason=f"computes what {first} does"))
        elif slower > _HOPELESS:
            fastest = mapped[0].intrinsic.name
            reason = f"its calls alone take {slower:.1f} times as long as those of {fastest}"
            refused.append(replace(contender, reason=reason))
        else:
            usable.append(contender)
    return [*usable, *refused, *(each for each in all_contenders if each.reason)]


def _contender(operator: Operator, unit: Intrinsic, rule: str, search: SearchOptions) -> Contender:
    """Count the calls of an instruction's best mapping, or say why it has none."""
    if unit.compute.arithmetic != (arithmetic := operator.compute.arithmetic):
        return Contender(unit, reason=f"its arithmetic is not {arithmetic}")
    try:
        space = enumerate_mappings(operator, unit, rule, search.commute)
        if not space.count:
            reason = f"no mapping under rule {rule!r}{gather_hint(operator, unit, rule, search)}"
            return Contender(unit, reason=reason)
        best = _sort_by_calls(list_mappings(space, search.only))[0].physical()
    except (MappingError, UnknownNameError) as error:
        return Contender(unit, reason=_strip_names(error, operator, unit))
    count = len(search.only) or space.count
    return Contender(unit, count, best.utilization, best.calls * _interval_of(unit))


def gather_hint(operator: Operator, unit: Intrinsic, rule: str, search: SearchOptions) -> str:
    """Say that only the rule ``gather`` has mappings, if so; otherwise return nothing."""
    if rule == "gather" or not enumerate_mappings(operator, unit, "gather", search.commute).count:
        return ""
    return "; only rule='gather' has mappings, with fragments gathered while staging"


def _interval_of(unit: Intrinsic) -> float:
    """Return the cycles between independent calls of an instruction, by its description."""
    return min((t.interval for t in unit.timing), default=_INTERVAL)


def list_mappings(space: MappingSpace, only: Sequence[str] = ()) -> list[Mapping]:
    """List the mappings of these names; without names all, or an even selection of many."""
    if only:
        return [space.find(name) for name in only]
    step = max(1.0, space.count / _MOST_MAPPINGS)
    return [space[int(n * step)] for n in range(min(space.count, _MOST_MAPPINGS))]


def list_rivals(space: MappingSpace) -> list[Mapping]:
    """List the mappings of a space that may have the fastest kernel.

    Mappings that differ only in loops of one step compute the same; the first of them is kept.
    Mappings with many more calls than the fewest are left out.
    """
    distinct: dict[object, Mapping] = {}
    for mapping in list_mappings(space):
        extents = mapping.operator.extents
        loops = (tuple(n for n in group if extents[n] > 1) for group in mapping.groups.values())
        distinct.setdefault((mapping.order, *loops), mapping)
    calls = {mapping.name: mapping.physical().calls for mapping in distinct.values()}
    most = _HOPELESS * min(calls.values(), default=0)
    return [mapping for mapping in distinct.values() if calls[mapping.name] <= most]


def predict_contender(
    operator: Operator,
    contender: Contender,
    machine: Machine,
    rule: str,
    search: SearchOptions = SearchOptions(),  # noqa: B008 (frozen)
    *,
    brief: bool = False,
) -> Contender:
    """Return a contender with its predicted seconds, or with the reason why it cannot be used.

    Args:
        brief: look at a few schedules of one mapping, in a fifth of the time.
    """
    if reason := explain_refusal(operator, contender, machine):
        return replace(contender, reason=reason)
    rng = np.random.default_rng(0)
    space = enumerate_mappings(operator, contender.intrinsic, rule, search.commute)
    mappings = _sort_by_calls(list_mappings(space, search.only))
    # Fixed values may leave a mapping that takes more calls.
    most, schedules = _BRIEFLY if brief else (_MAPPINGS, _SCHEDULES)
    tried = mappings if search.fix else mappings[:most]
    try:
        spaces = spaces_of(tried, machine, search.fix, search.tiling)
    except (ScheduleError, UnknownNameError) as error:
        return replace(contender, reason=str(error))
    feasible = [mapping for mapping in tried if mapping.name in spaces][:most]
    drawn = (best_sampled(m, machine, schedules, rng, spaces[m.name]) for m in feasible)
    times = [best[0].seconds for best in drawn if best is not None]
    return replace(contender, predicted=min(times, default=math.inf))


def explain_refusal(operator: Operator, contender: Contender, machine: Machine) -> str:
    """Say why a machine's target refuses an operator on an instruction; empty if it does not."""
    if contender.intrinsic.name not in machine.peaks:
        return f"machine {machine.name!r} has no rate for it"
    try:
        target_of(machine).check_operator(operator, contender.intrinsic, machine)
    except BuildError as error:
        return str(error)
    return ""


def reasons(refused: Sequence[Contender]) -> list[str]:
    """Describe why instructions were left out, a line a reason, the most frequent first."""
    kinds: dict[str, list[str]] = {}
    for contender in refused:
        kinds.setdefault(contender.reason, []).append(contender.intrinsic.name)
    ranked = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    return [
        f"{which[0]}{f' and {len(which) - 1} more' if len(which) > 1 else ''}: {reason}"
        for reason, which in ranked
    ]


def _sort_by_calls(mappings: Sequence[Mapping]) -> list[Mapping]:
    return sorted(mappings, key=lambda mapping: mapping.physical().calls)


def _strip_names(error: AmosError, operator: Operator, unit: Intrinsic) -> str:
    """Strip the mapping's name from a refusal, so that equal refusals compare equal."""
    return str(error).removeprefix(f"{operator.name} cannot use {unit.name}: ")
