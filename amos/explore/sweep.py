"""Predict or simulate some operators on one instruction and machine of many sizes."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from amos.errors import (
    AmosError,
    ExploreError,
    IntrinsicError,
    MachineError,
    RecordError,
    UnknownNameError,
)
from amos.explore.run import explore
from amos.explore.sweep_file import PointFile
from amos.intrinsics import Intrinsic, Memory, toml_file
from amos.intrinsics.expression import evaluate
from amos.ir import Operator
from amos.machine import Machine, catalogue
from amos.measure.dask_executor import map_on_cluster
from amos.measure.helpers import map_in_processes
from amos.plan.target import target_of
from amos.records.canonical import digest, machine_from, machine_values, operator_values

#: Roots of paths into the machine's description.
_MACHINE = "machine"
_MOST = 4096
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class ReportedNetwork(Protocol):
    """A network that predicts itself on a machine."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def tasks(self) -> Sequence[Any]:
        """Its distinct groups."""

    def report(self, machine: Machine, intrinsics: Sequence[Intrinsic]) -> Any:
        """Return its report by these instructions alone."""


@dataclass(frozen=True)
class Point:
    """Result of one size for one operator.

    Attributes:
        settings: changed values by path.
        mappings: how many there are under the rule ``access``.
        infeasible: how many of them have no schedule that fits the buffers.
        utilization: share of the unit's operations that the best mapping needs.
        predicted: seconds of the best candidate by the model.
        simulated: seconds of it in the simulator, if the machine has one.
        share: of the unit's peak that it reaches.
        energy: joules by what the machine says of accesses, if it has streams and does.
        reason: why there is no result.
    """

    settings: Mapping[str, Any]
    operator: str
    mappings: int = 0
    infeasible: int = 0
    utilization: float | None = None
    predicted: float | None = None
    simulated: float | None = None
    share: float | None = None
    energy: float | None = None
    reason: str = ""


def sweep(
    unit: Intrinsic,
    machine: Machine,
    axes: Mapping[str, Sequence[Any]],
    operators: Sequence[Operator | ReportedNetwork],
    *,
    trials: int = 16,
    seed: int = 0,
    points: Path | None = None,
    executor: str | None = None,
) -> Iterator[Point]:
    """Search the best candidate of each operator for each combination of values.

    Several points are searched at a time, in processes on all cores or on a cluster; each comes
    out as it would alone.

    Args:
        machine: a described one, which has its rate. A call takes as long whatever its size,
            unless its timing is set as well.
        axes: values by path: ``extents.i1``, ``memory.inp.capacity`` by the name of an
            operand or its buffer, ``timing.interval`` in cycles, also as a formula of the
            unit's extents (``"i1*2"``), ``machine.clock``,
            ``machine.stream.latency``, ``machine.sram`` for the capacity of a level,
            ``machine.DRAM.read_bandwidth``.
        operators: operators to compute; of a network its report, which simulates nothing. Networks
            that cannot be pickled, as those of :func:`amos.load_network`, are predicted by this
            process.
        trials: candidates of each search of an operator.
        points: file that keeps every point, in this order; those that it has are taken from it.
        executor: address of a Dask scheduler whose workers search; by default this computer.

    Raises:
        MeasureError: the scheduler does not answer, or its workers fail.
        UnknownNameError: there is no such path.
        ExploreError: there are more than 4096 combinations.
        RecordError: the file is none of points, or cannot be written.
    """
    names, combinations = list(axes), list(itertools.product(*axes.values()))
    if len(combinations) * len(operators) > _MOST:
        raise ExploreError(
            f"sweep: expected at most {_MOST} points, got {len(combinations) * len(operators)}"
        )
    file = None if points is None else PointFile(points, Point.__dataclass_fields__.keys())
    results: list[Point | None] = []
    requests: list[_Request] = []
    for number, chosen in enumerate(combinations):
        settings = dict(zip(names, chosen, strict=True))
        try:
            sized, there = resize(unit, machine, settings, number)
        except (IntrinsicError, MachineError) as error:
            results += [Point(settings, op.name, reason=str(error)) for op in operators]
            continue
        for op in operators:
            request = _Request(settings, op, sized, there, trials, seed)
            fields = file.find(request.key) if file else None
            stored = fields and Point(**fields | {"settings": settings, "operator": op.name})
            results.append(stored or None)
            requests += [] if stored else [request]
    can_send = {id(op): _can_send(op) for op in operators}
    sent = [request for request in requests if can_send[id(request.operator)]]
    if executor is None:
        searched: Iterator[Point] = map_in_processes(_compute_point, sent)
    else:
        searched = map_on_cluster(executor, _compute_point, sent)
    missing = iter(requests)
    for result in results:
        if result is not None:
            yield result
            continue
        request = next(missing)
        is_sent = can_send[id(request.operator)]
        point = next(searched) if is_sent else _compute_point(request)
        if file:
            file.add(request.key, point)
        yield point


