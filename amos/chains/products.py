"""Kernels for the products of a tile, by the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from amos import machines
from amos.errors import MappingError
from amos.explore.contenders import (
    contenders,
    list_mappings,
    predict_contender,
    reasons,
    select_intrinsics,
)
from amos.explore.genetic import GeneticSearch
from amos.explore.objective import Problem
from amos.explore.ranking import rank_candidates
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine
from amos.mapping import enumerate_mappings
from amos.plan import Candidate

_RULE = "access"
#: Instructions that are searched for a product, those that a brief look predicts fastest.
_INSTRUCTIONS = 2


@dataclass(frozen=True)
class RankedProduct:
    """A kernel of a product for one core.

    Attributes:
        candidate: mapping and schedule.
        seconds: predicted, without starting it.
        mappings: how many mappings its instruction has.
    """

    candidate: Candidate
    seconds: float
    mappings: int


class _Search(GeneticSearch):
    """The usual search, for some milliseconds."""

    inner = 64


@dataclass
class ProductRanker:
    """Ranks kernels of products for one core of a machine, each product once.

    Attributes:
        machine: where the chain runs.
        intrinsics: the instructions that may compute products; those of the machine by default.
    """

    machine: str | Machine
    intrinsics: str | Intrinsic | Sequence[str | Intrinsic] | None = None
    _ranked: dict[Operator, list[RankedProduct]] = field(default_factory=dict)
    _units: list[Intrinsic] = field(default_factory=list)

    def __post_init__(self) -> None:
        units = select_intrinsics(self.intrinsics, self.machine)
        # Tile registers are set up for one kernel.
        self._units = [unit for unit in units if not unit.tile_registers]

    def core(self, units: Sequence[Intrinsic] = ()) -> Machine:
        """One core, with the rates of some instructions."""
        return machines.get(self.machine, units).core

    def rank(self, operator: Operator, count: int) -> list[RankedProduct]:
        """Kernels of a product, the one that is predicted fastest first.

        Raises:
            MappingError: no instruction can be used; the message says why.
        """
        if operator not in self._ranked:
            self._ranked[operator] = self._search(operator, count)
        return self._ranked[operator][:count]

    def _search(self, operator: Operator, count: int) -> list[RankedProduct]:
        units = contenders(operator, self._units, _RULE)
        taking = [each for each in units if not each.reason]
        machine = self.core([each.intrinsic for each in taking])
        predicted = [
            predict_contender(operator, each, machine, _RULE, brief=True) for each in taking
        ]
        fitting = [each for each in predicted if math.isfinite(each.predicted)]
        if not fitting:
            refused = [each for each in (*units, *predicted) if each.reason]
            raise MappingError(
                f"{operator.name}: no instruction can be used: "
                f"{'; '.join(reasons(refused)[:2]) or 'no schedule fits'}"
            )
        fitting.sort(key=lambda unit: unit.predicted)
        ranked = []
        for unit in fitting[:_INSTRUCTIONS]:
            space = enumerate_mappings(operator, unit.intrinsic, _RULE, commute=True)
            problem = Problem(list_mappings(space), machine)
            ranked += [
                RankedProduct(chosen, problem.predict(chosen).seconds, space.count)
                for chosen in rank_candidates(problem, count, _Search)
            ]
        return sorted(ranked, key=lambda product: product.seconds)
