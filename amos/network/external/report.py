"""The report of a partitioned model: its regions' tasks, and what stays with onnxruntime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from amos.explore.choosing import Chooser
from amos.intrinsics import Intrinsic
from amos.machine import Machine
from amos.network.report import EngineRow, Report, TaskRow
from amos.plan.target import target_of

if TYPE_CHECKING:
    from amos.network.external.compiled import CompiledNetwork
    from amos.network.external.partition import PartitionedNetwork
    from amos.network.network import Network

#: Operations of onnxruntime that add up products, of which no more is known than their names.
PRODUCTS = frozenset(
    {
        *("Attention", "Conv", "ConvInteger", "ConvTranspose", "Einsum", "Gemm", "GRU", "LSTM"),
        *("MatMul", "MatMulInteger", "MatMulNBits", "MultiHeadAttention", "QGemm", "QLinearConv"),
        *("QLinearMatMul", "RNN"),
    }
)


def partition_report(
    network: PartitionedNetwork,
    machine: str | Machine,
    intrinsics: Sequence[Intrinsic],
    bounds: bool,
) -> Report:
    """See :meth:`PartitionedNetwork.report`."""
    reports = [
        each.report(machine, intrinsics, bounds=bounds) for each in network.networks.values()
    ]
    if not reports:  # whose machine nobody has read yet
        machine = Chooser(machine, intrinsics=intrinsics).target(())
    return _joined(network, reports, machine)


def compiled_report(model: CompiledNetwork) -> Report:
    """See :meth:`CompiledNetwork.report`."""
    return _joined(model.network, [each.report() for each in model.regions.values()], "host")


def _joined(
    network: Network | PartitionedNetwork, reports: Iterable[Report], machine: str | Machine
) -> Report:
    """One report of several, with equal tasks in one row."""
    reports = list(reports)
    tasks: dict[tuple[str, str], TaskRow] = {}
    for row in (row for each in reports for row in each.tasks):
        key = row.kind, row.operator
        before = tasks.get(key)
        tasks[key] = row if before is None else replace(row, count=before.count + row.count)
    engine: dict[tuple[str, str], EngineRow] = {}
    for current in (row for each in reports for row in each.engine):
        place = current.operation, current.reason
        if place in engine:
            first = engine[place]
            seconds = None
            if first.seconds is not None and current.seconds is not None:
                seconds = first.seconds + current.seconds
            products = (first.products or 0) + (current.products or 0)
            current = replace(
                current, count=first.count + current.count, seconds=seconds, products=products
            )
        engine[place] = current
    rows = [*engine.values()]
    rows += [
        EngineRow(operation, count, None, why, None if operation in PRODUCTS else 0)
        for (operation, why), count in network.external.items()
        if operation != "Constant"
    ]
    if reports:
        name, own, host = reports[0].machine, reports[0].has_engine, reports[0].host
    elif isinstance(machine, str):
        name, own, host = machine, True, ""
    else:
        name, own, host = machine.name, target_of(machine).has_engine, machine.host
    whole = Report(network.name, name, tuple(tasks.values()), tuple(rows), own, host)
    return whole.with_shares()