def _can_send(operator: Operator | ReportedNetwork) -> bool:
    """Return whether another process can compute it."""
    try:
        pickle.dumps(operator)
    except Exception:  # whatever its class raises
        return False
    return True


@dataclass(frozen=True)
class _Request:
    """A point that is to be searched; fields as of :class:`Point` and :func:`sweep`."""

    settings: Mapping[str, Any]
    operator: Operator | ReportedNetwork
    unit: Intrinsic
    machine: Machine
    trials: int
    seed: int

    @cached_property
    def key(self) -> str:
        """Digest of all that decides the point."""
        op, unit, machine = self.operator, self.unit, self.machine
        computed: Any
        if isinstance(op, Operator):
            computed = operator_values(op)
        else:
            computed = [[operator_values(task.operator), task.weight] for task in op.tasks]
        described = toml_file.values_of(unit) | {"name": unit.family}
        rates = machine_values(replace(machine, peaks={"": machine.peak(unit.name)}), whole=True)
        return digest([computed, described, rates, self.trials, self.seed])


def machine_of(unit: Intrinsic) -> Machine:
    """Find the described machine that has an instruction.

    It is the one that the description or the machine itself has a rate for; of a unit with buffers
    whose rate is of no certain machine, the one that runs streams of any such unit.

    Raises:
        ExploreError: there is none, or there are several.
    """
    catalogued = [catalogue.get(name, [unit]) for name in catalogue.names()]
    timed = {timing.machine for timing in unit.timing}
    suitable = [
        m for m in catalogued if m.name in timed or unit.name in catalogue.get(m.name).peaks
    ]
    if not suitable and unit.scratchpads:
        candidates = (m for m in catalogued if target_of(m).takes_units(m))
        suitable = [m for m in candidates if unit.name in m.peaks]
    if len(suitable) != 1:
        names = ", ".join(m.name for m in suitable) or "no described machine"
        raise ExploreError(f"{unit.name}: expected a machine; it has a rate on {names}")
    return suitable[0]


def value_of(text: str) -> int | float | str:
    """Parse a number, with or without a unit of bytes, a truth value, or the text itself.

    >>> value_of("64k"), value_of("2.5e8"), value_of("true"), value_of("s8")
    (65536, 250000000.0, True, 's8')
    """
    if text in ("true", "false"):
        return text == "true"
    factor = _UNITS.get(text[-1:].lower(), 1)
    digits = text[:-1] if factor > 1 else text
    try:
        number = float(digits) * factor
    except ValueError:
        return text
    whole = math.isfinite(number) and number == int(number) and "." not in digits
    return int(number) if whole and "e" not in digits.lower() else number


def _compute_point(request: _Request) -> Point:
    op, unit, machine = request.operator, request.unit, request.machine
    if not isinstance(op, Operator):
        return _report_point(request.settings, op, unit, machine)
    trials, seed = request.trials, request.seed
    try:
        result = explore(op, unit, machine=machine, trials=trials, seed=seed, progress=False)
        best = result.best
    except AmosError as error:
        return Point(request.settings, op.name, reason=str(error).splitlines()[0])
    return Point(
        request.settings,
        op.name,
        mappings=result.counts["access"],
        infeasible=result.counts["access"] - result.searched,
        utilization=best.mapping.physical().utilization,
        predicted=best.predicted,
        simulated=best.seconds if result.simulated else None,
        share=result.peak_fraction,
        energy=result.prediction.energy_joules if result.prediction else None,
    )


def _report_point(
    settings: Mapping[str, Any], network: ReportedNetwork, unit: Intrinsic, machine: Machine
) -> Point:
    report = network.report(machine, [unit])
    return Point(
        settings,
        network.name,
        mappings=sum(row.mappings for row in report.tasks),
        predicted=None if report.problem else report.kernel_seconds,
        share=report.utilization,
        energy=report.energy_joules,
        reason=report.problem,
    )


