"""The report of a network: what would run where and how fast, before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from amos._display import Shown
from amos.errors import AmosError
from amos.machine import Machine
from amos.network.candidates import Chooser, moving
from amos.network.graph import Node
from amos.network.groups import Job, Task, outside
from amos.network.lowerings.base import Lowering
from amos.network.lowerings.cascade import cascades_of
from amos.network.lowerings.choosing import predict_lowering
from amos.network.network import Network
from amos.network.shapes import count_bytes

if TYPE_CHECKING:
    import pandas as pd

    from amos.network.model import CompiledRegion

#: What moves nothing: names for values that are there.
_FREE = ("Reshape", "Identity")


@dataclass(frozen=True)
class TaskRow:
    """A task in a report.

    Attributes:
        kind: what its anchor is called; of a cascade (:mod:`amos.operators.cascade`) all of them.
        operator: the statement, its extents, and the epilogue.
        count: how often it occurs.
        mappings: how many mappings the chosen instruction has, or how many of all of a cascade's go
            together; 0 where none can be used.
        instruction: the one that is predicted fastest, those of a cascade; empty where none can be
            used.
        seconds: predicted, of one occurrence; ``None`` where it stays with the engine.
        bound: what limits it.
        share: of the predicted time of the whole; 0 while the whole has none.
        reason: why it stays with the engine, if it does.
        measured: seconds of one occurrence by the records; ``None`` where none was used.
        winograd: whether it is computed by Winograd's tiles (:mod:`amos.operators.winograd`);
            instruction, mappings and bound are then the product's, and ``measured`` is what was
            measured of that, with what is predicted of the rest.
        spreads: whether those tiles are of floats, in which an element that is NaN or infinite
            also spoils the other results of its tile.
    """

    kind: str
    operator: str
    count: int
    mappings: int = 0
    instruction: str = ""
    seconds: float | None = None
    bound: str = ""
    share: float = 0.0
    reason: str = ""
    measured: float | None = None
    winograd: bool = False
    spreads: bool = False

    @property
    def method(self) -> str:
        """The instruction, and what it multiplies if that is not the operator itself."""
        return f"{self.instruction} by Winograd's tiles" if self.winograd else self.instruction


@dataclass(frozen=True)
class EngineRow:
    """Operations of one name that stay with the engine.

    Attributes:
        operation: the engine's name.
        count: how often it occurs.
        seconds: of all of them, as long as moving their data takes; ``None`` without a
            prediction: for products, and on machines without an engine.
        reason: why they are no groups.
    """

    operation: str
    count: int
    seconds: float | None
    reason: str


@dataclass(frozen=True, eq=False)
class Report(Shown):
    """What would run where.

    Attributes:
        network: its name.
        machine: name of the machine.
        tasks: a row for each, the longest first.
        engine: what stays with the engine.
        has_engine: whether the machine runs one; units that streams drive do not.
    """

    network: str
    machine: str
    tasks: tuple[TaskRow, ...]
    engine: tuple[EngineRow, ...]
    has_engine: bool = True

    @cached_property
    def seconds(self) -> float | None:
        """Predicted of the whole; ``None`` while a part of it has no prediction."""
        if not self.complete:
            return None
        return self.kernel_seconds + sum(row.seconds or 0.0 for row in self.engine)

    @property
    def kernel_seconds(self) -> float:
        """Predicted of all kernels."""
        return sum((row.seconds or 0.0) * row.count for row in self.tasks)

    @property
    def summary(self) -> str:
        """The predicted time of the whole, or why there is none."""
        if self.seconds is not None:
            return f"{self.seconds * 1e3:.4g} ms"
        products = sum(row.count for row in self.tasks if row.seconds is None)
        operations = sum(row.count for row in self.engine if row.seconds is None)
        missing = [f"{products} without a kernel (products)"] * bool(products)
        missing += [f"{operations} without a prediction (other operations)"] * bool(operations)
        return f"no total: {' and '.join(missing)}; all kernels: {self.kernel_seconds * 1e3:.4g} ms"

    @property
    def complete(self) -> bool:
        """Whether all of it is predicted."""
        times = [row.seconds for row in self.tasks] + [row.seconds for row in self.engine]
        return None not in times

    @property
    def elsewhere(self) -> str:
        """Where operations without a kernel run."""
        return "engine" if self.has_engine else "not computed"

    def to_frame(self) -> pd.DataFrame:
        """One row a task; seconds."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.tasks])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        return {
            "network": self.network,
            "machine": self.machine,
            "predicted_seconds": self.seconds,
            "kernel_seconds": self.kernel_seconds,
            "complete": self.complete,
            "tasks": [asdict(row) for row in self.tasks],
            "engine": [asdict(row) for row in self.engine],
        }

    def __str__(self) -> str:
        lines = [f"{self.network} on {self.machine}: predicted {self.summary}"]
        for row in self.tasks:
            if row.seconds is None:
                lines.append(f"  {row.count:3} x {row.kind}: {self.elsewhere}: {row.reason}")
                continue
            lines.append(
                f"  {row.count:3} x {row.kind}: {row.seconds * 1e3:.3g} ms on {row.method}, "
                + (f"{row.share:.1%}, " if self.complete else "")
                + f"bound by {row.bound}"
                + ("" if row.measured is None else f", measured {row.measured * 1e3:.3g} ms")
            )
            lines.append(f"        {row.operator}")
        lines += [
            f"  {row.count:3} x {row.operation}: {self.elsewhere}: {row.reason}"
            for row in self.engine
        ]
        if any(row.spreads for row in self.tasks):
            lines.append("  NaN and infinities spoil all results of their tiles by Winograd")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class BucketReports(Shown):
    """What would run where, for each bucket.

    Attributes:
        network: its name.
        reports: one a bucket, the smallest first.
    """

    network: str
    reports: tuple[Report, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row a task of each bucket, by its name; seconds."""
        import pandas as pd

        return pd.DataFrame(
            [{"bucket": own.network} | asdict(row) for own in self.reports for row in own.tasks]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; seconds."""
        return {"network": self.network, "buckets": [each.to_dict() for each in self.reports]}

    def __str__(self) -> str:
        return "\n".join(map(str, self.reports))


def report(network: Network, machine: str | Machine) -> Report:
    """See :meth:`Network.report`."""
    chooser = Chooser(machine)
    cascades = cascades_of(network.tasks, network.graph, chooser)
    rest = outside(dict.fromkeys(network.tasks), cascades)
    rows = [_task_row(task, chooser) for task in rest]
    rows += [_kernel_row(job, lowering) for job, lowering in cascades.items()]
    return _summed(network, chooser.target(()), rows)


def compiled_report(region: CompiledRegion) -> Report:
    """See :meth:`CompiledRegion.report <amos.network.model.CompiledRegion.report>`."""
    rows = [_kernel_row(job, kernel.lowering) for job, kernel in region.kernels.items()]
    rows += [_left_row(job, reason) for job, reason in region.left.items()]
    return _summed(region.network, Chooser("host").target(()), rows)


def _summed(network: Network, machine: Machine, rows: Sequence[TaskRow]) -> Report:
    """The report of some tasks, with what stays with the engine."""
    engine = _engine_rows(network, machine)
    ranked = sorted(rows, key=lambda row: -(row.seconds or 0.0) * row.count)
    whole = Report(
        network.name, machine.name, tuple(ranked), engine, has_engine=machine.stream is None
    )
    if whole.seconds is None:
        return whole
    shares = [(row.seconds or 0.0) * row.count / whole.seconds for row in ranked]
    shared = tuple(replace(row, share=x) for row, x in zip(ranked, shares, strict=True))
    return replace(whole, tasks=shared)


def _task_row(task: Task, chooser: Chooser) -> TaskRow:
    try:
        return _kernel_row(task, predict_lowering(task, chooser))
    except AmosError as error:
        return _left_row(task, str(error).replace("\n", " "))


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
    )


def _left_row(job: Job, reason: str) -> TaskRow:
    return TaskRow(job.operator.name, str(job.operator), job.weight, reason=reason)


def _engine_rows(network: Network, machine: Machine) -> tuple[EngineRow, ...]:
    """What stays, by operation and reason, the most frequent first."""
    refused = network.grouping.refused
    rows: dict[tuple[str, str], list[Node]] = {}
    for node in network.grouping.left:
        if node.operation not in _FREE:
            reason = refused.get(node.number, "no sum of products")
            rows.setdefault((node.operation, reason), []).append(node)
    made = [
        EngineRow(
            operation,
            len(nodes),
            None
            if nodes[0].number in refused or machine.stream is not None
            else sum(_moving(n, machine) for n in nodes),
            reason,
        )
        for (operation, reason), nodes in rows.items()
    ]
    return tuple(sorted(made, key=lambda row: -row.count))


def _moving(node: Node, machine: Machine) -> float:
    """Seconds to move what a node reads and writes, from where all of it has room."""
    return moving(machine, sum(map(count_bytes, node.operands)), count_bytes(node))
