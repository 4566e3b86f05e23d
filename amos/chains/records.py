"""Records of chains: what they hold of a kernel, its kernel again, and one search's part of a file.

A kernel stands in the column of schedules: ``tiles`` and ``packs``, and for each product its
instruction, mapping and schedule behind the name of what it writes, as in ``scores/mapping``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from amos.chains.candidate import ChainCandidate, slots_of
from amos.chains.exploration import ChainTrial
from amos.chains.measuring import ChainTask
from amos.chains.tiling import Tiling, read_tiles
from amos.errors import AmosError, RecordError
from amos.explore.replay import values_of_replay
from amos.intrinsics import get as get_intrinsic
from amos.ir import Chain, Operator
from amos.machine import Machine
from amos.machine.identity import Identity, identify_host
from amos.mapping import Mapping as LoopMapping
from amos.measure.executor import LocalExecutor
from amos.measure.runner import measurement_of
from amos.plan import Candidate
from amos.plan.target import TARGETS, ExecutorRequest, load, target_of
from amos.records import Measurement, Record, Records
from amos.records.canonical import chain_from, digest, fingerprint, machine_values, operator_values
from amos.records.record import JOINED, LOOPS, Run, fingerprint_of
from amos.records.store import now
from amos.schedule import ScheduleSpace
from amos.validate.naming import read_name

#: Seconds that a kernel of a record may take.
_PATIENCE = 60.0


def rebuild_chain(record: Record) -> Any:
    """Rebuild the kernel of a record, with every check that a new one passes.

    Returns:
        a :class:`~amos.chains.candidate.ChainCandidate`, or what the target of its machine has
        in place of one.

    Raises:
        RecordError: the record describes no kernel, or one of another version of an instruction.
        UnknownNameError: there is no such instruction.
    """
    if record.fingerprint != (version := fingerprint_of(record.intrinsic)):
        raise RecordError(
            f"the record was made with another version of {record.intrinsic} "
            f"({record.fingerprint}, now {version})"
        )
    chain, values = chain_from(record.canonical), dict(record.schedule)
    target = str(values.pop("target", ""))
    if not target:
        return candidate_from(chain, values)
    package = load(TARGETS[target]).chains if target in TARGETS else ""
    if not package:
        raise RecordError(f"the record describes no kernel of its chain: target {target!r}")
    return load(f"{package}.candidate.candidate_from")(chain, values)


def candidate_from(chain: Chain, values: Mapping[str, int | str]) -> ChainCandidate:
    """Restore the kernel of a chain from its ``values()``.

    Raises:
        RecordError: the values describe no kernel.
    """
    products = defaultdict[str, dict[str, int | str]](dict)
    for key, value in values.items():
        name, _, variable = key.rpartition("/")
        products[name][variable] = value
    try:
        shared = products.pop("")
        tiles = read_tiles(str(shared["tiles"]))
        tiling = Tiling.of(chain, tiles, str(shared.get("rolling", "")))
        packs = frozenset(each for each in str(shared["packs"]).split(",") if each)
        merges, cooperative = (bool(shared.get(x, 0)) for x in ("merged", "cooperative"))
        rebuilt = {
            slot.tensor: _rebuild(slot.operator, products.pop(slot.tensor))
            for slot in slots_of(tiling, packs, merges)
            if slot.tensor in products
        }
        if products:
            raise KeyError(next(iter(products)))
    except (KeyError, TypeError, ValueError, AmosError) as error:
        raise RecordError(f"the record describes no kernel of its chain: {error}") from error
    return ChainCandidate(tiling, rebuilt, packs, merges, cooperative)


def _rebuild(operator: Operator, values: Mapping[str, int | str]) -> Candidate:
    """Rebuild the mapping and schedule of a product."""
    schedule = dict(values)
    unit = get_intrinsic(str(schedule.pop("intrinsic")))
    assignment, order = read_name(str(schedule.pop("mapping")), operator, unit)
    matrix = [[place == step for place in assignment] for step in range(len(unit.iterations))]
    mapping = LoopMapping.of(operator, unit, matrix, order=order)
    space = ScheduleSpace(mapping)
    return Candidate(mapping, space.check(space.target.schedule.of(schedule)))


class ChainLog:
    """The part of a record file that belongs to one search; the same command finds it again.

    Args:
        records: the file.
        chain: what is searched.
        identity: the machine that measures, or the modelled one.
        seed: of the search.
        options: other than their defaults.
        machine: a described one, whose figures are kept.

    Attributes:
        replayed: how many measurements were taken from the file.
    """

    def __init__(
        self,
        records: Records,
        chain: Chain,
        identity: Identity,
        seed: int,
        options: Mapping[str, Any],
        machine: Machine | None = None,
    ) -> None:
        self._records, self._identity, self._seed = records, identity, seed
        self._figures = machine and machine_values(machine)
        self._text, self._canonical = str(chain), operator_values(chain)
        self._options = dict(options)
        self.replayed = 0

    def _run(self, candidate: ChainCandidate) -> Run:
        ranked = sorted({*candidate.intrinsics}, key=lambda unit: unit.name)
        return Run(
            operator=self._text,
            canonical=self._canonical,
            intrinsic=JOINED.join(unit.name for unit in ranked) or LOOPS,
            fingerprint=JOINED.join(map(fingerprint, ranked)),
            machine=self._identity,
            machine_key=self._identity.key,
            method="chain",
            proposer="chain",
            seed=self._seed,
            options=self._options,
        )

    def find(self, candidate: ChainCandidate) -> Measurement | None:
        """Find an earlier measurement of a kernel in this search."""
        key = digest(candidate.values())
        record = self._records.find(self._run(candidate).key, key, "search", 0)
        measurement = None if record is None else record.measurement
        self.replayed += measurement is not None
        return measurement

    def add(self, trial: ChainTrial) -> None:
        """Write a trial, on disk when this returns.

        Raises:
            RecordError: the file cannot be written.
        """
        values = trial.candidate.values()
        record = Record.of_run(
            self._run(trial.candidate),
            trial.measurement,
            created=now(),
            number=trial.number,
            phase="search",
            attempt=0,
            candidate=digest(values),
            mapping={},
            sources=(),
            rule="access",
            schedule=values,
            predicted=trial.predicted,
            figures=self._figures,
        )
        self._records.add(record)


@dataclass(frozen=True)
class ChainReplay:
    """A record of a chain, measured again.

    Attributes:
        candidate: the kernel.
        measurement: the new one.
        recorded_seconds: of the record, if it was measured.
        notes: why the two may not compare, in words.
    """

    candidate: Any
    measurement: Measurement
    recorded_seconds: float | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; times in seconds."""
        return {
            "operator": str(self.candidate.chain),
            **self.candidate.as_dict(),
            **values_of_replay(self.measurement, self.recorded_seconds, self.notes),
        }


def replay_chain(record: Record, *, repeat: int = 20) -> ChainReplay:
    """Build the kernel of a record, compare it with NumPy, and time it on this machine.

    Args:
        repeat: timings.

    Raises:
        RecordError: the record describes no kernel, or that fails here.
        UnknownNameError: there is no such instruction.
    """
    candidate, notes = rebuild_chain(record), list[str]()
    if record.machine.name == "host" and record.machine_key != identify_host().key:
        notes.append(f"recorded on another machine: {record.machine.model}")
    before = record.measurement
    recorded = before.seconds if before is not None and before.ok else None
    task = ChainTask(candidate, repeat, record.implementation or None)
    machine, opened = record.described, None
    if machine is not None:
        opened = target_of(machine).open_executor(ExecutorRequest(machine, timeout=_PATIENCE))
    with cast(LocalExecutor, opened or LocalExecutor(_PATIENCE)) as executor:
        runner, placed = executor.runner, executor.place(task)
        measured = measurement_of(runner.request(placed, runner.limit(recorded or 0.0)))
    if not measured.ok:
        raise RecordError(
            f"record {record.id or ''} fails here: {measured.failure}: {measured.message}"
        )
    return ChainReplay(candidate, measured, recorded, tuple(notes))