def resize(
    unit: Intrinsic, machine: Machine, settings: Mapping[str, Any], number: int = 0
) -> tuple[Intrinsic, Machine]:
    """Apply settings to a unit and its machine.

    Args:
        settings: values by path; see :func:`sweep`.
        number: behind the unit's name, as another unit has another name.

    Raises:
        UnknownNameError: there is no such path.
        IntrinsicError, MachineError: a description with one of the values is not well formed.
    """
    values, there = toml_file.values_of(unit), machine_values(machine, whole=True)
    if any(path.startswith("extents.") for path in settings):
        for statement, described in zip(unit.memory, values["memory"], strict=True):
            described["statement"] = _drop_strides(unit, statement).statement
    timed = any(path.startswith("timing.") for path in settings)
    if timed:
        values["timing"] = _timing(unit, machine)
    places = {path: _steps(path, machine) for path in settings}
    # Formulas of timings read extents, which are set before.
    for path, value in sorted(settings.items(), key=lambda item: item[0].startswith("timing.")):
        steps = places[path]
        if steps[0] == "timing" and isinstance(value, str) and steps[-1] in ("interval", "latency"):
            value = int(evaluate(value, values["extents"]))
        if steps[0] == _MACHINE:
            _assign(there, steps[1:], value, path)
        else:
            _assign(values, steps, value, path)
    if timed:
        values["timing"] = [{k: x for k, x in values["timing"].items() if x is not None}]
    values["name"] = f"{unit.name}_{number}"
    sized = toml_file.read_values(values, f"intrinsic {unit.name}")[0]
    assert isinstance(sized, Intrinsic)
    try:
        moved = machine_from(there)
    except RecordError as error:
        what = str(error).partition(": ")[2]
        raise MachineError(f"machine {machine.name}: {what}") from None
    before, after = (sum(pad.capacity for pad in each.scratchpads) for each in (unit, sized))
    levels = [
        # Memory grows with the buffers in it.
        replace(level, capacity=level.capacity + max(0, after - before))
        if level.scratchpad and [_MACHINE, "levels", level.name, "capacity"] not in places.values()
        else level
        for level in moved.levels
    ]
    peak = machine.peak(unit.name)
    if timed:
        peak = catalogue.with_timings(moved, [sized]).peak(sized.name)
    peaks = {**moved.peaks, sized.name: peak}
    return sized, replace(moved, levels=tuple(levels), peaks=peaks)


def _timing(unit: Intrinsic, machine: Machine) -> dict[str, Any]:
    """Return the rate of a unit in cycles, by its description or else the machine's."""
    fitting = [timing for timing in unit.timing if timing.machine in (machine.name, "")]
    if fitting:
        return asdict(max(fitting, key=lambda timing: timing.machine))
    peak = machine.peak(unit.name)
    cycles = {"interval": peak.interval * machine.clock, "latency": peak.latency * machine.clock}
    return cycles | {"source": peak.source or machine.name, "machine": machine.name}


def _steps(path: str, machine: Machine) -> list[str]:
    """Split a path; a level of the machine goes by its name, alone for its capacity."""
    head, *steps = path.split(".")
    if head == _MACHINE and steps and steps[0] in {level.name for level in machine.levels}:
        steps = ["levels", *steps, *(["capacity"] if len(steps) == 1 else [])]
    return [head, *steps]


def _drop_strides(unit: Intrinsic, statement: Memory) -> Memory:
    """Drop a statement's strides if they are those of a whole fragment."""
    plain = replace(statement, indices=(), strides=())
    memory = tuple(plain if m is statement else m for m in unit.memory)
    derived = replace(unit, memory=memory).memory[unit.memory.index(statement)]
    return plain if derived == statement else statement


def _assign(values: Any, path: Sequence[str], value: Any, whole: str) -> None:
    """Replace the value at a path; entries of lists go by their names."""
    for step in path[:-1]:
        values = _entry(values, step, whole)
    last = path[-1]
    if not isinstance(values, dict) or (last not in values and not _may_have(values, last)):
        raise UnknownNameError("value to set", whole, _keys(values))
    values[last] = value


def _may_have(values: Mapping[str, Any], key: str) -> bool:
    """Return whether a memory statement may have a key that this one lacks."""
    return "statement" in values and key in Memory.__dataclass_fields__


def _entry(values: Any, step: str, whole: str) -> Any:
    named = values
    if isinstance(values, list | tuple):
        # The values of a buffer are set at its first operand.
        named = {name: each for each in reversed(values) for name in _names(each)}
    if not isinstance(named, dict) or step not in named:
        raise UnknownNameError("value to set", whole, _keys(values))
    return named[step]


def _names(entry: Any) -> tuple[str, ...]:
    if not isinstance(entry, dict):
        return ()
    if "statement" in entry:
        memory = Memory.parse(entry["statement"])
        return memory.operand, memory.register_scope
    return (entry["name"],) if "name" in entry else ()


def _keys(values: Any) -> list[str]:
    entries = values if isinstance(values, dict) else []
    listed = values if isinstance(values, list | tuple) else []
    return [*entries, *(name for each in listed for name in _names(each))]
