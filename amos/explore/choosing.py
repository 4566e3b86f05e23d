"""Choosing the products of an operator by the model alone, without measuring."""

from __future__ import annotations

import math
import pickle
from bisect import insort
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import repeat
from typing import Any, TypeVar

from amos import machines
from amos.errors import MappingError, ScheduleError
from amos.explore.contenders import (
    Contender,
    contenders,
    explain_refusal,
    list_mappings,
    list_rivals,
    predict_contender,
    reasons,
    select_intrinsics,
)
from amos.explore.genetic import GeneticSearch
from amos.explore.objective import Problem
from amos.explore.ranking import Thorough, find_best, rank_candidates
from amos.intrinsics import Intrinsic, adopt, implementations, list_added
from amos.ir import Operator
from amos.machine import Machine
from amos.mapping import MappingSpace, enumerate_mappings
from amos.mapping.mapping import Mapping
from amos.measure.helpers import HelperLost, map_in_processes
from amos.measure.result_cache import MISSING, key_of, load_result, store_result
from amos.perfmodel import Prediction
from amos.perfmodel.bound import Bound
from amos.plan import Candidate
from amos.plan.target import target_of

_T = TypeVar("_T")
RULE = "access"
#: The model predicts up to two percent less than a whole count of calls times their rate.
_SLACK = 1.1


@dataclass(frozen=True)
class Product:
    """A candidate kernel of an operator on an instruction, not built yet.

    Attributes:
        mappings: how many mappings the instruction has.
        seconds: measured; ``None`` if it was not.
        implementation: ``"native"`` or ``"generic"``; ``None`` for what the CPU has.
    """

    candidate: Candidate
    mappings: int
    prediction: Prediction
    seconds: float | None = None
    implementation: str | None = None

    @property
    def mapping(self) -> Mapping:
        """The mapping of its operator to its instruction."""
        return self.candidate.mapping

    @property
    def key(self) -> tuple[str, object]:
        """Identity among the kernels of an operator."""
        return self.mapping.intrinsic.name, self.candidate.key


@dataclass(frozen=True)
class _Request:
    """A search for products.

    Attributes:
        count: products of each instruction.
        search: of several products; a descent finds a single one.
        instructions: how many are searched.
    """

    operator: Operator
    count: int
    search: type[GeneticSearch]
    instructions: int


