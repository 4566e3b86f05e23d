"""ResNet-18 C5 (batch 1): what amos finds against a schedule made by hand.

Goal: the kernel that ``amos.explore`` finds is at least 0.9 times as fast as the
hand-made one, both measured in turns in this process. The hand-made schedule
shares nothing with ``amos.codegen``: it is one fixed program for this one shape.

    python benchmarks/bench_c5.py [--trials 32] [--rounds 40]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import amos
from amos.machine.cpu import cpu

os.environ.setdefault("TVM_NUM_THREADS", str(cpu().cores))

import tvm
from contenders.vnni import vpdpbusd
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

GOAL = 0.9
SEED, INTRINSIC = 0, "vnni_dpbusd_m16k4_u8_s8_s32"
SIZE, CHANNELS, KERNEL, PAD = 28, 128, 3, 1
OUT = Path(__file__).parent / "results" / "c5.json"
#: Register tile: columns of the output times vectors of 16 output channels.
COLUMNS, VECTORS = 7, 2


@T.prim_func(s_tir=True)
def dot_pattern(
    a: T.Buffer((4,), "uint8", offset_factor=1),
    b: T.Buffer((16, 4), "int8", offset_factor=1),
    c: T.Buffer((16,), "int32", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(c[0:16], a[0:4], b[0:16, 0:4])
        T.writes(c[0:16])
        for i, k in T.grid(16, 4):
            with T.sblock("update"):
                vi, vk = T.axis.remap("SR", [i, k])
                c[vi] = c[vi] + T.cast(a[vk], "int32") * T.cast(b[vi, vk], "int32")


def baseline() -> Any:
    """The hand-made kernel: image 28×28×128, packed weights, output 28×28×128."""
    blocks, steps, wide = CHANNELS // 16, CHANNELS // 4, SIZE + 2 * PAD
    image = te.placeholder((SIZE, SIZE, CHANNELS), "uint8", name="image")
    packed = te.placeholder((blocks, KERNEL, KERNEL, steps, 16, 4), "int8", name="packed")
    zero = tirx.const(0, "uint8")
    padded = te.compute(
        (wide, wide, CHANNELS),
        lambda y, x, c: tirx.if_then_else(
            tirx.all(y >= PAD, y < SIZE + PAD, x >= PAD, x < SIZE + PAD),
            image[y - PAD, x - PAD, c],
            zero,
        ),
        name="padded",
    )
    r, s = (te.reduce_axis((0, KERNEL), name=n) for n in "rs")
    step, byte = te.reduce_axis((0, steps), name="step"), te.reduce_axis((0, 4), name="byte")
    out = te.compute(
        (SIZE, SIZE, blocks, 16),
        lambda y, x, k, lane: te.sum(
            padded[y + r, x + s, step * 4 + byte].astype("int32")
            * packed[k, r, s, step, lane, byte].astype("int32"),
            axis=[r, s, step, byte],
        ),
        name="out",
    )
    sch = s_tir.Schedule(te.create_prim_func([image, packed, out]))
    _schedule(sch)
    target = {
        "kind": "llvm",
        "mcpu": str(tvm.target.codegen.llvm_get_system_cpu()),
        "num-cores": cpu().cores,
    }
    return tvm.compile(sch.mod, target=tvm.target.Target(target))


def _schedule(sch: Any) -> None:
    """The best of twelve orders of these loops, tried by hand."""
    block = sch.get_sblock("out")
    y, x, k, lane, r, s, step, byte = sch.get_loops(block)
    kept = sch.cache_write(block, 0, "global")
    x_out, x_in = sch.split(x, [None, COLUMNS])
    k_out, k_in = sch.split(k, [None, VECTORS])
    sch.reorder(y, k_out, x_out, step, r, s, x_in, k_in, lane, byte)
    outer = sch.fuse(y, k_out, x_out)
    sch.parallel(outer)
    sch.unroll(x_in)
    sch.unroll(k_in)
    sch.reverse_compute_at(kept, outer)
    columns, vectors, lanes = sch.get_loops(kept)[-3:]
    sch.unroll(columns)
    sch.unroll(vectors)
    sch.vectorize(lanes)
    init = sch.decompose_reduction(block, step)
    columns, vectors, lanes = sch.get_loops(init)[-3:]
    sch.unroll(columns)
    sch.unroll(vectors)
    sch.vectorize(lanes)
    rows, _, channels = sch.get_loops(sch.get_sblock("padded"))
    sch.parallel(rows)
    sch.vectorize(sch.split(channels, [None, 64])[1])
    s_tir.TensorIntrin.register("bench_c5.vpdpbusd", dot_pattern, vpdpbusd)
    sch.tensorize(lane, "bench_c5.vpdpbusd")


def pack(weight: np.ndarray) -> np.ndarray:
    """Weights [K, C, R, S] as [K/16, R, S, C/4, 16, 4]."""
    blocked = weight.reshape(CHANNELS // 16, 16, CHANNELS // 4, 4, KERNEL, KERNEL)
    return np.ascontiguousarray(blocked.transpose(0, 4, 5, 2, 1, 3))


def reference(image: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The convolution in NumPy, one matrix product for each point of the kernel."""
    wide = np.pad(image, ((PAD, PAD), (PAD, PAD), (0, 0))).astype(np.int32)
    out = np.zeros((SIZE, SIZE, CHANNELS), np.int32)
    for r in range(KERNEL):
        for s in range(KERNEL):
            out += wide[r : r + SIZE, s : s + SIZE] @ weight[:, :, r, s].astype(np.int32).T
    return out


