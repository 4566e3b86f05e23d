"""Wall time until a network is as fast as MetaSchedule makes it, whose scheduler is Ansor's.

    python benchmarks/against_metaschedule.py MODEL.onnx [--trials 320] [--scheduler bound]

AMOS compiles the network without tuning, then tunes in steps and compiles again after each, one
result after the other; MetaSchedule makes its trials. All that came of it is timed in turns at
the end. The clock of each runs from reading the model to the compiled network.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import onnx
from networks.contenders import Call, load, metaschedule, use_threads
from networks.graph import feeds

import amos

#: Trials of AMOS at each step, as shares of MetaSchedule's; rounds of timing.
STEPS, ROUNDS = (1 / 8, 1 / 4, 1 / 2), 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--trials", type=int, default=320, help="of MetaSchedule")
    parser.add_argument("--batch", type=int, default=16, help="its trials of a kernel in a row")
    parser.add_argument("--scheduler", default="bound", help="of AMOS")
    chosen = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    use_threads(threads)
    inputs = feeds(onnx.load(str(chosen.model)), seed=0)
    calls: dict[str, Call] = {}
    seconds: dict[str, float] = {}

    def note(name: str, call: Call, start: float) -> None:
        calls[name], seconds[name] = call, time.monotonic() - start
        print(f"{name}: after {seconds[name]:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        records, compiling, start = Path(folder) / "records.db", 0.0, time.monotonic()
        for share in (0.0, *STEPS):
            if trials := round(share * chosen.trials):
                network = amos.load_network(chosen.model)
                amos.tune(
                    network,
                    trials=trials,
                    records=records,
                    scheduler=chosen.scheduler,
                    progress=False,
                )
            before = time.monotonic()
            call = load("amos", chosen.model, inputs, threads, records)
            # A user compiles once: what earlier steps compiled does not count.
            note(f"amos, {trials} trials", call, start + compiling)
            compiling += time.monotonic() - before
        start = time.monotonic()
        place = Path(folder) / "metaschedule"
        call = metaschedule(chosen.model, inputs, threads, place, chosen.trials, chosen.batch)
        note(f"metaschedule, {chosen.trials} trials", call, start)

    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            begun = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begun)
    middle = {name: statistics.median(each) for name, each in times.items()}
    for name in calls:
        print(f"{name:28} {seconds[name]:7.0f} s  {middle[name] * 1e3:9.2f} ms")
    *own, rival = calls
    reached = [name for name in own if middle[name] <= middle[rival]]
    if reached:
        share = seconds[reached[0]] / seconds[rival]
        print(f"{reached[0]}: as fast in {share:.2f} of the wall time")
    else:
        print(f"no step is as fast as {rival}")


if __name__ == "__main__":
    main()
