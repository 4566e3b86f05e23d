"""Machines with their units beside one another, on whole networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from amos import machines
from amos.errors import MachineError, NetworkError
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.network.report import Report

if TYPE_CHECKING:
    from amos.network.external.partition import PartitionedNetwork
    from amos.network.network import Network


@dataclass(frozen=True)
class DesignRow:
    """A network on a machine.

    Attributes:
        pareto: whether no other machine is better for this model in time or energy and as good
            in both; by the time alone where a machine has no energy.
    """

    model: str
    report: Report
    pareto: bool = False

    @property
    def seconds(self) -> float | None:
        """Seconds of all products, without the host's work; ``None`` where there is a problem."""
        return None if self.report.problem else self.report.kernel_seconds

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; layers are of one occurrence."""
        figures = ("energy_joules", "traffic_bytes", "utilization")
        report = self.report
        return {
            "machine": report.machine,
            "model": self.model,
            "modelled_share": report.modelled_share,
            "seconds": self.seconds,
            "problem": report.problem,
            **{name: getattr(report, name) for name in figures},
            "pareto": self.pareto,
            "layers": [
                {"operator": row.operator, "count": row.count, "seconds": row.unit_seconds}
                | {name: getattr(row, name) for name in (*figures, "reason")}
                for row in report.tasks
            ],
        }


def compare_designs(
    targets: Sequence[str | Machine],
    networks: Mapping[str, Network | PartitionedNetwork],
    intrinsics: Sequence[Intrinsic] = (),
) -> list[DesignRow]:
    """Predict networks on machines.

    Args:
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
        DesignRow(name, network.report(machine, _units_of(machine, intrinsics)))
        for name, network in networks.items()
        for machine in described
    ]
    return [replace(row, pareto=_is_best(row, rows)) for row in rows]


def _units_of(machine: Machine, intrinsics: Sequence[Intrinsic]) -> list[Intrinsic]:
    """List the units that a machine has a rate of."""
    units = [unit for unit in intrinsics if unit.name in machine.peaks]
    if intrinsics and not units:
        names = ", ".join(unit.name for unit in intrinsics)
        raise MachineError(f"machine {machine.name!r}: expected a rate of one of {names}, got none")
    return units


def _is_best(row: DesignRow, rows: Sequence[DesignRow]) -> bool:
    """Return whether a row is on the Pareto front of its model."""
    rivals = [each for each in rows if each.model == row.model and each.seconds is not None]
    if row.seconds is None:
        return False
    points = {x.report.machine: (x.seconds or 0.0, x.report.energy_joules) for x in rivals}
    if any(energy is None for _, energy in points.values()):
        return all(row.seconds <= seconds for seconds, _ in points.values())
    own = row.seconds, row.report.energy_joules or 0.0
    return not any(_dominates((seconds, x or 0.0), own) for seconds, x in points.values())


def _dominates(first: Sequence[float], second: Sequence[float]) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