class Chooser:
    """Chooses products for a machine, memoized by operator.

    Args:
        machine: where the network runs, by name or itself.
        core: choose for one core while all cores do the same, from instructions without tile
            registers, which are set up for one kernel.
        intrinsics: the only instructions to use; by default all that the machine has.
    """

    def __init__(
        self, machine: str | Machine, *, core: bool = False, intrinsics: Sequence[Intrinsic] = ()
    ) -> None:
        self.machine = machine
        self._core = core
        self._intrinsics = tuple(intrinsics)
        selected = cache(lambda: self._intrinsics or tuple(select_intrinsics(None, self.machine)))
        self._selected = selected
        units = cache(lambda: tuple(x for x in selected() if not (core and x.tile_registers)))
        self._contenders = cache(lambda operator: contenders(operator, units(), RULE))
        self._ranked: dict[_Request, list[Product]] = {}
        self._rank_instructions = cache(self._order_instructions)
        self._targets: dict[tuple[Intrinsic, ...], Machine] = {}
        self._bound = cache(self._find_bound)
        self._find_best = cache(self._descend)

    def choose(self, operator: Operator) -> Product:
        """Choose the product that the model predicts to be fastest; a MappingError says why not."""
        return self.rank(operator, 1)[0]

    def rank(
        self,
        operator: Operator,
        count: int,
        *,
        search: type[GeneticSearch] = Thorough,
        instructions: int = 1,
    ) -> list[Product]:
        """Return several products by predicted time, the fastest first.

        The model does not rank compute-bound products among each other.

        Args:
            count: products of each instruction.
            search: of several products; a descent finds a single one.
            instructions: how many are searched, those that a brief search predicts fastest.

        Raises:
            MappingError: no instruction can be used; the message says why.
        """
        request = _Request(operator, count, search, instructions)
        if request not in self._ranked:
            key = self._ranking_key(request)
            products = load_result(key)
            if products is MISSING or not products:
                products = self.search(request)
                store_result(key, products)
            self._ranked[request] = products
        return self._ranked[request]

    def search_in_parallel(self, operators: Iterable[Operator]) -> None:
        """Choose the products of operators ahead of :meth:`choose`, on all cores."""
        requests = [_Request(each, 1, Thorough, 1) for each in operators]
        requests = [each for each in dict.fromkeys(requests) if each not in self._ranked]
        keys = map(self._ranking_key, requests)
        results = self.map_in_processes(_search_or_nothing, requests, keys=keys, lost=lambda _: [])
        ranked = zip(requests, results, strict=True)
        self._ranked.update((request, products) for request, products in ranked if products)

    def map_in_processes(
        self,
        function: Callable[..., _T],
        *arguments: Iterable[Any],
        keys: Iterable[str],
        lost: Callable[[HelperLost], _T],
    ) -> Generator[_T, None, None]:
        """Call a function of a chooser and arguments on all cores.

        See :func:`amos.measure.helpers.map_in_processes`.
        """
        settings = (self.machine, self._core, self._intrinsics), list_added()
        return map_in_processes(
            _call_with_chooser,
            repeat(function),
            repeat(pickle.dumps(settings)),
            *arguments,
            keys=keys,
            here=lambda function, _, *values: function(self, *values),
            lost=lost,
        )

    def _ranking_key(self, request: _Request) -> str:
        return self.result_key("ranking", request)

    def result_key(self, *request: object) -> str:
        """Return the key of a result in the cache on disk that depends on the machine too."""
        return key_of(self._context_key, *request)

    @cached_property
    def _context_key(self) -> str:
        """Key of the machine, and of the instructions that may be chosen.

        Every entry also depends on the rates of this machine.
        """
        units = [(each, implementations(each.name)) for each in self._selected()]
        machine = self.machine if self.machine == "host" else self.target(())
        return key_of(machine, self._core, units)

    def bound(self, product: Product) -> Bound | None:
        """Find what no schedule of a kernel's operator on its instruction falls below.

        ``None`` where the machine's target has no bound.
        """
        return self._bound(product.mapping.operator, product.mapping.intrinsic)

    def operator(self, operator: Operator) -> Operator:
        """Return the operator without ranges that no instruction of the machine needs."""
        return with_useful_ranges(operator, self._contenders)

    def target(self, units: Sequence[Intrinsic]) -> Machine:
        """Return the machine with the rates of some instructions."""
        key = tuple(units)
        if key not in self._targets:
            machine = machines.get(self.machine, units)
            self._targets[key] = machine.core if self._core else machine
        return self._targets[key]

    @cached_property
    def core(self) -> Chooser:
        """The chooser for one core."""
        return Chooser(self.machine, core=True, intrinsics=self._intrinsics)

    def search(self, request: _Request) -> list[Product]:
        """Search the products of an operator, whatever was searched before."""
        operator, products = self.operator(request.operator), list[Product]()
        if request.count == request.instructions == 1 and (only := self._search_first(operator)):
            return [only]
        for entry in self._rank_instructions(operator)[: request.instructions]:
            if request.count == 1:
                products.append(self._find_best(operator, entry.intrinsic))
                continue
            space, problem = self._pose(operator, entry.intrinsic)
            candidates = rank_candidates(problem, request.count, request.search)
            products += [Product(each, space.count, problem.predict(each)) for each in candidates]
        return sorted(products, key=lambda product: product.prediction.seconds)

    def _search_first(self, operator: Operator) -> Product | None:
        """Search the instruction of the fewest cycles; ``None`` if another one may be faster."""
        accepted = [each for each in self._contenders(operator) if not each.reason]
        target = self.target([each.intrinsic for each in accepted])
        if not accepted or explain_refusal(operator, accepted[0], target):
            return None
        first, *rivals = accepted
        try:
            product = self._find_best(operator, first.intrinsic)
        except ScheduleError:
            return None
        most = _SLACK * product.prediction.seconds
        rivals_lose = all(each.least_seconds(target) > most for each in rivals)
        return product if rivals_lose and math.isfinite(most) else None

    def _descend(self, operator: Operator, unit: Intrinsic) -> Product:
        """Return the product of an instruction that a descent finds; ScheduleError if none fits."""
        space, problem = self._pose(operator, unit)
        best = find_best(problem)
        return Product(best, space.count, problem.predict(best))

    def _pose(self, operator: Operator, unit: Intrinsic) -> tuple[MappingSpace, Problem]:
        """Return the mappings of an operator, and the problem of choosing among them."""
        space = enumerate_mappings(operator, unit, RULE, commute=True)
        return space, Problem(list_rivals(space), self.target([unit]))

    def _find_bound(self, operator: Operator, unit: Intrinsic) -> Bound | None:
        target = self.target([unit])
        mappings = list_mappings(enumerate_mappings(operator, unit, RULE, commute=True))
        return target_of(target).bound(Problem(mappings, target).mappings, target)

    def _order_instructions(self, operator: Operator) -> list[Contender]:
        """Return the instructions by a brief search of each, the fastest first.

        Longer searches chose none that were better, over the tasks of eight networks.
        """
        entries = self._contenders(operator)
        accepted = [each for each in entries if not each.reason]
        refused = [each for each in entries if each.reason]
        target = self.target([each.intrinsic for each in accepted])
        ranked: list[Contender] = []
        for contender in accepted:
            if ranked and contender.least_seconds(target) > _SLACK * ranked[0].predicted:
                continue
            for brief in (True, False):
                rated = predict_contender(operator, contender, target, RULE, brief=brief)
                if math.isfinite(rated.predicted):
                    break
            if math.isfinite(rated.predicted):
                insort(ranked, rated, key=lambda entry: entry.predicted)
            elif rated.reason:
                refused.append(rated)
        if not ranked:
            why = "; ".join(reasons(refused)[:2])
            raise MappingError(f"no instruction can be used: {why or 'no schedule fits'}")
        return ranked


def _search_or_nothing(chooser: Chooser, request: _Request) -> list[Product]:
    try:
        return chooser.search(request)
    except MappingError:
        return []


def _call_with_chooser(function: Callable[..., _T], settings: bytes, *arguments: Any) -> _T:
    """Call a function in another process, with pickled settings and intrinsics."""
    return function(_chooser_with(settings), *arguments)


@lru_cache(maxsize=4)
def _chooser_with(settings: bytes) -> Chooser:
    """Return the chooser of some settings, the same one while these stay the same."""
    (machine, core, intrinsics), registered = pickle.loads(settings)
    adopt(registered)
    return Chooser(machine, core=core, intrinsics=intrinsics)


def with_useful_ranges(
    operator: Operator, among: Callable[[Operator], Sequence[Contender]]
) -> Operator:
    """Return the operator, without the ranges of its sources if no contending instruction has any.

    It then shares the records of the plain operator, as it shares the kernels.
    """
    plain = operator.undeclared
    if plain == operator:
        return operator
    units = [each.intrinsic for each in among(operator) if not each.reason]
    needed = any(kind.bounds for unit in units for kind in unit.kinds)
    return operator if needed else plain
