"""Machines with their units beside one another, on whole networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from amos import machines
from amos.errors import MachineError, NetworkError
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.network.report import Report

if TYPE_CHECKING:
    from amos.network.external.partition import PartitionedNetwork
    from amos.network.network import Network


@dataclass(frozen=True)
class Layer:
    """A task of a network on a machine; figures are of one occurrence.

    Attributes:
        operator: the task.
        count: how often it occurs.
        seconds: predicted; ``None`` where no instruction of the machine computes it.
        energy_joules: ``None`` where the machine does not say all energies.
        traffic_bytes: from and to DRAM.
        utilization: share of the unit's peak.
        reason: why it is not modelled.
    """

    operator: str
    count: int
    seconds: float | None
    energy_joules: float | None
    traffic_bytes: float | None
    utilization: float | None
    reason: str


@dataclass(frozen=True)
class DesignRow:
    """A network on a machine.

    Attributes:
        machine: name.
        model: name.
        modelled_share: of the products; ``None`` where their number is not known.
        seconds: of all products, without the host's work; ``None`` while some are not modelled, or
            there are none.
        problem: why there is no time; empty if there is one.
        energy_joules: of them; ``None`` as well where energies are missing.
        traffic_bytes: from and to DRAM.
        utilization: share of the unit's peak.
        pareto: whether no other machine is better for this model in time or energy and as good
            in both; by the time alone where a machine has no energy.
        layers: the tasks, the longest first.
    """

    machine: str
    model: str
    modelled_share: float | None
    seconds: float | None
    problem: str
    energy_joules: float | None
    traffic_bytes: float | None
    utilization: float | None
    pareto: bool
    layers: tuple[Layer, ...]


def compare_designs(
    targets: Sequence[str | Machine],
    networks: Mapping[str, Network | PartitionedNetwork],
    intrinsics: Sequence[Intrinsic] = (),
) -> list[DesignRow]:
    """Predict networks on machines.

    Args:
        targets: machines, by name or file or themselves.
        networks: by the name to show.
        intrinsics: units to use, each on the machines that it has a rate of; by default those
            that a machine has.

    Raises:
        MachineError: two machines have one name, or a machine has a rate of no unit.
        NetworkError: there is no machine, or no network.
    """
    if not targets or not networks:
        raise NetworkError("compare: expected at least one machine and one model")
    described = [machines.get(each, intrinsics) for each in targets]
    repeated = [name for name, n in Counter(each.name for each in described).items() if n > 1]
    if repeated:
        raise MachineError(
            f"compare: expected machines of different names, got {repeated[0]!r} twice"
        )
    rows = [
        _row(network.report(machine, _units_of(machine, intrinsics)), name)
        for name, network in networks.items()
        for machine in described
    ]
    return [replace(row, pareto=_is_best(row, rows)) for row in rows]


def _units_of(machine: Machine, intrinsics: Sequence[Intrinsic]) -> list[Intrinsic]:
    """The units that a machine has a rate of."""
    units = [unit for unit in intrinsics if unit.name in machine.peaks]
    if intrinsics and not units:
        names = ", ".join(unit.name for unit in intrinsics)
        raise MachineError(f"machine {machine.name!r}: expected a rate of one of {names}, got none")
    return units


def _row(report: Report, model: str) -> DesignRow:
    layers = tuple(
        Layer(
            row.operator,
            row.count,
            None if row.on_host else row.seconds,
            row.energy_joules,
            row.traffic_bytes,
            row.utilization,
            row.reason,
        )
        for row in report.tasks
    )
    return DesignRow(
        machine=report.machine,
        model=model,
        modelled_share=report.modelled_share,
        seconds=None if report.problem else report.kernel_seconds,
        problem=report.problem,
        energy_joules=report.energy_joules,
        traffic_bytes=report.traffic_bytes,
        utilization=report.utilization,
        pareto=False,
        layers=layers,
    )


def _is_best(row: DesignRow, rows: Sequence[DesignRow]) -> bool:
    """Whether a row is on the Pareto front of its model."""
    rivals = [each for each in rows if each.model == row.model and each.seconds is not None]
    if row.seconds is None:
        return False
    if any(each.energy_joules is None for each in rivals):
        return all(row.seconds <= (each.seconds or 0.0) for each in rivals)
    own = row.seconds, row.energy_joules or 0.0
    return not any(_dominates((x.seconds or 0.0, x.energy_joules or 0.0), own) for x in rivals)


def _dominates(first: Sequence[float], second: Sequence[float]) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
