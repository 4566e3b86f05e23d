"""Whole networks: AMOS against onnxruntime, OpenVINO, PyTorch and TVM, on this CPU.

    python benchmarks/bench_networks.py [--networks resnet18,…] [--dtypes f32,int8]
        [--batches 1,16] [--contenders …] [--rounds 11] [--records FILE]

All contenders of a network are loaded and checked, each in a process of its own, and then
timed in rounds, one after the other in each round, with the same number of threads. A
contender that is not installed, does not take a network, or does not answer for an hour, is
named with its reason and left out. Rows are written after each network. AMOS takes the best
kernels of a record file; tune into it beforehand. MetaSchedule tunes when it is first asked
for a network, which takes hours, and only runs if it is named.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from contenders.machine import machine
from contenders.pool import Pool
from networks.contenders import CONTENDERS, USUAL
from networks.graph import feeds
from networks.race import race
from networks.zoo import DTYPES, NETWORKS, model_file

RESULTS = Path(__file__).parent / "results"
WORKER = Path(__file__).parent / "networks" / "worker.py"
#: Seconds after which a contender has failed, unless MetaSchedule tunes.
LIMIT = 3600.0
#: Relative difference (2-norm) up to which a result counts as correct. A quantized network
#: amplifies what one kernel rounds otherwise by a quantum, which all kernels may.
CORRECT = {"f32": 1e-4, "int8": 0.3, "int8_reduced": 0.3}
#: What is measured unless asked otherwise.
FIRST = "mlp,resnet18,mobilenet_v2,resnet50,bert"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=FIRST, help=f"all, or of {','.join(NETWORKS)}")
    parser.add_argument("--dtypes", default="f32,int8", help=f"of {','.join(DTYPES)}")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--contenders", default=",".join(USUAL), help=", ".join(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--records", type=Path, default=RESULTS / "networks.work" / "records.db")
    parser.add_argument("--out", type=Path, default=RESULTS / "networks.json")
    chosen = parser.parse_args()
    if chosen.networks == "all":
        chosen.networks = ",".join(NETWORKS)
    for name, known in (("networks", NETWORKS), ("dtypes", DTYPES), ("contenders", CONTENDERS)):
        values = getattr(chosen, name).split(",")
        if unknown := [value for value in values if value not in known]:
            parser.error(f"unknown {name[:-1]} {unknown[0]!r}; known: {', '.join(known)}")
        setattr(chosen, name, values)
    return chosen


def measure(
    pool: Pool, chosen: argparse.Namespace, network: str, dtype: str, batch: int
) -> list[dict[str, Any]]:
    """Rows of one network, all contenders in turns."""
    work = pool.folder
    path = model_file(work, network, dtype, batch)
    inputs = work / f"{network}_b{batch}.npz"
    np.savez(inputs, **feeds(onnx.load(str(path)), seed=0))
    found = race(
        pool, chosen.contenders, path, inputs, chosen.records, chosen.threads, chosen.rounds
    )
    return [
        {
            "network": network,
            "dtype": dtype,
            "batch": batch,
            "contender": contender,
            "correct": row["difference"] <= CORRECT[dtype],
            "threads": chosen.threads,
            "rounds": chosen.rounds,
            **row,
        }
        for contender, row in found.items()
    ]


def line(row: dict[str, Any]) -> str:
    wrong = "" if row["correct"] else "  WRONG"
    return (
        f"{row['network']:14} {row['dtype']:5} {row['batch']:3} {row['contender']:12} "
        f"{row['median_seconds'] * 1e3:9.2f} ms  {row['spread']:6.1%}  "
        f"differs by {row['difference']:.1e}{wrong}"
    )


def main() -> int:
    chosen = options()
    work = chosen.out.parent / f"{chosen.out.stem}.work"
    work.mkdir(parents=True, exist_ok=True)
    told = json.loads(chosen.out.read_text()) if chosen.out.exists() else {"rows": []}
    pool = Pool(work, WORKER, None if "metaschedule" in chosen.contenders else LIMIT)
    failed = 0
    try:
        for network in chosen.networks:
            for dtype in chosen.dtypes:
                for batch in map(int, chosen.batches.split(",")):
                    try:
                        fresh = measure(pool, chosen, network, dtype, batch)
                    except Exception as error:  # of a network that cannot be made or computed
                        print(f"{network} {dtype} {batch}: not measured: {error}", flush=True)
                        failed += 1
                        continue
                    print("\n".join(map(line, fresh)), flush=True)
                    # Rows of one network are always of one run: old ones would not compare.
                    key = (network, dtype, batch)
                    others = [
                        row
                        for row in told["rows"]
                        if (row["network"], row["dtype"], row["batch"]) != key
                    ]
                    packages = ("apache-tvm", "onnxruntime", "openvino", "torch", "numpy")
                    told = {"machine": machine(*packages), "rows": others + fresh}
                    new = chosen.out.with_suffix(".new")
                    new.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
                    new.replace(chosen.out)
    finally:
        pool.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
