"""Which instructions of a machine take part in a search, and why the others do not."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from amos.errors import AmosError, ExploreError, MappingError
from amos.explore.sampled import best_sampled
from amos.intrinsics import Intrinsic, implementations, names
from amos.intrinsics import get as get_intrinsic
from amos.ir import Operator
from amos.machine import Machine, catalogue
from amos.machine.cpu import cpu
from amos.mapping import Mapping, MappingSpace, enumerate_mappings

__all__ = ["Contender", "chosen_intrinsics", "contenders", "predicted", "reasons"]

#: Cycles between calls of an instruction of which nothing is known.
_INTERVAL = 0.5
#: Slower than the best by this factor, an instruction is not even measured.
_HOPELESS = 2.5
#: Mappings of an instruction that the model is asked about, and schedules of each.
_MAPPINGS, _SCHEDULES = 6, 12


@dataclass(frozen=True)
class Contender:
    """An instruction in a search, or one that could not take part.

    Attributes:
        intrinsic: the instruction.
        mappings: how many it has under the rule.
        utilization: the best of them.
        bound: cycles of all cores together that its calls take at the least.
        predicted: seconds of the best that the model was asked about; infinite if it was not.
        trials: how many candidates were measured.
        seconds: of the best one; infinite without one.
        reason: why it was left out, or did not go on.
    """

    intrinsic: Intrinsic
    mappings: int = 0
    utilization: float = 0.0
    bound: float = math.inf
    predicted: float = math.inf
    trials: int = 0
    seconds: float = math.inf
    reason: str = ""

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; seconds, ``None`` where there are none."""
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


def chosen_intrinsics(
    wanted: str | Intrinsic | Sequence[str | Intrinsic] | None, machine: str | Machine
) -> list[Intrinsic]:
    """The instructions that a search is asked to use.

    Args:
        wanted: one, several, the name of a family, or ``None`` for all that the machine has.
        machine: by name or itself.

    Raises:
        ExploreError: the machine has none.
        UnknownNameError: there is no such intrinsic or machine.
    """
    if wanted is None:
        units = [unit for unit in map(get_intrinsic, names()) if _has(machine, unit)]
        if not units:
            name = machine if isinstance(machine, str) else machine.name
            raise ExploreError(f"machine {name!r} has no instruction that is known; name one")
        return units
    if isinstance(wanted, str | Intrinsic):
        if wanted not in names() and isinstance(wanted, str):
            family = [unit for unit in map(get_intrinsic, names()) if unit.family == wanted]
            if native := [unit for unit in family if _has(machine, unit)] or family:
                return native
        return [get_intrinsic(wanted)]
    if not wanted:
        raise ExploreError("intrinsic: expected at least one, got none")
    return [get_intrinsic(unit) for unit in wanted]


def _has(machine: str | Machine, unit: Intrinsic) -> bool:
    """Whether a machine executes the instruction itself."""
    if not unit.requires:
        return not isinstance(machine, str) and unit.name in machine.peaks
    if getattr(machine, "name", machine) == "host":
        source = implementations(unit.name).get("llvm")
        if source is None or source.machine not in ("", platform.machine()):
            return False
        return {*unit.requires, *source.requires} <= cpu().features
    target = catalogue.get(machine)
    if target.architecture:
        return 0 < unit.architecture <= target.architecture
    return {*unit.requires} <= {*target.features}


def contenders(
    operator: Operator, units: Iterable[Intrinsic], rule: str, *, commute: bool = False
) -> list[Contender]:
    """Every instruction with its mappings, those that take part first, best bound first.

    Instructions that compute the same in calls of the same size are one; what cannot be near
    the best by the number of its calls is left out before anything is measured.

    Raises:
        MappingError: a dtype of the operator is open.
    """
    if open_ := [t.name for t in operator.inputs if t.dtype is None]:
        raise MappingError(
            f"{operator.name}: the dtype of `{open_[0]}` is open, so that instructions would "
            "compute different things; give dtypes, or name one instruction"
        )
    found, refused = [], []
    for unit in units:
        try:
            space = enumerate_mappings(operator, unit, rule, commute)
        except MappingError as error:
            refused.append(Contender(unit, reason=_without_names(error, operator, unit)))
            continue
        if not space.count:
            refused.append(Contender(unit, reason=f"no mapping under rule {rule!r}"))
            continue
        best = _fewest_calls(space)[0].physical()
        interval = min((t.interval for t in unit.timing), default=_INTERVAL)
        found.append(Contender(unit, space.count, best.utilization, best.calls * interval))
    found.sort(key=lambda each: (each.bound, -each.intrinsic.registers, each.intrinsic.name))
    seen: dict[object, str] = {}
    for n, each in enumerate(found):
        unit = each.intrinsic
        alike = str(unit.compute), tuple(unit.extents.items()), unit.dtypes
        first = seen.setdefault(alike, unit.name)
        if first != unit.name:
            found[n] = replace(each, reason=f"computes what {first} does")
        elif each.bound > _HOPELESS * found[0].bound:
            slower = each.bound / found[0].bound
            found[n] = replace(each, reason=f"its calls alone take {slower:.1f} times the fewest")
    return sorted(found, key=lambda each: bool(each.reason)) + refused


def predicted(
    operator: Operator,
    each: Contender,
    machine: Machine,
    rule: str,
    *,
    commute: bool = False,
) -> Contender:
    """A contender with what the model says of its best mappings, or why it says nothing."""
    if each.intrinsic.name not in machine.peaks:
        return replace(each, reason=f"machine {machine.name!r} has no rate for it")
    rng = np.random.default_rng(0)
    space = enumerate_mappings(operator, each.intrinsic, rule, commute)
    drawn = (best_sampled(m, machine, _SCHEDULES, rng) for m in _fewest_calls(space))
    times = [best[0].seconds for best in drawn if best is not None]
    return replace(each, predicted=min(times, default=math.inf))


def reasons(refused: Sequence[Contender]) -> list[str]:
    """Why instructions were left out: a line for each kind of reason, the most frequent first."""
    kinds: dict[str, list[str]] = {}
    for each in refused:
        kinds.setdefault(each.reason, []).append(each.intrinsic.name)
    ranked = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    return [
        f"{which[0]}{f' and {len(which) - 1} more' if len(which) > 1 else ''}: {reason}"
        for reason, which in ranked
    ]


def _fewest_calls(space: MappingSpace) -> list[Mapping]:
    """The mappings with the fewest calls, of the first ones of a huge space."""
    first = [space[n] for n in range(min(space.count, 512))]
    return sorted(first, key=lambda mapping: mapping.physical().calls)[:_MAPPINGS]


def _without_names(error: AmosError, operator: Operator, unit: Intrinsic) -> str:
    """A refusal without who was refused, so that equal ones are equal."""
    return str(error).removeprefix(f"{operator.name} cannot use {unit.name}: ")
