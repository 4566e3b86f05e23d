"""How long a user waits before anything happens.

Goals: ``import amos`` under 0.5 s and without TVM; ``amos map`` on any operator of
the library under 1.5 s. Both are times of whole processes, medians of several runs.

    python benchmarks/bench_startup.py [--runs 5]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from amos.machine.cpu import cpu

IMPORT_GOAL, MAP_GOAL = 0.5, 1.5
INTRINSIC = "wmma_m16n16k16_f16_f32"
OPERATORS = ("conv2d", "gemm", "conv3d", "capsule_conv2d", "depthwise_conv2d", "resnet18:C5")
OUT = Path(__file__).parent / "results" / "startup.json"


def median(command: list[str], runs: int) -> float:
    """Seconds of a whole process; a first run fills the file cache and does not count."""
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    python = sys.executable
    loaded = subprocess.run(
        [python, "-c", "import amos, sys; print('tvm' in sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    rows = {
        "python -c pass": (median([python, "-c", "pass"], runs), None),
        "import amos": (median([python, "-c", "import amos"], runs), IMPORT_GOAL),
    }
    for name in OPERATORS:
        command = [python, "-m", "amos", "map", name, INTRINSIC]
        rows[f"amos map {name}"] = (median(command, runs), MAP_GOAL)
    for name, (seconds, goal) in rows.items():
        print(f"{name:32} {seconds:.3f} s" + (f"  (goal: {goal} s)" if goal else ""))
    print(f"import amos loads tvm: {loaded}")
    document = {
        "machine": {"cpu": cpu().model, "cores": cpu().cores, "python": platform.python_version()}
        | {name: version(name) for name in ("numpy", "typer")},
        "runs": runs,
        "seconds": {name: round(seconds, 4) for name, (seconds, _) in rows.items()},
        "goals": {name: goal for name, (_, goal) in rows.items() if goal},
        "tvm_loaded_by_import": loaded == "True",
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    missed = [name for name, (seconds, goal) in rows.items() if goal and seconds >= goal]
    return 1 if missed or loaded != "False" else 0


if __name__ == "__main__":
    sys.exit(main())
