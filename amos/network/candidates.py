"""Candidates for an operator: from records, or by a search that the model leads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from amos import machines
from amos.errors import AmosError, MappingError
from amos.explore.contenders import (
    Contender,
    contenders,
    list_mappings,
    predict_contender,
    reasons,
    select_intrinsics,
)
from amos.explore.genetic import GeneticSearch
from amos.explore.objective import Problem
from amos.explore.ranking import QuickSearch, rank_candidates
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine
from amos.machine.catalogue import with_timings
from amos.mapping import enumerate_mappings
from amos.mapping.mapping import Mapping as OperatorMapping
from amos.perfmodel import Prediction, predict
from amos.perfmodel.bound import Bound
from amos.plan import Candidate
from amos.plan.target import target_of
from amos.records import Record
from amos.records.canonical import digest, operator_values
from amos.records.exchange import right_records

_RULE = "access"
#: The model says up to two percent less than a whole count of calls times their rate.
_SLACK = 1.1


@dataclass(frozen=True)
class Product:
    """The kernel of a sum of products by an instruction, before it is built.

    Attributes:
        candidate: mapping and schedule.
        mappings: how many mappings the instruction has.
        prediction: the model's account of it.
        seconds: measured; ``None`` if it was not.
        implementation: ``"native"`` or ``"generic"``; ``None`` for what the CPU has.
    """

    candidate: Candidate
    mappings: int
    prediction: Prediction
    seconds: float | None = None
    implementation: str | None = None

    @property
    def mapping(self) -> OperatorMapping:
        """The mapping of its operator to its instruction."""
        return self.candidate.mapping

    @property
    def key(self) -> tuple[str, object]:
        """Identity among the kernels of an operator."""
        return self.mapping.intrinsic.name, self.candidate.key


class Chooser:
    """Chooses products for a machine, memoized by operator.

    Args:
        machine: where the network runs, by name or itself.
        core: choose for one core while all cores do the same, from instructions without tile
            registers, which are set up for one kernel.
        brief: search an eighth as many candidates.
        intrinsics: the only instructions to use; by default all that the machine has.
    """

    def __init__(
        self,
        machine: str | Machine,
        *,
        core: bool = False,
        brief: bool = False,
        intrinsics: Sequence[Intrinsic] = (),
    ) -> None:
        if isinstance(machine, Machine):
            unrated = [unit for unit in intrinsics if unit.name not in machine.peaks]
            machine = with_timings(machine, unrated)
        self.machine = machine
        self._core = core
        self._brief = brief
        self._intrinsics = tuple(intrinsics)
        selected = cache(lambda: self._intrinsics or tuple(select_intrinsics(None, self.machine)))
        units = cache(lambda: tuple(x for x in selected() if not (core and x.tile_registers)))
        self._contenders = cache(lambda operator: contenders(operator, units(), _RULE))
        self._best: dict[tuple[Operator, bool], Product] = {}

    def choose(self, operator: Operator, *, thorough: bool = False) -> Product:
        """Choose the product that the model predicts to be fastest.

        Args:
            operator: the task's.
            thorough: search as long as before a measurement, rather than for some milliseconds.

        Raises:
            MappingError: no instruction can be used; the message says why.
        """
        key = self.operator(operator), thorough
        if key not in self._best:
            self._best[key] = self._search(*key, 1)[0]
        return self._best[key]

    def rank(self, operator: Operator, count: int) -> list[Product]:
        """Return several products by predicted time, the one of :meth:`choose` first.

        The model does not rank compute-bound products among each other.

        Raises:
            MappingError: no instruction can be used; the message says why.
        """
        return self._search(self.operator(operator), True, count)

    def bound(self, product: Product) -> Bound | None:
        """Find what no schedule of a kernel's operator on its instruction falls below.

        ``None`` where the machine's target has no bound.
        """
        unit = product.mapping.intrinsic
        space = enumerate_mappings(product.mapping.operator, unit, _RULE, commute=True)
        target = self.target([unit])
        problem = Problem(list_mappings(space), target)
        return target_of(target).bound(problem.mappings, target)

    def operator(self, operator: Operator) -> Operator:
        """Return the operator without ranges that no instruction of the machine needs."""
        return with_useful_ranges(operator, self._contenders)

    def target(self, units: Sequence[Intrinsic]) -> Machine:
        """Return the machine with the rates of some instructions."""
        machine = machines.get(self.machine, units)
        return machine.core if self._core else machine

    @cached_property
    def core(self) -> Chooser:
        """The chooser for one core."""
        return Chooser(self.machine, core=True, brief=self._brief, intrinsics=self._intrinsics)

    def _search(self, operator: Operator, thorough: bool, count: int) -> list[Product]:
        best = self._fastest(operator)
        space = enumerate_mappings(operator, best.intrinsic, _RULE, commute=True)
        target = self.target([best.intrinsic])
        problem = Problem(list_mappings(space), target)
        search = _Brief if self._brief else _Thorough if thorough else QuickSearch
        candidates = rank_candidates(problem, count, search)
        return [Product(each, space.count, problem.predict(each)) for each in candidates]

    def _fastest(self, operator: Operator) -> Contender:
        """Return the instruction that is predicted fastest, by a brief search of each.

        Longer searches chose none that were better, over the tasks of eight networks.

        Raises:
            MappingError: there is none.
        """
        entries = self._contenders(operator)
        accepted = [each for each in entries if not each.reason]
        refused = [each for each in entries if each.reason]
        target = self.target([each.intrinsic for each in accepted])
        best, least = None, math.inf
        for contender in accepted:
            if contender.least_seconds(target) > _SLACK * least:
                continue
            for brief in (True, False):
                rated = predict_contender(operator, contender, target, _RULE, brief=brief)
                if math.isfinite(rated.predicted):
                    break
            if rated.predicted < least:
                best, least = rated, rated.predicted
            elif rated.reason:
                refused.append(rated)
        if best is None:
            why = "; ".join(reasons(refused)[:2])
            raise MappingError(f"no instruction can be used: {why or 'no schedule fits'}")
        return best


def with_useful_ranges(
    operator: Operator, among: Callable[[Operator], Sequence[Contender]]
) -> Operator:
    """Return the operator, without the ranges of its sources if no contending instruction has any.

    It then shares the records of the plain operator, as it shares the kernels.

    Args:
        operator: with ranges or without.
        among: returns the contenders for an operator.
    """
    plain = operator.undeclared
    if plain == operator:
        return operator
    units = [each.intrinsic for each in among(operator) if not each.reason]
    needed = any(kind.bounds for unit in units for kind in unit.kinds)
    return operator if needed else plain


class _Thorough(GeneticSearch):
    """The search without measurements.

    Twice as long, it predicts 0.4 % less time (geometric mean of the tasks of seven networks).
    """

    inner = 256


class _Brief(GeneticSearch):
    """A search that compares operators and computes none."""

    inner = 16


def predict_transfer(machine: Machine, read_bytes: int, written_bytes: int) -> float:
    """Predict the seconds to read and write some bytes at the first level that holds all."""
    level = next(
        each
        for each in machine.levels
        if not each.capacity or each.capacity * each.units >= read_bytes + written_bytes
    )
    moved = read_bytes / level.read_bandwidth + written_bytes / level.write_bandwidth
    return machine.launch + moved / level.units


def records_by_operator(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Group right records by :func:`operator_key`, the fastest first; some may not count here."""
    ranked: dict[str, list[Record]] = {}
    for record in sorted(right_records(list(records)), key=lambda record: record.seconds):
        ranked.setdefault(_key(record.canonical), []).append(record)
    return ranked


def operator_key(operator: Operator) -> str:
    """Return the digest of an operator without its name."""
    return _key(operator_values(operator))


def _key(values: Mapping[str, object]) -> str:
    return digest({**values, "name": ""})


def rebuild_product(record: Record, chooser: Chooser) -> Product | None:
    """Rebuild the product of a record; ``None`` if that is no longer possible."""
    try:
        candidate = record.rebuild()
    except AmosError:
        return None
    unit = candidate.mapping.intrinsic
    prediction = predict(candidate.mapping, chooser.target([unit]), candidate.schedule)
    count = enumerate_mappings(candidate.mapping.operator, unit, _RULE, commute=True).count
    return Product(candidate, count, prediction, record.seconds, record.implementation or None)
