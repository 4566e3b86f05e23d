"""The genetic search at 256 scores beside the proven optimum, 60 layers on three units.

    python benchmarks/bench_optimal.py optimal.json

Everything is by the model alone. A row is kept in the file as soon as it is known, so a command
that is stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

import amos
from amos.errors import AmosError
from amos.explore.genetic import GeneticSearch
from amos.explore.objective import Problem
from amos.explore.optimal import Optimal
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine

ACME = Path(__file__).parent / "acme"
#: Scores of a search, and how many it is told at a time.
SCORES, BATCH = 256, 64
#: Products of BERT-base at 128 tokens, and of its two products in attention.
PRODUCTS: dict[str, tuple[str, dict[str, int]]] = {
    "bert:projection": ("gemm", {"m": 128, "n": 768, "k": 768}),
    "bert:expansion": ("gemm", {"m": 128, "n": 3072, "k": 768}),
    "bert:contraction": ("gemm", {"m": 128, "n": 768, "k": 3072}),
    "bert:scores": ("bmm", {"b": 12, "m": 128, "n": 128, "k": 64}),
    "bert:values": ("bmm", {"b": 12, "m": 128, "n": 64, "k": 128}),
    "square": ("gemm", {"m": 1024, "n": 1024, "k": 1024}),
    "prime": ("gemm", {"m": 1021, "n": 1021, "k": 1021}),
}


@dataclass(frozen=True)
class Unit:
    """A unit on its machine."""

    intrinsic: Intrinsic
    machine: Machine


@dataclass(frozen=True)
class Row:
    """A layer on a unit.

    Attributes:
        least: what no schedule falls below, in seconds by the model.
        optimum: seconds of the best candidate that is known.
        proof_seconds: how long the proof took.
        searched: seconds of the best candidate of each genetic search.
    """

    layer: str
    machine: str
    least: float
    optimum: float
    proof_seconds: float
    searched: tuple[float, ...]

    @property
    def is_proven(self) -> bool:
        """Whether the optimum is one."""
        return self.optimum <= self.least

    @property
    def ratio(self) -> float:
        """Geometric mean of the searches over the least."""
        return geometric_mean(seconds / self.least for seconds in self.searched)


def units() -> dict[str, Unit]:
    """Return VTA, Gemmini and the unit of the documents, by the names of their machines."""
    acme = amos.intrinsics.load(ACME / "tile.toml")
    vta = amos.intrinsics.get("vta_gemm_m1n16k16_s8_s32")
    gemmini = amos.intrinsics.get("gemmini_matmul_m16n16k16_s8_s32")
    return {
        "vta_pynq": Unit(vta, amos.machines.get("vta_pynq")),
        "gemmini": Unit(gemmini, amos.machines.get("gemmini")),
        "acme_board": Unit(acme, amos.machines.get(str(ACME / "board.toml"), [acme])),
    }


def layers() -> Iterator[tuple[str, Operator]]:
    """Yield the layers of all tables, those of ResNet-18 at batch 8 too, and seven products."""
    for name in amos.operators.layers():
        yield name, amos.operators.resolve(name, dtype="s8")
    for name in amos.operators.layers("resnet18"):
        yield f"{name}x8", amos.operators.layer(name, dtype="s8", n=8)
    for name, (kind, extents) in PRODUCTS.items():
        yield name, amos.operators.get(kind, dtype="s8", **extents)


def compare(layer: str, operator: Operator, unit: Unit, seeds: int, limit_seconds: float) -> Row:
    """Prove the optimum and search for it.

    Raises:
        AmosError: nothing maps, or no schedule fits.
    """
    mappings = [*amos.enumerate_mappings(operator, unit.intrinsic)]
    if not mappings:
        raise AmosError("no mapping")
    start = time.process_time()
    generator = np.random.default_rng(0)
    proof = Optimal(Problem(mappings, unit.machine), generator, limit_seconds).certificate
    elapsed = time.process_time() - start
    assert proof is not None
    problem = Problem(mappings, unit.machine)
    searched = tuple(search(problem, seed) for seed in range(seeds))
    best = min(proof.value, *searched)
    return Row(layer, unit.machine.name, min(proof.least, best), best, elapsed, searched)


def search(problem: Problem, seed: int) -> float:
    """Return the best of a genetic search on the model."""
    run = GeneticSearch(problem, np.random.default_rng(seed))
    while len(run.results) < SCORES and (batch := run.ask(BATCH)):
        run.tell(list(zip(batch, problem.scores(batch).tolist(), strict=True)))
    return min(seconds for _, seconds in run.results)


def print_rows(rows: list[Row]) -> None:
    """Print ratios to the optimum of each unit, and the worst layers."""
    for machine in dict.fromkeys(row.machine for row in rows):
        own = [row for row in rows if row.machine == machine]
        ratios = [row.ratio for row in own]
        worst = sorted(own, key=lambda row: -row.ratio)[:3]
        proven = sum(row.is_proven for row in own)
        print(
            f"{machine:12} {len(own)} layers, {proven} proven: "
            f"{geometric_mean(ratios):.3f} of the optimum; worst "
            + ", ".join(f"{row.layer} {row.ratio:.3f}" for row in worst)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "results", type=Path, help="a JSON file, which a later command goes on with"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=55.0, help="seconds of a proof")
    operators, machines = dict(layers()), units()
    parser.add_argument(
        "--layer", action="append", choices=operators, metavar="LAYER", help="instead of all 60"
    )
    parser.add_argument("--machine", action="append", choices=machines, help="instead of all three")
    chosen = parser.parse_args()
    stored = json.loads(chosen.results.read_text()) if chosen.results.exists() else []
    rows = [_read(values) for values in stored]
    done = {(row.layer, row.machine) for row in rows}
    for layer in chosen.layer or operators:
        for name in chosen.machine or machines:
            if (layer, name) in done:
                continue
            try:
                row = compare(
                    layer, operators[layer], machines[name], chosen.seeds, chosen.time_limit
                )
            except AmosError as error:
                print(f"{layer} on {name}: {error}", flush=True)
                continue
            print(
                f"{layer} on {name}: {row.ratio:.3f}, proof {row.proof_seconds:.1f} s", flush=True
            )
            rows.append(row)
            chosen.results.write_text(json.dumps([asdict(x) for x in rows], indent=1) + "\n")
    print_rows(rows)


def _read(values: dict[str, Any]) -> Row:
    return Row(**{**values, "searched": tuple(values["searched"])})


if __name__ == "__main__":
    main()
