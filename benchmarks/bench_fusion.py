"""What an epilogue costs in the kernel of its product, and as a kernel of its own.

    python benchmarks/bench_fusion.py [--trials 16] [--rounds 200] [--groups C5,C8]

The product is explored, and so is the epilogue as a kernel that reads the sums; the fused
kernel has the product's mapping and schedule. All three run in turns, on all cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import amos
from amos.ir import Operator
from amos.plan import Candidate
from amos.validate import random_inputs

RESULTS = Path(__file__).parent / "results" / "fusion.json"
REQUANTIZE = "u8(relu((acc + bias[k]) * scale[k] + skip[n,p,q,k] * 0.3) + zero[])"


@dataclass(frozen=True)
class Group:
    """A product and its epilogue."""

    product: Operator
    text: str
    dtypes: dict[str, str]

    @property
    def behind(self) -> Operator:
        """The epilogue of sums that were stored."""
        out = self.product.output
        sums = replace(out.tensor, name="sums")
        return Operator.parse(
            str(out) + " += " + str(replace(out, tensor=sums)),
            {it.name: it.extent for it in self.product.spatial},
            {"sums": str(out.tensor.dtype), out.tensor.name: str(out.tensor.dtype)},
        ).with_epilogue(self.text, self.dtypes)


def gemm(a: str, weight: str, out: str) -> Operator:
    """The first product of a transformer's feed-forward layer."""
    return Operator.parse(
        "out[m,n] += a[m,k] * weight[n,k]",
        dict(m=128, n=3072, k=768),
        dict(a=a, weight=weight, out=out),
    )


def groups() -> dict[str, Group]:
    """Quantized layers, and a transformer's with GELU behind it."""
    made = {
        layer: Group(
            amos.operators.resolve(f"resnet18:{layer}", layout="NHWC", dtype="u8s8"),
            REQUANTIZE,
            dict(bias="s32", skip="u8", zero="s32"),
        )
        for layer in ("C5", "C8")
    }
    return made | {
        "gelu f32": Group(gemm("f32", "f32", "f32"), "gelu(acc + bias[n])", {}),
        "gelu bf16": Group(gemm("bf16", "bf16", "f32"), "bf16(gelu(acc + bias[n]))", {}),
        "gelu u8": Group(
            gemm("u8", "s8", "s32"), "gelu((acc + bias[n]) * scale[n])", {"bias": "s32"}
        ),
    }


def measured(group: Group, trials: int, rounds: int) -> dict[str, float]:
    """Milliseconds of each kernel, and how they compare in the middle one of all rounds."""
    fused = group.product.with_epilogue(group.text, group.dtypes)
    bare = amos.explore(group.product, trials=trials, progress=False).best.candidate
    behind = amos.explore(group.behind, trials=trials, progress=False).best.candidate
    space = amos.enumerate_mappings(fused, bare.mapping.intrinsic, commute=True)
    mapping = next(m for m in space if m.name == bare.mapping.name)
    turns = {
        name: prepared(candidate)
        for name, candidate in (
            ("product", bare), ("epilogue", behind), ("fused", Candidate(mapping, bare.schedule))
        )
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, (kernel, arguments) in turns.items():
            start = time.perf_counter()
            kernel.run(arguments)
            seconds[name].append(time.perf_counter() - start)
    product, epilogue, both = (np.array(seconds[name]) for name in turns)
    return {f"{name}_ms": statistics.median(s) * 1e3 for name, s in seconds.items()} | {
        "fused_to_product": float(np.median(both / product)),
        "two_to_fused": float(np.median((product + epilogue) / both)),
        "least_fused_to_product": float(both.min() / product.min()),
        "least_two_to_fused": float((product.min() + epilogue.min()) / both.min()),
    }


def prepared(candidate: Candidate) -> tuple[Any, list[Any]]:
    """A kernel, and its arguments in memory that is warm."""
    kernel = amos.build(candidate)
    inputs = random_inputs(candidate.mapping.operator, np.random.default_rng(0))
    arguments = kernel.prepare(inputs)
    kernel.run(arguments)
    return kernel, arguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--groups", default=",".join(groups()))
    asked = parser.parse_args()
    rows = {}
    for name in asked.groups.split(","):
        rows[name] = row = measured(groups()[name], asked.trials, asked.rounds)
        print(
            f"{name:10} product {row['product_ms']:.4f} ms, epilogue {row['epilogue_ms']:.4f}, "
            f"fused {row['fused_ms']:.4f}; fused/product {row['fused_to_product']:.3f} "
            f"(least times {row['least_fused_to_product']:.3f}), two kernels/fused "
            f"{row['two_to_fused']:.2f} ({row['least_two_to_fused']:.2f})",
            flush=True,
        )
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
