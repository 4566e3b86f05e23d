"""Times networks that share the cores: sessions called in turns, and processes at once.

    python benchmarks/bench_sharing.py model.onnx [more.onnx] [--threads N] [--rounds N]

Prints for AMOS and for onnxruntime how long a call takes alone, in turns with another session of
onnxruntime in the same process, and while several processes run the same model. Every figure comes
from a process of its own, which no thread pool of another figure disturbs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import amos

Call = Callable[[], object]

#: Settings of a session by a short name.
SETTINGS = {
    "default": {},
    "stop": {"session.force_spinning_stop": "1"},
    "yield": {"session.intra_op.allow_spinning": "0"},
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--rounds", type=int, default=3, help="processes of each figure; the median counts"
    )
    parser.add_argument("--processes", type=int, default=4, help="that run at once")
    parser.add_argument("--seconds", type=float, default=1.0, help="that a process calls for")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def inputs_of(session: Any) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8}
    return {
        entry.name: (random.random(entry.shape) * 2).astype(types[entry.type])
        for entry in session.get_inputs()
    }


def session_call(path: Path, threads: int, setting: str) -> Call:
    """Open a session, with AMOS's library if one lies beside the model."""
    import onnxruntime

    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads = threads
    for key, value in SETTINGS[setting].items():
        chosen.add_session_config_entry(key, value)
    if (library := path.with_name("libamos.so")).exists():
        chosen.register_custom_ops_library(str(library))
    session = onnxruntime.InferenceSession(str(path), chosen, providers=["CPUExecutionProvider"])
    inputs = inputs_of(session)
    return lambda: session.run(None, inputs)


def mean_seconds(call: Call, other: Call | None, seconds: float) -> float:
    """Time a call for some seconds, another one before each if there is one."""
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        if other:
            other()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.mean(times))


def work(chosen: argparse.Namespace) -> None:
    """Serve as one process: print the mean seconds of a call, once standard input says so."""
    task = json.loads(chosen.worker)
    call = session_call(chosen.models[0], chosen.threads, task["setting"])
    other = task["other"] and session_call(Path(task["other"]), chosen.threads, task["setting"])
    mean_seconds(call, other, chosen.seconds / 4)
    print("ready", flush=True)
    sys.stdin.readline()
    print(mean_seconds(call, other, chosen.seconds), flush=True)


def run(chosen: argparse.Namespace, path: Path, count: int, **task: Any) -> float:
    """Start processes, let all of them call at once, and return their mean seconds of a call."""
    command = [sys.executable, __file__, str(path), "--threads", str(chosen.threads)]
    command += ["--seconds", str(chosen.seconds), "--worker", json.dumps(task)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for worker in workers:
        while worker.stdout.readline().strip() != "ready":
            if worker.poll() is not None:
                raise SystemExit(f"a process ended with {worker.returncode}")
    time.sleep(0.3)
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return float(np.mean([float(worker.communicate()[0]) for worker in workers]))


def report(chosen: argparse.Namespace, path: Path, model: Path) -> None:
    """Print a line for each setting; ``model`` is the other session of a process."""
    alone = None
    for setting in SETTINGS:
        seconds = [
            float(np.median([run(chosen, path, count, **task) for _ in range(chosen.rounds)]))
            for count, task in (
                (1, dict(setting=setting, other="")),
                (1, dict(setting=setting, other=str(model))),
                (chosen.processes, dict(setting=setting, other="")),
            )
        ]
        alone = alone or seconds[0]
        print(
            f"{model.stem:20} {'onnxruntime' if path == model else 'amos':12} {setting:8} alone "
            f"{seconds[0] * 1e3:.3f} ms; in turns {seconds[1] / alone:.2f}, {chosen.processes} "
            f"processes {seconds[2] / alone:.2f} times the first line's",
            flush=True,
        )


def main() -> None:
    chosen = options()
    if chosen.worker:
        work(chosen)
        return
    for model in chosen.models:
        with tempfile.TemporaryDirectory() as folder:
            amos.compile(amos.load_network(model)).export(folder)
            report(chosen, model, model)
            report(chosen, Path(folder, "model.onnx"), model)


if __name__ == "__main__":
    main()
