"""The terms of a prediction as arrays, and their combination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from amos.machine.machine import Level
from amos.perfmodel.energy import Accesses


@dataclass(frozen=True)
class BatchPrediction:
    """Predicted times, one row a schedule, in seconds.

    Attributes:
        seconds: the whole operator; infinite if the schedule does not fit.
        compute: the intrinsic alone.
        read: level name → bringing sources in through it.
        write: level name → taking the destination out through it.
        bytes_in: level name → bytes read through it by one group of cores.
        bytes_out: level name → bytes written through it by one group.
        trips: level name → executions of the loops inside it.
        source: level name → index of the source with the most traffic.
        staging: copies of operands into and out of their staged form.
        launch: starting parallel regions.
        exchange: lines of the output that cores take from each other.
        notes: further figures of a machine's terms, by name; none on a CPU.
        accesses: of each operand at each level of a streamed unit; empty elsewhere.
    """

    seconds: np.ndarray
    compute: np.ndarray
    read: dict[str, np.ndarray]
    write: dict[str, np.ndarray]
    bytes_in: dict[str, np.ndarray]
    bytes_out: dict[str, np.ndarray]
    trips: dict[str, np.ndarray]
    source: dict[str, np.ndarray]
    staging: np.ndarray
    launch: np.ndarray
    exchange: np.ndarray
    notes: dict[str, np.ndarray] = field(default_factory=dict)
    accesses: tuple[Accesses, ...] = ()

    @staticmethod
    def empty(rows: int, levels: Sequence[Level]) -> BatchPrediction:
        """Return a batch of zero seconds, with levels that nothing crosses."""
        seconds, compute, staging, launch, exchange = np.zeros((5, rows))
        names = [level.name for level in levels]

        def none() -> dict[str, np.ndarray]:
            return dict.fromkeys(names, np.zeros(rows))

        return BatchPrediction(
            seconds,
            compute,
            read=none(),
            write=none(),
            bytes_in=none(),
            bytes_out=none(),
            trips=dict.fromkeys(names, np.ones(rows)),
            source=dict.fromkeys(names, np.zeros(rows, dtype=np.intp)),
            staging=staging,
            launch=launch,
            exchange=exchange,
        )


def concatenate(parts: Sequence[BatchPrediction]) -> BatchPrediction:
    """Concatenate batches."""

    def join(values: Sequence[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: np.concatenate([v[key] for v in values]) for key in values[0]}
        if isinstance(values[0], tuple):
            return tuple(map(_join_accesses, zip(*values, strict=True)))
        return np.concatenate(values)

    names = [field.name for field in fields(BatchPrediction)]
    return BatchPrediction(**{name: join([getattr(x, name) for x in parts]) for name in names})


def _join_accesses(batches: Sequence[Accesses]) -> Accesses:
    joules = [batch.joules for batch in batches if batch.joules is not None]
    return replace(
        batches[0],
        read_bytes=np.concatenate([batch.read_bytes for batch in batches]),
        written_bytes=np.concatenate([batch.written_bytes for batch in batches]),
        joules=np.concatenate(joules) if joules else None,
    )


def smooth_maximum(terms: Sequence[np.ndarray], exponent: float) -> np.ndarray:
    """Return a smooth maximum: terms of similar size slow each other down."""
    shares = np.stack(terms)
    longest = shares.max(axis=0)
    shares /= longest
    np.power(shares, exponent, out=shares)
    # Term by term: NumPy's sum adds those of a single row in another order.
    total, *following = shares
    for share in following:
        total += share
    whole: np.ndarray = longest * total ** (1.0 / exponent)
    return whole
