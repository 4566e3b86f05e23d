"""The report of a network: where its operators would run and how fast, before measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from amos._display import Shown
from amos.perfmodel import EnergyRow

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TaskRow:
    """A task in a report.

    Attributes:
        kind: what its anchor is called; of a cascade all of them,
            of a chain of statements its name.
        operator: the statement, its extents, and the epilogue.
        mappings: how many mappings the chosen instruction has, or how many of all of a cascade's go
            together; 0 where none can be used.
        instruction: the one that is predicted fastest, those of a cascade; empty where none can be
            used.
        seconds: predicted, of one occurrence; ``None`` where it stays with the engine.
        share: of the predicted time of the whole; 0 while the whole has none.
        reason: why it stays with the engine, if it does.
        measured: seconds of one occurrence by the records; ``None`` where none was used.
        winograd: whether it is computed by Winograd's tiles (:mod:`amos.operators.winograd`);
            instruction, mappings and bound are then the product's, and ``measured`` is what was
            measured of that, with what is predicted of the rest.
        spreads: whether those tiles are of floats, in which an element that is NaN or infinite
            also spoils the other results of its tile.
        products: that one occurrence adds up.
        host_steps: what of it the unit's host does, in words.
        on_host: whether the host does all of it.
        utilization: share of the unit's peak that one occurrence is predicted to reach.
        traffic_bytes: from and to DRAM, of one occurrence on a unit.
        energy: of one occurrence on a unit, by level and operand.
        bound_seconds: what no schedule of one occurrence falls below; ``None`` if not asked for.
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
    products: int = 0
    host_steps: tuple[str, ...] = ()
    on_host: bool = False
    utilization: float | None = None
    traffic_bytes: float | None = None
    energy: tuple[EnergyRow, ...] = ()
    bound_seconds: float | None = None

    @property
    def energy_joules(self) -> float | None:
        """Energy of one occurrence; ``None`` where the machine lacks a part of it."""
        joules = [row.joules for row in self.energy if row.joules is not None]
        return sum(joules) if joules and len(joules) == len(self.energy) else None

    @property
    def unit_seconds(self) -> float | None:
        """Predicted seconds on the unit; ``None`` where its host does all of it."""
        return None if self.on_host else self.seconds

    @property
    def method(self) -> str:
        """The instruction, and whether it multiplies Winograd's tiles."""
        return f"{self.instruction} by Winograd's tiles" if self.winograd else self.instruction


@dataclass(frozen=True)
class EngineRow:
    """Operations of one name that stay with the engine.

    Attributes:
        operation: the engine's name.
        seconds: of all of them, as long as moving their data takes; ``None`` without a
            prediction: for products, and on machines without an engine.
        reason: why they are no groups.
        products: that all of them add up; ``None`` where their shapes are not known.
    """

    operation: str
    count: int
    seconds: float | None
    reason: str
    products: int | None = 0


@dataclass(frozen=True)
class Unmapped:
    """Products that no instruction of the machine computes.

    Attributes:
        operator: what is computed, or the name of the operation.
        products: that all of them add up; ``None`` where their shapes are not known.
    """

    operator: str
    count: int
    products: int | None
    reason: str


