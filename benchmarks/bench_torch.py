"""``torch.compile(module, backend="amos")`` beside PyTorch's eager mode, on this CPU.

    python benchmarks/bench_torch.py [--modules nn,BERT] [--rounds 9] [--out rows.json]

The modules are of torch.nn, torchvision and transformers, with random weights. Each runs in a
process of its own; the two are timed in turns, and the least times are printed.
``torch.compile(backend="eager")`` is timed too: it shows the time that PyTorch's own guards take.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

#: Threads of OpenMP sleep while they wait for each other. Kernels of virtual machines may pack
#: them onto one core, where threads that spin make PyTorch a hundred times as slow.
ASLEEP = {"OMP_WAIT_POLICY": "passive"}
#: Seconds after which a module has failed.
LIMIT = 600.0
#: Calls of a turn at most, and the seconds after which no further one begins.
CALLS, SPAN = 50, 0.05
#: Largest difference of a result, over its largest element; f16, bf16 and int8 are coarser.
ALLOWED, COARSE = 2e-3, 1e-1


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", default="", help="parts of names, by commas; by default all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--alone", help="run this module in this process")
    return parser.parse_args()


class Graphs(logging.Handler):
    """Counts the graphs that the backend compiled, and those that it left to PyTorch."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.compiled = self.eager = 0
        logger = logging.getLogger("amos.network.pytorch.backend")
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "runs compiled" in record.getMessage():
            self.compiled += 1
        else:
            self.eager += 1


def difference_of(results: Any, expected: Any) -> float:
    """Largest difference over the largest element, of the worst result."""
    import torch
    from torch.utils import _pytree

    worst = 0.0
    pairs = zip(_pytree.tree_leaves(results), _pytree.tree_leaves(expected), strict=True)
    for result, right in ((a, b) for a, b in pairs if isinstance(b, torch.Tensor)):
        if result.dtype != right.dtype or result.shape != right.shape:
            return float("inf")
        apart = (result.double() - right.double()).abs().max()
        worst = max(worst, float(apart / right.double().abs().max().clamp(min=1e-6)))
    return worst


def timed(functions: dict[str, Any], inputs: Any, rounds: int) -> dict[str, float]:
    """Least seconds of each function, in turns: other processes may use the cores as well."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            function(*inputs)
            begin = time.perf_counter()
            for _ in range(CALLS):
                start = time.perf_counter()
                function(*inputs)
                seconds[name].append((end := time.perf_counter()) - start)
                if end - begin > SPAN:
                    break
    return {name: min(row) for name, row in seconds.items()}


def run(name: str, rounds: int) -> dict[str, Any]:
    """A row of the table, of a module in this process."""
    import torch
    from networks.torch_modules import MODULES

    torch.manual_seed(0)
    module, inputs = MODULES[name]()
    module.eval()
    graphs = Graphs()
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = module(*inputs)
        compiled = torch.compile(module, backend="amos")
        start = time.perf_counter()
        compiled(*inputs)
        seconds = time.perf_counter() - start
        difference = difference_of(compiled(*inputs), expected)
        functions = {"eager": module, "amos": compiled}
        functions["guards"] = torch.compile(module, backend="eager")
        times = timed(functions, inputs, rounds)
    reasons = [str(each.message).splitlines()[0] for each in caught]
    return {
        "difference": difference,
        "compile_seconds": seconds,
        "compiled": graphs.compiled,
        "eager": graphs.eager,
        "seconds": times,
        "reasons": sorted({each for each in reasons if 'backend "amos"' in each}),
    }


def apart(name: str, rounds: int) -> dict[str, Any]:
    """The same in a process of its own; why it failed or was skipped, if it was."""
    command = [sys.executable, __file__, "--alone", name, "--rounds", str(rounds)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, env={**os.environ, **ASLEEP}
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {LIMIT:g} s"}
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    missing = "ModuleNotFoundError" in last
    return {"skipped" if missing else "failed": last}


def line(name: str, row: dict[str, Any]) -> str:
    """A line of the table."""
    for kind in ("skipped", "failed"):
        if kind in row:
            return f"{name:38} {kind}: {row[kind][:150]}"
    eager, amos, guards = (row["seconds"][each] for each in ("eager", "amos", "guards"))
    coarse = any(each in name for each in ("16", "PT2E"))
    right = row["difference"] <= (COARSE if coarse else ALLOWED)
    return (
        f"{name:38} {'runs' if right else 'DIFFERS':8}{row['difference']:8.1e}"
        f"{row['compiled']:4}/{row['eager'] + len(row['reasons'])}"
        f"{eager * 1e3:10.3f}{amos * 1e3:10.3f}{guards * 1e3:10.3f}{eager / amos:8.2f}"
        f"{guards / amos:8.2f}{row['compile_seconds']:7.0f}  {'; '.join(row['reasons'])[:120]}"
    )


def main() -> int:
    chosen = options()
    if chosen.alone:
        print(json.dumps(run(chosen.alone, chosen.rounds)))
        return 0
    from networks.torch_modules import MODULES

    rows: dict[str, dict[str, Any]] = {}
    print(
        f"{'module':38} {'':8}{'differs':>8} compiled/eager  eager ms  amos ms  guards ms"
        "  eager/amos guards/amos  compile s"
    )
    for name in MODULES:
        if any(part in name for part in chosen.modules.split(",")):
            rows[name] = apart(name, chosen.rounds)
            print(line(name, rows[name]), flush=True)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(rows, indent=1))
    return int(any("failed" in row for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
