"""How many candidates a second the performance model evaluates on one core.

Random feasible candidates, blocks and padded tiles included, of every kind of mapping
of three layers on a CPU, and on the described A100. A batch holds a thousand
different ones, repeated to the size that a search ranks at once; the best of five runs
counts.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import fields
from pathlib import Path

import numpy as np

import amos
from amos import operators
from amos.machine import Machine
from amos.perfmodel import evaluate
from amos.plan import LoopBatch, Structure, batch_of
from amos.reproduce import fig5
from amos.schedule import ScheduleSpace

RESULTS = Path(__file__).parent / "results" / "model.json"
LAYERS = ("resnet18:C0", "resnet18:C5", "vgg16:V5")
WMMA = "wmma_m16n16k16_f16_f32"
_RUNS = 5


def repeated(batch: LoopBatch, times: int) -> LoopBatch:
    """The same schedules several times over."""

    def tile(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else np.concatenate([values] * times)

    return LoopBatch(*(tile(getattr(batch, field.name)) for field in fields(batch)))  # type: ignore[arg-type]


def rate(machine: Machine, intrinsic: str, count: int, times: int) -> tuple[float, float]:
    """Evaluations a second: of all mappings together, and of the slowest one."""
    unit, rng = amos.intrinsics.get(intrinsic), np.random.default_rng(0)
    rows, seconds, slowest = 0, 0.0, float("inf")
    for layer in LAYERS:
        for mapping in amos.enumerate_mappings(operators.resolve(layer), unit, rule="access"):
            structure = Structure(mapping)
            space = ScheduleSpace(mapping, machine if machine.architecture else None)
            drawn = [space.sample(rng) for _ in range(count)]
            batch = repeated(batch_of(structure, drawn), times)
            runs = []
            for _ in range(_RUNS):
                start = time.perf_counter()
                evaluate(structure, machine, batch)
                runs.append(time.perf_counter() - start)
            rows, seconds = rows + len(batch), seconds + min(runs)
            slowest = min(slowest, len(batch) / min(runs))
            print(f"{layer:12} {mapping.name:6} {len(batch) / min(runs):9.0f} a second")
    print(f"together {rows / seconds:.0f} candidates a second on one core, for {machine.name}")
    return rows / seconds, slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=1000, help="different ones of a mapping")
    parser.add_argument("--repeated", type=int, default=20)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found: dict[str, float] = {}
    count, times = arguments.candidates, arguments.repeated
    found["candidates_per_second"], found["slowest_mapping"] = rate(
        fig5.load_stored().machine, fig5.INTRINSIC, count, times
    )
    # The spaces of a GPU take longer to draw from, and there are more mappings.
    found["gpu_candidates_per_second"], found["gpu_slowest_mapping"] = rate(
        amos.machines.get("a100"), WMMA, count // 20, 4 * times
    )
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