@dataclass(frozen=True, eq=False)
class Report(Shown):
    """What would run where.

    Attributes:
        tasks: a row for each, the longest first.
        has_engine: whether the machine runs one; units that streams drive have a host.
        host: name of the machine that is a unit's host; empty where none is named.
    """

    network: str
    machine: str
    tasks: tuple[TaskRow, ...]
    engine: tuple[EngineRow, ...]
    has_engine: bool = True
    host: str = ""

    @cached_property
    def seconds(self) -> float | None:
        """Predicted seconds of the whole; ``None`` while a part has no prediction."""
        if not self.complete:
            return None
        return self.kernel_seconds + sum(row.seconds or 0.0 for row in self.engine)

    def with_shares(self) -> Report:
        """Return the same with the longest task first, and shares of the whole if it has a time."""
        ranked = sorted(self.tasks, key=lambda row: -(row.seconds or 0.0) * row.count)
        total = self.seconds or math.inf
        shared = (replace(row, share=(row.seconds or 0.0) * row.count / total) for row in ranked)
        return replace(self, tasks=tuple(shared))

    @property
    def kernel_seconds(self) -> float:
        """Predicted seconds of all kernels."""
        return sum((row.seconds or 0.0) * row.count for row in self.tasks)

    @cached_property
    def unmapped(self) -> tuple[Unmapped, ...]:
        """The products that no instruction of the machine computes."""
        tasks = [
            Unmapped(row.operator, row.count, row.products * row.count, row.reason)
            for row in self.tasks
            if row.unit_seconds is None
        ]
        return *tasks, *(
            Unmapped(row.operation, row.count, row.products, row.reason)
            for row in self.engine
            if row.products != 0
        )

    @cached_property
    def modelled_share(self) -> float | None:
        """Share of the products that a modelled instruction computes.

        ``None`` where the number of products is not known, or there are none.
        """
        missing = [row.products for row in self.unmapped]
        modelled = sum(row.products * row.count for row in self.tasks)
        modelled -= sum(row.products * row.count for row in self.tasks if row.unit_seconds is None)
        total = modelled + sum(x or 0 for x in missing)
        return None if None in missing or not total else modelled / total

    @property
    def coverage(self) -> str:
        """The modelled share of the products, and the layers that are not, in a line."""
        share = self.modelled_share
        count = sum(row.count for row in self.unmapped)
        if share is None:
            line = "of unknown size" if count else "none in this network"
            return f"products: {line}" + (f", {count} of them not modelled" if count else "")
        line = f"modelled: {share:.1%} of the products"
        return line if not count else f"{line}; {count} of {self._product_count} layers are not"

    @property
    def problem(self) -> str:
        """Why the products have no time; empty if they have one."""
        if not self.unmapped:
            return "" if self.tasks else "the network has no products"
        count = sum(row.count for row in self.unmapped)
        return f"{count} of {self._product_count} layers not modelled: {self.unmapped[0].reason}"

    @property
    def _product_count(self) -> int:
        engine = sum(row.count for row in self.engine if row.products != 0)
        return engine + sum(row.count for row in self.tasks)

    def _add_up(self, figures: Iterable[float | None]) -> float | None:
        """Add up a figure of each task; ``None`` while one has none, or is not modelled."""
        pairs = zip(self.tasks, figures, strict=True)
        totals = [row.count * figure for row, figure in pairs if figure is not None]
        is_complete = totals and len(totals) == len(self.tasks) and not self.unmapped
        return sum(totals) if is_complete else None

    @cached_property
    def energy_joules(self) -> float | None:
        """Energy of all products."""
        return self._add_up(row.energy_joules for row in self.tasks)

    @cached_property
    def traffic_bytes(self) -> float | None:
        """Bytes from and to DRAM."""
        return self._add_up(row.traffic_bytes for row in self.tasks)

    @cached_property
    def utilization(self) -> float | None:
        """Share of the unit's peak while it runs its tasks."""
        shares = ((row.utilization, row.seconds or 0.0) for row in self.tasks)
        busy = self._add_up(None if share is None else share * time for share, time in shares)
        return None if busy is None else busy / self.kernel_seconds

    @cached_property
    def bound_seconds(self) -> float | None:
        """Lower bound of the seconds of all tasks."""
        return self._add_up(row.bound_seconds for row in self.tasks)

    @property
    def summary(self) -> str:
        """The predicted time of the whole, or why there is none."""
        if self.seconds is not None:
            return f"{self.seconds * 1e3:.4g} ms"
        if products := sum(row.count for row in self.unmapped):
            return f"no total: {products} without a kernel (products)"
        operations = sum(row.count for row in self.engine if row.seconds is None)
        missing = f"{operations} without a prediction (other operations)"
        if not self.has_engine and not self.host:
            missing += ", as the machine names no host"
        return f"no total: {missing}; all kernels: {self.kernel_seconds * 1e3:.4g} ms"

    @property
    def complete(self) -> bool:
        """Whether all of it is predicted."""
        times = [row.seconds for row in self.tasks] + [row.seconds for row in self.engine]
        return None not in times

    @property
    def elsewhere(self) -> str:
        """Where operations without a kernel run."""
        return "engine" if self.has_engine else "host"

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each task; in seconds, bytes and joules."""
        import pandas as pd

        rows = [asdict(row) | {"energy_joules": row.energy_joules} for row in self.tasks]
        return pd.DataFrame(rows).drop(columns="energy", errors="ignore")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; seconds."""
        return {
            "network": self.network,
            "machine": self.machine,
            "modelled_share": self.modelled_share,
            "unmapped": [asdict(row) for row in self.unmapped],
            "predicted_seconds": self.seconds,
            "kernel_seconds": None if self.unmapped else self.kernel_seconds,
            "complete": self.complete,
            "host": self.host,
            "energy_joules": self.energy_joules,
            "traffic_bytes": self.traffic_bytes,
            "utilization": self.utilization,
            "bound_seconds": self.bound_seconds,
            "tasks": [asdict(row) | {"energy_joules": row.energy_joules} for row in self.tasks],
            "engine": [asdict(row) for row in self.engine],
        }

    def __str__(self) -> str:
        lines = [
            f"{self.network} on {self.machine}: {self.coverage}",
            f"  predicted {self.summary}",
        ]
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
            lines += [f"        host: {step}" for step in row.host_steps]
        lines += [
            f"  {row.count:3} x {row.operation}: {self.elsewhere}: {row.reason}"
            for row in self.engine
        ]
        if any(row.spreads for row in self.tasks):
            lines.append("  NaN and infinities spoil all results of their tiles by Winograd")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class BucketReports(Shown):
    """The reports of all buckets, the smallest first."""

    network: str
    reports: tuple[Report, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each task of each bucket, by its name; times in seconds."""
        import pandas as pd

        return pd.DataFrame(
            [{"bucket": own.network} | asdict(row) for own in self.reports for row in own.tasks]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; seconds."""
        return {"network": self.network, "buckets": [each.to_dict() for each in self.reports]}

    def __str__(self) -> str:
        return "\n".join(map(str, self.reports))