def timer(library: Any, arguments: list[Any]) -> Callable[[], float]:
    """Seconds of one run, averaged over a few milliseconds of them."""
    evaluate = library.mod.time_evaluator("main", tvm.cpu(), number=1, min_repeat_ms=5)
    return lambda: float(evaluate(*arguments).mean)


def describe(seconds: list[float]) -> dict[str, float]:
    low, middle, high = np.percentile(seconds, [5, 50, 95])
    return {"median_ms": middle * 1e3, "p5_ms": low * 1e3, "p95_ms": high * 1e3}


def ticks() -> tuple[float, float]:
    """Seconds that all CPUs were busy, and those that this process was."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return 0.0, 0.0
    busy = sum(map(int, first[1:4])) + sum(map(int, first[6:9]))
    own = os.times()
    return busy / os.sysconf("SC_CLK_TCK"), own.user + own.system


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    if "avx512_vnni" not in cpu().features:
        print("this CPU has no avx512_vnni: there is nothing to compare")
        return 0
    rng = np.random.default_rng(SEED)
    image = rng.integers(0, 256, (SIZE, SIZE, CHANNELS), np.uint8)
    weight = rng.integers(-128, 128, (CHANNELS, CHANNELS, KERNEL, KERNEL), np.int8)
    expected = reference(image, weight)

    hand = baseline()
    given = [tvm.runtime.tensor(a) for a in (image, pack(weight))]
    given.append(tvm.runtime.tensor(np.zeros((SIZE, SIZE, CHANNELS // 16, 16), "int32")))
    hand["main"](*given)
    assert np.array_equal(given[-1].numpy().reshape(expected.shape), expected)

    op = amos.Operator.parse(
        "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
        extents=dict(n=1, p=SIZE, q=SIZE, k=CHANNELS, c=CHANNELS, r=KERNEL, s=KERNEL),
        shapes=dict(image=(1, SIZE, SIZE, CHANNELS)),
        name="C5",
    )
    result = amos.explore(op, INTRINSIC, trials=options.trials, seed=SEED)
    kernel = amos.build(result.best).pack(weight=weight)
    assert np.array_equal(kernel(image[None])[0], expected)

    turns = {
        "hand_made": timer(hand, given),
        "amos": timer(kernel._library, kernel.prepare({"image": image[None]})),
    }
    times: dict[str, list[float]] = {name: [] for name in turns}
    for turn in [*turns.values()] * 3:
        turn()
    before = ticks()
    for _ in range(options.rounds):
        for name, turn in turns.items():
            times[name].append(turn())
    busy, own = (late - early for late, early in zip(ticks(), before, strict=True))
    return report(result, times, max(0.0, 1 - own / busy) if busy else 0.0)


def report(result: Any, times: dict[str, list[float]], others: float) -> int:
    """Print and write what was measured; status 1 if the goal was missed."""
    if others > 0.1:
        print(f"note       other processes took {others:.0%} of the CPU time: run it again alone")
    pairs = zip(times["hand_made"], times["amos"], strict=True)
    ratio = statistics.median(times["hand_made"]) / statistics.median(times["amos"])
    paired = statistics.median(a / b for a, b in pairs)
    found = {name: describe(seconds) for name, seconds in times.items()}
    for name, figures in found.items():
        figures["tops"] = result.operator.operations / figures["median_ms"] / 1e9
        print(
            f"{name:10} {figures['median_ms']:.4f} ms  (5 % to 95 %: {figures['p5_ms']:.4f} to "
            f"{figures['p95_ms']:.4f})  {figures['tops']:.3f} Top/s"
        )
    print(f"ratio      {ratio:.3f} of medians, {paired:.3f} median of pairs  (goal: {GOAL})")
    print(f"winner     {result}")
    document = {
        "operator": str(result.operator),
        "machine": {
            "cpu": cpu().model,
            "cores": cpu().cores,
            "python": platform.python_version(),
        }
        | {name: version(name) for name in ("apache-tvm", "apache-tvm-ffi", "numpy")},
        "seed": SEED,
        "trials": len(result.trials),
        "rounds": len(times["amos"]),
        "mapping": str(result.best.mapping),
        "schedule": result.best.schedule.as_dict(),
        "times": found,
        "share_of_other_processes": round(others, 3),
        "ratio": ratio,
        "ratio_paired": paired,
        "goal": GOAL,
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
