"""How many candidates a second the performance model evaluates on one core.

Random feasible candidates, blocks and padded tiles included, of every kind of mapping
of three layers. A batch holds several thousand different ones, repeated to the size
that a search ranks at once; the best of five runs counts.
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
from amos.perfmodel import LoopBatch, Structure, evaluate
from amos.reproduce import fig5
from amos.schedule import ScheduleSpace, batch_of

RESULTS = Path(__file__).parent / "results" / "model.json"
LAYERS = ("resnet18:C0", "resnet18:C5", "vgg16:V5")
_RUNS = 5


def repeated(batch: LoopBatch, times: int) -> LoopBatch:
    """The same schedules several times over."""

    def tile(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else np.concatenate([values] * times)

    return LoopBatch(*(tile(getattr(batch, field.name)) for field in fields(batch)))  # type: ignore[arg-type]


def rate(count: int, times: int) -> dict[str, float]:
    """Evaluations a second: of all mappings together, and of the slowest one."""
    machine, rng = fig5.stored().machine, np.random.default_rng(0)
    rows, seconds, slowest = 0, 0.0, float("inf")
    for layer in LAYERS:
        unit = amos.intrinsics.get(fig5.INTRINSIC)
        for mapping in amos.enumerate_mappings(operators.resolve(layer), unit, rule="access"):
            structure, space = Structure(mapping), ScheduleSpace(mapping)
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
    print(f"together {rows / seconds:.0f} candidates a second on one core")
    return {"candidates_per_second": rows / seconds, "slowest_mapping": slowest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=2000, help="different ones of a mapping")
    parser.add_argument("--repeated", type=int, default=10)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found = rate(arguments.candidates, arguments.repeated)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
