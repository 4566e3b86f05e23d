"""A record: prediction and measurement of one candidate in one run."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from amos.errors import AmosError, RecordError
from amos.intrinsics import Implementation, Intrinsic, names, provide, read_values
from amos.intrinsics import get as get_intrinsic
from amos.ir import Operator
from amos.machine import Machine, catalogue
from amos.machine.identity import Identity, identify_host
from amos.mapping import Mapping as LoopMapping
from amos.plan import Candidate
from amos.plan.target import target_of
from amos.records.canonical import digest, fingerprint, machine_from, operator_from, operator_values
from amos.records.measurement import Measurement, Trial
from amos.schedule import ScheduleSpace
from amos.validate.naming import matching_name

#: Values of JSON.
Json = Mapping[str, Any]
#: Separator of the intrinsics of a chain's products, and the name of a chain without any.
JOINED, LOOPS = " + ", "loops"
#: Fields that a record takes from a measurement, under the same names.
_MEASURED = (
    *("times", "implementation", "verified_elements"),
    *("max_difference", "failure", "message"),
)


def candidate_key(candidate: Candidate) -> str:
    """Return the key of a mapping and a schedule, whatever rule enumerated the mapping."""
    mapping = candidate.mapping
    groups = {step: list(group) for step, group in mapping.groups.items()}
    return digest([groups, list(mapping.order), candidate.schedule.as_recorded()])


def fingerprint_of(names: str) -> str:
    """Return the fingerprints of the intrinsics that a record names; see :data:`JOINED`."""
    named = (name for name in names.split(JOINED) if name != LOOPS)
    return JOINED.join(fingerprint(get_intrinsic(name)) for name in named)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Fields that all records of a run share: two commands are one run if all of them are equal.

    Attributes:
        operator: as text.
        canonical: values from which :func:`amos.records.canonical.operator_from` makes it;
            empty where a file of version 1 does not explain it.
        intrinsic: name; of a chain those of its products, joined, or :data:`LOOPS`.
        fingerprint: hash of the meaning of the intrinsic; empty in records of version 1.
        machine: the measuring machine, or the modelled one.
        machine_key: hash of it; empty in records of version 1.
        proposer: method that proposed the candidates.
        options: other than their defaults.
    """

    operator: str
    canonical: Json
    intrinsic: str
    fingerprint: str
    machine: Identity
    machine_key: str
    method: str
    proposer: str
    seed: int
    options: Json

    @staticmethod
    def of(
        operator: Operator,
        intrinsic: Intrinsic,
        identity: Identity,
        *,
        method: str,
        seed: int,
        options: Json,
    ) -> Run:
        """Create a run of the present version."""
        return Run(
            operator=str(operator),
            canonical=operator_values(operator),
            intrinsic=intrinsic.name,
            fingerprint=fingerprint(intrinsic),
            machine=identity,
            machine_key=identity.key,
            method=method,
            proposer=method,
            seed=seed,
            options=options,
        )

    def run_values(self) -> dict[str, Any]:
        """Return plain values by column."""
        shared = {each.name: getattr(self, each.name) for each in fields(Run)}
        return shared | {"machine": self.machine.to_dict()}

    @property
    def key(self) -> str:
        """Hash of all fields."""
        return digest(self.run_values())


