"""Random candidates of ten operators: does what a space proposes compile and verify?

Also how fast feasible candidates are drawn. Extents are small and uneven, so that
most tiles need padding; reductions, windows, strides and layouts are those of the
operators that they are named for.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import amos
from amos.explore.objective import Problem
from amos.ir import Operator
from amos.measure import Runner, Task
from amos.plan import Candidate
from amos.schedule import ScheduleSpace

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
WMMA = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
RESULTS = Path(__file__).parent / "results" / "space.json"

OPERATORS = {
    "gemm": Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=37, j=101, k=64)),
    "gemv": Operator.parse("out[i] += a[k] * weight[i,k]", extents=dict(i=1009, k=64)),
    "bmm": Operator.parse("out[b,i,j] += x[b,i,k] * y[b,j,k]", extents=dict(b=3, i=19, j=33, k=20)),
    "conv1d": Operator.parse(
        "out[n,k,p] += image[n,c,p*2+r] * weight[k,c,r]", extents=dict(n=2, k=40, p=29, c=7, r=3)
    ),
    "conv2d_nhwc": Operator.parse(
        "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
        extents=dict(n=1, p=13, q=11, k=48, c=8, r=3, s=3),
        shapes=dict(image=(1, 13, 11, 8)),
    ),
    "conv2d_nchw": Operator.parse(
        "out[n,k,p,q] += image[n,c,p*2+r,q*2+s] * weight[k,c,r,s]",
        extents=dict(n=2, k=24, p=7, q=9, c=5, r=3, s=3),
    ),
    "conv3d": Operator.parse(
        "out[n,k,d,p,q] += image[n,c,d+t,p+r,q+s] * weight[k,c,t,r,s]",
        extents=dict(n=1, k=20, d=3, p=5, q=7, c=4, t=2, r=3, s=3),
    ),
    "grouped": Operator.parse(
        "out[n,g,k,p,q] += image[n,g,c,p+r,q+s] * weight[g,k,c,r,s]",
        extents=dict(n=1, g=3, k=17, p=7, q=5, c=4, r=3, s=3),
    ),
    "dilated": Operator.parse(
        "out[n,k,p,q] += image[n,c,p+r*2,q+s*2] * weight[k,c,r,s]",
        extents=dict(n=1, k=32, p=11, q=7, c=6, r=3, s=3),
    ),
    "transposed": Operator.parse(
        "out[n,k,p,q] += pad(image[n,c,p+r-1,q+s-1]) * weight[c,k,2-r,2-s]",
        extents=dict(n=1, k=18, p=7, q=11, c=6, r=3, s=3),
        shapes=dict(image=(1, 6, 7, 11)),
    ),
}


def verify(count: int, seed: int) -> dict[str, object]:
    """Build, run and compare random candidates; prints every failure."""
    rng = np.random.default_rng(seed)
    host = amos.machines.get("host")
    tried, padded, failures = 0, 0, []
    with Runner(60.0) as runner:
        for name, op in OPERATORS.items():
            problem = Problem(list(amos.enumerate_mappings(op, VNNI, rule="gather")), host)
            seen = set()
            while len(seen) < count // len(OPERATORS):
                mapping = problem.mappings[int(rng.integers(len(problem.mappings)))]
                candidate = problem.sample(mapping, rng)
                if candidate.key in seen:
                    continue
                seen.add(candidate.key)
                tried += 1
                padded += bool(candidate.schedule.padded(problem.space(mapping).nest))
                found = runner.measure(Task(candidate, repeat=1))
                if not found.ok:
                    failures.append([name, str(candidate), found.failure, found.message])
                    print("FAILED", *failures[-1])
            print(f"{name:12} {len(seen)} candidates, {len(failures)} failures so far", flush=True)
    share = 1 - len(failures) / tried
    print(f"{tried} candidates, {padded} of them padded: {share:.2%} compile and verify")
    return {"tried": tried, "padded": padded, "share": share, "failures": failures}


def rate(count: int) -> float:
    """Different feasible candidates a second, for C2D on WMMA."""
    mappings = list(amos.enumerate_mappings(amos.operators.resolve("conv2d"), WMMA))
    machine = amos.machines.get("a100")
    rates = []
    for mapping in mappings[:: max(1, len(mappings) // 10)]:
        space = ScheduleSpace(mapping, machine)
        space.draw(1, np.random.default_rng(1))
        start = time.perf_counter()
        drawn = {Candidate(mapping, s).key for s in space.draw(count, np.random.default_rng(0))}
        rates.append(len(drawn) / (time.perf_counter() - start))
    slowest, middle = min(rates), float(np.median(rates))
    print(f"C2D on WMMA: {middle:.0f} feasible candidates a second (slowest mapping {slowest:.0f})")
    return middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = {"candidates_per_second": rate(500)} | verify(arguments.candidates, arguments.seed)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
