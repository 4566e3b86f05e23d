"""AMOS, Figure 7: whole networks beside PyTorch, from the rows of ``make bench-networks``.

The paper measured Tensor Cores of two GPUs, and ours are CPUs, so factors do not compare; which
networks gain, and by which operators, does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from amos.errors import RecordError, quote

#: The figure's networks, by the benchmark's names; its ShuffleNet is the first version.
FIGURE = ("shufflenet_v2", "resnet18", "resnet50", "mobilenet_v1", "bert", "mi_lstm")
#: Contenders that AMOS is compared with.
PEERS = ("pytorch", "inductor", "onnxruntime", "openvino", "metaschedule", "relax")
#: Section 7.4: the least and the largest speedup over PyTorch, on V100 and A100, batch 1 and 16.
PAPER = 0.91, 10.42
#: Where ``make bench-networks`` writes, in a checkout of the repository.
_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@dataclass(frozen=True)
class Fig7Row:
    """A network.

    Attributes:
        dtype: ``"f32"`` or ``"int8"``.
        seconds: of AMOS, the median; ``None`` for means of several networks.
        times: how many times as long others take that are right, by name.
    """

    network: str
    dtype: str
    batch: int
    seconds: float | None
    times: dict[str, float]


def default_results(folder: Path = _RESULTS) -> Path:
    """Return the file of the benchmark's last run, or else that of the README's figures."""
    for name in ("networks.json", "networks_zen4.json"):
        if (folder / name).is_file():
            return folder / name
    raise RecordError(
        "results: expected a FILE that make bench-networks wrote, "
        f"got none, and there is none in {str(folder)!r}"
    )


def fig7(results: str | Path) -> list[Fig7Row]:
    """List networks that AMOS computes correctly, those of the figure first, or a RecordError."""
    try:
        entries = json.loads(Path(results).read_text(encoding="utf-8"))["rows"]
        measured = {_place(row) + (row["contender"],): _seconds(row) for row in entries}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"results {str(results)!r} cannot be read; expected what make bench-networks writes, "
            f"got {type(error).__name__}: {quote(error)}"
        ) from error
    rows = []
    for *place, contender in measured:
        ours = measured[(*place, contender)]
        if contender == "amos" and ours is not None:
            theirs = {name: measured.get((*place, name)) for name in PEERS}
            times = {name: each / ours for name, each in theirs.items() if each is not None}
            network, dtype, batch = place
            rows.append(Fig7Row(str(network), str(dtype), int(batch), ours, times))
    if not rows:
        raise RecordError(f"results {str(results)!r}: expected a right row of amos, got none")
    order = {name: place for place, name in enumerate(FIGURE)}
    rows.sort(key=lambda row: (row.dtype, row.batch, order.get(row.network, len(order))))
    return rows


def means(rows: Sequence[Fig7Row]) -> list[Fig7Row]:
    """Return geometric means of each dtype and batch: of the figure's networks, and of all."""
    groups: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    for row in rows:
        for title in ("of the figure",) * (row.network in FIGURE) + ("of all",):
            group = groups.setdefault((title, row.dtype, row.batch), {})
            for name, ratio in row.times.items():
                group.setdefault(name, []).append(ratio)
    return [
        Fig7Row(title, dtype, batch, None, {name: geometric_mean(v) for name, v in each.items()})
        for (title, dtype, batch), each in groups.items()
    ]


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["network"], row["dtype"], row["batch"]


def _seconds(row: dict[str, Any]) -> float | None:
    """Return the median seconds; ``None`` for a wrong result."""
    seconds = float(row["median_seconds"])
    if not seconds > 0:
        raise ValueError(f"median_seconds {seconds}")
    return seconds if row["correct"] else None