@dataclass(frozen=True, kw_only=True)
class Record(Run):
    """Prediction and measurement of one candidate.

    Attributes:
        created: when, in UTC.
        number: of the trial in its run, from 0.
        phase: ``"search"``, or ``"confirm"`` for a measurement of a leader.
        attempt: 0 for the first measurement of that phase.
        candidate: hash of mapping and schedule; see :func:`candidate_key`.
        mapping: by iteration of the intrinsic, those of the operator.
        sources: order in which the operator's sources are the intrinsic's.
        schedule: variables and values.
        predicted: seconds by the model.
        times: seconds of each repeat; none after a failure, or of the model alone.
        implementation: ``"native"`` or ``"generic"``, or empty.
        verified_elements: output elements compared with NumPy.
        max_difference: the largest difference from NumPy.
        failure: as in :class:`amos.records.Measurement`.
        id: number in its file; 0 if it is in none.
        definition: the intrinsic and its implementations as plain values, where kept.
        figures: a machine of the user's own as plain values, where kept.
    """

    created: str
    number: int
    phase: str
    attempt: int
    candidate: str
    mapping: Mapping[str, tuple[str, ...]]
    sources: tuple[int, ...]
    rule: str
    schedule: Mapping[str, int | str]
    predicted: float
    times: tuple[float, ...] = ()
    implementation: str = ""
    verified_elements: int = 0
    max_difference: float = 0.0
    failure: str = ""
    message: str = ""
    id: int = 0
    definition: Json | None = None
    figures: Json | None = None

    @staticmethod
    def of_trial(
        trial: Trial, run: Run, created: str, *, phase: str = "search", attempt: int = 0
    ) -> Record:
        """Create the record of a trial, measured or not."""
        mapping = trial.mapping
        return Record.of_run(
            run,
            trial.measurement,
            created=created,
            number=trial.number,
            phase=phase,
            attempt=attempt,
            candidate=candidate_key(trial.candidate),
            mapping=dict(mapping.groups),
            sources=tuple(mapping.order),
            rule=mapping.rule,
            schedule=trial.schedule.as_dict(),
            predicted=trial.predicted,
        )

    @staticmethod
    def of_run(
        run: Run, measurement: Measurement | None, *, predicted: float, **own: Any
    ) -> Record:
        """Create the record of a candidate of a run."""
        measured = measurement or Measurement()
        shared = {each.name: getattr(run, each.name) for each in fields(Run)}
        values = {name: getattr(measured, name) for name in _MEASURED}
        values["max_difference"] = _finite(measured.max_difference)
        return Record(**shared, **values, predicted=_finite(predicted), **own)

    def values(self) -> dict[str, Any]:
        """Return plain values by column."""
        shared = self.run_values()
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        del own["id"], own["definition"], own["figures"]
        lists = {
            "mapping": {step: list(group) for step, group in self.mapping.items()},
            "sources": list(self.sources),
            "times": list(self.times),
        }
        return own | shared | lists | {"run": digest(shared)}

    @property
    def digest(self) -> str:
        """Hash of all values, which detects damage."""
        return digest(self.values())

    @property
    def measurement(self) -> Measurement | None:
        """The measurement; ``None`` for a record of the model alone."""
        if not self.times and not self.failure:
            return None
        return Measurement(**{name: getattr(self, name) for name in _MEASURED})

    @property
    def seconds(self) -> float:
        """Median of the measured times; predicted seconds of the model alone."""
        measured = self.measurement
        return float(self.predicted) if measured is None else measured.seconds

    @property
    def is_chain(self) -> bool:
        """Whether it is of a chain, whose kernels :mod:`amos.chains.records` rebuilds."""
        return ";" in str(self.canonical.get("text", ""))

    @property
    def mapping_name(self) -> str:
        """Name of the mapping, of a chain those of its products or its parallel loops.

        See :func:`amos.validate.naming.matching_name`.
        """
        if self.is_chain:
            names = [str(x) for key, x in self.schedule.items() if key.endswith("/mapping")]
            loops = ((key, str(x)) for key, x in self.schedule.items() if key[:4] == "map.")
            return "; ".join(names) or ", ".join(f"{n[4:]}: {x}" for n, x in loops if " " in x)
        iterations = {name for name, _ in self.canonical.get("iterations", ())}
        return matching_name(self.mapping.values(), self.sources, iterations)

    @property
    def standing(self) -> str:
        """Owner of the record: ``here``, ``model``, or why it does not count here."""
        try:
            version = fingerprint_of(self.intrinsic)
        except AmosError:
            if not self.definition:
                return "unknown intrinsic"
            version = self.fingerprint
        if self.fingerprint != version:
            return "other version of the intrinsic" if self.fingerprint else "unknown version"
        if self.machine.name != "host":
            return "model"
        return "here" if self.machine_key == identify_host().key else "other machine"

    @property
    def counts_here(self) -> bool:
        """True for this machine, or a described one, and the present intrinsic."""
        return self.standing in ("here", "model")

    @property
    def described(self) -> Machine | None:
        """The described machine of the record, if its schedules depend on it.

        Raises:
            RecordError: the stored description is of another version, or as in :meth:`unit`.
        """
        name = self.machine.name
        if name in catalogue.names():
            machine = catalogue.get(name)
        elif self.figures:
            machine = machine_from(self.figures)
        elif self.implementation == "simulated":
            raise RecordError(f"the record does not keep its machine, {name!r}, which is unknown")
        else:
            return None
        if not target_of(machine).needs_machine:
            return None
        if self.is_chain:
            return machine
        unit = self.unit()
        return machine if unit.name in machine.peaks else catalogue.with_timings(machine, [unit])

    def unit(self) -> Intrinsic:
        """Return the intrinsic: the registered one if it still means the same, or the record's own.

        The stored definition is registered, next to another version under a name of its own. A
        record of version 1 does not say what it was, and takes the registered one.

        Raises:
            RecordError: it has changed its meaning, and the record keeps no definition, or
                a different one than it was made with.
            IntrinsicError: the one that it keeps is not well formed.
            UnknownNameError: there is no such intrinsic, and the record keeps none.
        """
        name, version = self.intrinsic, self.fingerprint
        unit = get_intrinsic(name) if name in names() or not self.definition else None
        if unit is not None and version in ("", fingerprint(unit)):
            return unit
        if not self.definition:
            assert unit is not None
            raise RecordError(
                f"the record was made with another version of {name} "
                f"({version}, now {fingerprint(unit)})"
            )
        stored, *sources = read_values(self.definition, f"the intrinsic of record {self.id or ''}")
        assert isinstance(stored, Intrinsic)
        if (stored.name, fingerprint(stored)) != (name, version):
            raise RecordError(
                f"the record keeps another intrinsic than {name} {version}: "
                f"{stored.name} {fingerprint(stored)}"
            )
        own = name if unit is None else f"{name}_{version}"
        named = [replace(s, intrinsic=own) for s in sources if isinstance(s, Implementation)]
        provide([replace(stored, name=own), *named])
        return get_intrinsic(own)

    def rebuild(self) -> Candidate:
        """Rebuild the candidate, with every check that a new one passes, or raise RecordError."""
        if self.is_chain:
            raise RecordError("the record is of a chain: amos.chains.rebuild_chain rebuilds it")
        unit, operator = self.unit(), operator_from(self.canonical)
        try:
            steps = [it.name for it in unit.iterations]
            where = {name: t for t, step in enumerate(steps) for name in self.mapping[step]}
            matrix = [
                [where.get(it.name) == t for it in operator.iterations] for t in range(len(steps))
            ]
            mapping = LoopMapping.of(operator, unit, matrix, self.rule, self.sources)
            space = ScheduleSpace(mapping, self.described)
            schedule = space.check(space.target.schedule.of(self.schedule))
        except (KeyError, TypeError, ValueError, AmosError) as error:
            raise RecordError(f"the record describes no candidate: {error}") from error
        return Candidate(mapping, schedule)


def _finite(value: float) -> float:
    """Replace infinity, which JSON lacks, by the largest number."""
    return float(value) if math.isfinite(value) else math.copysign(sys.float_info.max, value)
