"""Reports of networks: predictions of tasks, and of operators that an engine or a host runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from amos import machines
from amos.errors import AmosError
from amos.explore.choosing import Chooser
from amos.intrinsics import Intrinsic
from amos.ir import Chain, Operator
from amos.machine import Machine
from amos.network.anchors import count_products
from amos.network.frontend import PRODUCT_OPERATORS
from amos.network.graph import Node
from amos.network.groups import Job, Task, drop_fused_groups
from amos.network.lowerings.base import Direct, Lowering, predict_node, predict_transfer
from amos.network.lowerings.choosing import predict_lowering
from amos.network.lowerings.fused import choose_fused
from amos.network.network import Network
from amos.network.offload import predict_offload
from amos.network.report import EngineRow, Report, TaskRow
from amos.plan.target import target_of

if TYPE_CHECKING:
    from amos.network.external.compiled import CompiledNetwork
    from amos.network.external.partition import PartitionedNetwork
    from amos.network.kernels import CompiledRegion

#: Operators that move no data.
_FREE = ("Reshape", "Identity")


def report(
    network: Network | PartitionedNetwork,
    machine: str | Machine,
    intrinsics: Sequence[Intrinsic] = (),
    *,
    bounds: bool = False,
) -> Report:
    """See :meth:`Network.report`."""
    chooser = Chooser(machine, intrinsics=intrinsics)
    target = chooser.target(())
    if target_of(target).has_engine:
        parts = [_region_report(each, chooser, target) for each in network.networks.values()]
    else:
        parts = [
            _unit_report(each, chooser, target, bounds=bounds) for each in network.networks.values()
        ]
    return _join_reports(network, target, parts)


def model_report(model: CompiledNetwork) -> Report:
    """See :meth:`CompiledNetwork.report`."""
    target = Chooser("host").target(())
    parts = [_kernel_report(each, target) for each in model.regions.values()]
    return _join_reports(model.network, target, parts)


def _region_report(network: Network, chooser: Chooser, target: Machine) -> Report:
    """Report a region on a CPU."""
    fused: dict[Job, Lowering] = {
        job: first for job, (first, *_) in choose_fused(network, chooser).items()
    }
    separate = drop_fused_groups(dict.fromkeys(network.tasks), fused)
    rows = [_task_row(task, chooser) for task in separate]
    rows += [_kernel_row(job, lowering) for job, lowering in fused.items()]
    engine = _engine_rows(network, target, fused)
    return Report(network.name, target.name, tuple(rows), engine)


def _unit_report(network: Network, chooser: Chooser, target: Machine, *, bounds: bool) -> Report:
    """Report a region on a unit that has a host for everything else."""
    host = machines.get(target.host) if target.host else None
    host_chooser = Chooser(host) if host else None
    rows = [_unit_row(task, chooser, host_chooser, bounds=bounds) for task in network.tasks]
    engine = (*_engine_rows(network, host), *_step_rows(network.tasks, rows, host))
    return Report(network.name, target.name, tuple(rows), engine)


def _unit_row(task: Task, chooser: Chooser, host: Chooser | None, *, bounds: bool) -> TaskRow:
    """Report a task on a unit; on its host, where no instruction of the unit computes it."""
    try:
        offload, product = predict_offload(task.operator, chooser)
    except AmosError as error:
        reason = str(error)
        if host is None:
            return _fallback_row(task, reason)
        return replace(_task_row(task, host), on_host=True, reason=reason)
    row = _kernel_row(Task(offload.operator, task.groups), Direct(offload.operator, product))
    prediction, unit = product.prediction, product.mapping.intrinsic
    peak = prod(unit.shape) / chooser.target([unit]).peak(unit.name).interval
    bound = chooser.bound(product) if bounds else None
    return replace(
        row,
        bound_seconds=None if bound is None else bound.seconds,
        host_steps=offload.host_steps,
        utilization=row.products / (prediction.seconds * peak),
        traffic_bytes=prediction.traffic_bytes,
        energy=prediction.energy,
    )


def _step_rows(
    tasks: Sequence[Task], rows: Sequence[TaskRow], host: Machine | None
) -> list[EngineRow]:
    """List the steps of hosts in tasks of a unit: they take as long as moving sums and results."""
    steps: dict[tuple[str, str], list[float | None]] = {}
    for task, row in zip(tasks, rows, strict=True):
        for step in row.host_steps:
            kind = step.partition(" ")[0] if step.startswith(("pro", "epi")) else "copy"
            key = f"{kind} of {row.kind}", "the unit does not compute it"
            moved = task.operator.output.tensor.stored_bytes, task.operator.result.stored_bytes
            seconds = None if host is None else predict_transfer(host, *moved)
            steps.setdefault(key, []).extend([seconds] * row.count)
    return [
        EngineRow(name, len(times), None if host is None else sum(x or 0.0 for x in times), why)
        for (name, why), times in steps.items()
    ]


def _kernel_report(region: CompiledRegion, target: Machine) -> Report:
    """Report a region with its kernels."""
    rows = [_kernel_row(job, kernel.lowering) for job, kernel in region.kernels.items()]
    rows += [_fallback_row(job, reason) for job, reason in region.fallbacks.items()]
    engine = _engine_rows(region.network, target, region.kernels)
    return Report(region.network.name, target.name, tuple(rows), engine)


def _task_row(task: Task, chooser: Chooser) -> TaskRow:
    try:
        return _kernel_row(task, predict_lowering(task, chooser))
    except AmosError as error:
        return _fallback_row(task, str(error).replace("\n", " "))


def _kernel_row(job: Job, lowering: Lowering) -> TaskRow:
    return TaskRow(
        kind=job.operator.name,
        operator=str(job.operator),
        count=job.weight,
        mappings=lowering.mappings,
        instruction=lowering.instruction,
        seconds=lowering.predicted,
        bound=lowering.bound,
        measured=lowering.measured,
        winograd=lowering.by_tiles,
        spreads=lowering.spreads,
        products=_count_products(job),
    )


def _fallback_row(job: Job, reason: str) -> TaskRow:
    products = _count_products(job)
    return TaskRow(
        job.operator.name, str(job.operator), job.weight, reason=reason, products=products
    )


def _count_products(job: Job) -> int:
    """Return how many products one occurrence adds up, of a chain those of its statements."""
    operator = job.operator
    own = operator.products if isinstance(operator, Chain) else (operator,)
    return sum(prod(each.extents.values()) for each in own if isinstance(each, Operator))


def _engine_rows(
    network: Network, machine: Machine | None, fused: Iterable[Job] = ()
) -> tuple[EngineRow, ...]:
    """List the operators without a kernel by name and reason, the most frequent first.

    Args:
        fused: kernels, some of which compute more than products.
    """
    refused = network.grouping.refused
    computed = {node.number for job in fused for site in job.groups for node in site.nodes}
    rows: dict[tuple[str, str], list[Node]] = {}
    for node in network.grouping.ungrouped:
        if node.operation not in _FREE and node.number not in computed:
            reason = refused.get(node.number, "no sum of products")
            rows.setdefault((node.operation, reason), []).append(node)
    results = [
        EngineRow(
            operation,
            len(nodes),
            None
            if nodes[0].number in refused or machine is None
            else sum(predict_node(machine, node) for node in nodes),
            reason,
            sum(map(count_products, nodes)),
        )
        for (operation, reason), nodes in rows.items()
    ]
    return tuple(sorted(results, key=lambda row: -row.count))


def _join_reports(
    network: Network | PartitionedNetwork, machine: Machine, reports: Sequence[Report]
) -> Report:
    """Join the reports of regions, with equal tasks in one row."""
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
    external = [
        EngineRow(operation, count, None, why, None if operation in PRODUCT_OPERATORS else 0)
        for (operation, why), count in network.external.items()
        if operation != "Constant"
    ]
    whole = Report(
        network.name,
        machine.name,
        tuple(tasks.values()),
        (*engine.values(), *external),
        has_engine=target_of(machine).has_engine,
        host=machine.host,
    )
    return whole.with_shares()
