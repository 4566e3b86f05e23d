"""Settings that the sessions of one exploration share, and the contest between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from amos.errors import ExploreError, MappingError
from amos.explore.contenders import (
    Contender,
    contenders,
    executes,
    gather_hint,
    list_mappings,
    predict_contender,
    reasons,
    select_intrinsics,
)
from amos.explore.contest import Contest, Entry
from amos.explore.exploration import Exploration
from amos.explore.guided import Guided
from amos.explore.methods import search_of
from amos.explore.objective import Problem
from amos.explore.options import MeasureOptions, SearchOptions
from amos.explore.run_log import RunLog
from amos.explore.session import Session
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine, catalogue
from amos.mapping import Mapping, MappingSpace, enumerate_mappings
from amos.measure.executor import Executor, LocalExecutor
from amos.measure.reference import Demand
from amos.plan.target import target_of
from amos.records.canonical import identity_of
from amos.records.record import Run
from amos.records.store import Records
from amos.validate import RULES


@dataclass(frozen=True)
class Setting:
    """Settings that the sessions of one exploration share; each session has its own instruction."""

    operator: Operator
    machine: str | Machine
    workers: Executor | None
    method: str
    seed: int
    rule: str
    search: SearchOptions
    measure: MeasureOptions
    store: Records | None = None

    def units(self, request: str | Intrinsic | Sequence[str | Intrinsic] | None) -> list[Intrinsic]:
        """Return the requested instructions that the measuring machine executes."""
        return select_intrinsics(request, self.machine, self._features())

    def _features(self) -> frozenset[str] | None:
        """Return the features of the CPU that measures, ``None`` if it is this one."""
        if self.workers is None or isinstance(self.workers, LocalExecutor):
            return None
        return frozenset(self.workers.machine(()).features)

    def contest(self, units: Sequence[Intrinsic], trials: int) -> Contest:
        """Open a contest of the instructions that may win; a lone one always may."""
        if len(units) == 1:
            alone = Contender(units[0], self.counts(units[0])[self.rule])
            return Contest([Entry(alone, self.session(units[0], self._target(units)))])
        entrants, refused = self._split_contenders(units)
        entrants, slower = Contest.select_entrants(entrants, trials)
        refused = [*slower, *refused]
        if not entrants:
            raise _no_instruction_error(self.operator, refused)
        target = self._target([each.intrinsic for each in entrants])
        entries = [Entry(each, self.session(each.intrinsic, target)) for each in entrants]
        guides = [entry.session.search for entry in entries]
        for guide in guides:
            guide.rivals = guides
        return Contest(entries, refused)

    def _split_contenders(
        self, units: Sequence[Intrinsic]
    ) -> tuple[list[Contender], list[Contender]]:
        """Split instructions into contenders with predictions, and excluded ones.

        A disqualified instruction must not eliminate slower ones.
        """
        excluded: list[Contender] = []
        if self.workers is not None and self.measure.implementation == "native":
            features = self._features()
            lacking = [unit for unit in units if not executes(self.machine, unit, features)]
            excluded = [Contender(unit, reason="no native implementation here") for unit in lacking]
            units = [unit for unit in units if unit not in lacking]
        while True:
            all_contenders = contenders(self.operator, units, self.rule, self.search)
            usable = [each for each in all_contenders if not each.reason]
            refused = [*excluded, *(each for each in all_contenders if each.reason)]
            if not usable:
                return [], refused
            target = self._target([each.intrinsic for each in usable])
            usable = [
                predict_contender(self.operator, each, target, self.rule, self.search)
                for each in usable
            ]
            failed = [each for each in usable if each.reason]
            if not failed:
                return usable, refused
            excluded += failed
            names = {each.intrinsic.name for each in failed}
            units = [unit for unit in units if unit.name not in names]

    def counts(self, unit: Intrinsic) -> dict[str, int]:
        """Count the mappings under each rule."""
        spaces = _spaces(self.operator, unit, self.search)
        return {rule: space.count for rule, space in spaces.items()}

    def session(self, unit: Intrinsic, target: Machine) -> Session:
        """Open the session of an instruction on a machine as the model sees it."""
        mappings = select_mappings(self.operator, unit, self.rule, self.search)
        op, workers = mappings[0].operator, self.workers
        if workers is not None:
            Demand.of(op).check(op, workers.memory)
        target_of(target).check_operator(op, unit, target)
        log = self._log(unit, op)
        # A run that is continued keeps the machine that it began with.
        target = log.machine("description") or target
        target.peak(unit.name)
        log.begin(target, unit)
        problem = Problem(
            mappings,
            target,
            fixes=self.search.fix,
            tiling=self.search.tiling,
            objective=self.search.objective,
        )
        rng = np.random.default_rng(self.seed)
        options, measure = self.search, self.measure
        searching = search_of(self.method, options)
        guided = Guided(problem, rng, searching, options.epsilon, options.retain)
        return Session(problem, guided, workers, log, measure.implementation, measure.flush)

    def _log(self, unit: Intrinsic, op: Operator) -> RunLog:
        """Open the records of an instruction's run; the operator with all its dtypes."""
        workers, search = self.workers, self.search
        identity = identity_of(catalogue.get(self.machine)) if workers is None else workers.identity
        options = {"rule": self.rule} | search.to_record() | self.measure.to_record()
        run = Run.of(op, unit, identity, method=self.method, seed=self.seed, options=options)
        return RunLog(self.store, run)

    def _target(self, units: Sequence[Intrinsic]) -> Machine:
        """Describe the machine as the model sees it, or saw it when the run began."""
        for unit in units if self.store is not None else ():
            op = select_mappings(self.operator, unit, self.rule, self.search)[0].operator
            recorded = self._log(unit, op).machine("description")
            if recorded is not None and all(x.name in recorded.peaks for x in units):
                return recorded
        if self.workers is not None and not isinstance(self.machine, Machine):
            return self.workers.machine(units, implementation=self.measure.implementation)
        return catalogue.get(self.machine, units)

    def result(self, contest: Contest, last: Machine) -> Exploration:
        """Build the result; raise ExploreError if no candidate ran."""
        problem, unit = contest.winner.session.problem, contest.winner.contender.intrinsic
        target = problem.machine
        least = target_of(target).bound(problem.mappings, target)
        result = Exploration(
            operator=problem.mappings[0].operator,
            intrinsic=unit,
            machine=last,
            counts=self.counts(unit),
            searched=len(problem.mappings),
            space_size=contest.winner.session.search.search.size,
            method="few" if self.search.tiling == "few" else self.method,
            seed=self.seed,
            objective=self.search.objective,
            least=least,
            is_peak_measured=self.workers is not None
            and (last.name == "host" or last.peak(unit.name) != target.peak(unit.name)),
            certificate=contest.winner.session.search.search.certificate,
            trials=tuple(contest.trials),
            replayed=sum(entry.session.replayed for entry in contest.entries),
            intrinsics=contest.contenders,
            generations=tuple(
                {"intrinsic": entry.contender.intrinsic.name} | generation
                for entry in contest.entries
                for generation in entry.session.search.search.logbook
            ),
        )
        if result.model_seconds(result.best) is None:
            return result
        return replace(result, prediction=problem.predict(result.best.candidate))


def _no_instruction_error(operator: Operator, refused: list[Contender]) -> MappingError:
    headline = f"no instruction of {len(refused)} can be used for {operator.name}"
    return MappingError("\n  ".join([headline, *reasons(refused)]))


def _spaces(operator: Operator, unit: Intrinsic, search: SearchOptions) -> dict[str, MappingSpace]:
    return {rule: enumerate_mappings(operator, unit, rule, search.commute) for rule in RULES}


def select_mappings(
    operator: Operator, unit: Intrinsic, rule: str, search: SearchOptions
) -> list[Mapping]:
    """Select the mappings to search; raise ExploreError if there is none under the rule."""
    spaces = _spaces(operator, unit, search)
    if not spaces[rule].count:
        counts = ", ".join(f"{name} {space.count}" for name, space in spaces.items())
        hint = gather_hint(operator, unit, rule, search)
        raise ExploreError(f"no mapping under rule {rule!r} to search (mappings: {counts}){hint}")
    return list_mappings(spaces[rule], search.only)
