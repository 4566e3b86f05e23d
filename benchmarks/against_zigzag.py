"""AMOS beside ZigZag: time, energy and accesses of layers on a described unit.

    pip install zigzag-dse six                    # into an environment of its own
    python benchmarks/against_zigzag.py --zigzag VENV/bin/python \\
        --intrinsic tile.toml --machine board.toml

`same loops` gives ZigZag the loops of AMOS's optimum with tiles that divide their loops, and
buffers of just these tiles: both then count the same accesses. `own loops` lets each choose
its loops; ZigZag unrolls columns and sums as the unit does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from contenders.dataflow import (
    Array,
    describe_hardware,
    describe_layer,
    describe_mapping,
    describe_stream,
)

import amos
from amos.explore import SearchOptions
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.machine import Machine
from amos.streams.plan import StreamPlan

WORKER = Path(__file__).parent / "contenders" / "zigzag_layers.py"
#: ZigZag's names of objectives.
OPTIMIZE = {"time": "latency", "energy": "energy", "edp": "EDP"}
#: Candidates that are simulated.
TRIALS = 16
LAYERS = tuple(f"resnet18:C{number}" for number in range(1, 12))


@dataclass(frozen=True)
class Figures:
    """Figures of a layer by one tool: cycles, picojoules, and bytes by level and operand."""

    cycles: float
    picojoules: float
    accesses: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A layer by both tools; ``zigzag`` is missing where that refuses.

    Attributes:
        peak_cycles: if every multiplier had a product in every cycle.
    """

    layer: str
    loops: str
    peak_cycles: float
    amos: Figures
    zigzag: Figures | None = None
    reason: str = ""


def search(
    operator: Operator, unit: Intrinsic, machine: Machine, objective: str, tiling: Any
) -> Any:
    """Return the best by simulation of the candidates next to AMOS's proven optimum."""
    options = SearchOptions(objective=objective, tiling=tiling)
    return amos.explore(
        operator,
        unit,
        machine=machine,
        method="optimal",
        trials=TRIALS,
        search=options,
        progress=False,
    )


def figures_of(result: Any, plan: StreamPlan, array: Array) -> Figures:
    """Read AMOS's figures; cycles are simulated."""
    prediction, accesses = result.prediction, defaultdict[str, float](float)
    operands = plan.tiles.operands
    names = {op.staged.load.tensor.name: array.names[op.name] for op in operands}
    for row in prediction.energy:
        operand = names.get(row.operand, "")
        accesses[f"{row.level} {operand}".strip()] += row.read_bytes + row.written_bytes
    accesses.pop("operations")
    seconds, joules = result.best.seconds, prediction.energy_joules
    assert joules is not None
    return Figures(seconds * plan.machine.clock, joules * 1e12, dict(accesses))


def zigzag_figures(result: dict[str, Any]) -> Figures:
    """Read ZigZag's figures."""
    accesses = {
        f"{row['level']} {row['operand']}": row["read_bytes"] + row["written_bytes"]
        for row in result["levels"]
    }
    return Figures(result["cycles"], result["picojoules"], accesses)


def run_zigzag(python: str, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evaluate jobs in ZigZag's environment."""
    done = subprocess.run(
        [python, str(WORKER)], input=json.dumps(jobs), capture_output=True, text=True, check=True
    )
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def has_zigzag(python: str) -> bool:
    """Whether an interpreter has ZigZag."""
    try:
        return subprocess.run([python, "-c", "import zigzag"], capture_output=True).returncode == 0
    except OSError:
        return False


def compare(
    layers: list[str],
    unit: Intrinsic,
    machine: Machine,
    python: str,
    objective: str,
    example: str | None = None,
) -> list[Row]:
    """Compare layers, with the same loops and with those that each chooses."""
    array, jobs, rows = Array.of(unit, machine), [], []
    for layer in layers:
        operator = amos.operators.resolve(layer, dtype=unit.dtypes)
        for loops, tiling in (("same", "divisors"), ("own", "hardware")):
            result = search(operator, unit, machine, objective, tiling)
            candidate = result.best.candidate
            plan = StreamPlan.of(candidate.mapping, candidate.schedule, machine)
            peak = operator.operations / unit.operations * unit.extents[array.rows]
            rows.append(Row(layer, loops, peak, figures_of(result, plan, array)))
            if loops == "same":
                stream = describe_stream(plan, array)
                described = {"layer": stream.layer, "mapping": stream.mapping}
                sizes = stream.sizes
            else:
                described = {"layer": describe_layer(operator, array)}
                described["mapping"] = describe_mapping(array, "K", "C")
                sizes = None
            hardware = (
                {"example": example}
                if example
                else {"hardware": describe_hardware(array, machine, sizes)}
            )
            jobs.append(described | hardware | {"optimize": OPTIMIZE[objective]})
            print(f"AMOS: {layer}, {loops} loops", file=sys.stderr, flush=True)
    if not has_zigzag(python):
        print(f"ZigZag: skipped, {python} has no zigzag-dse", file=sys.stderr)
        return rows
    return [
        replace(row, reason=result["error"])
        if "error" in result
        else replace(row, zigzag=zigzag_figures(result))
        for row, result in zip(rows, run_zigzag(python, jobs), strict=True)
    ]


def print_rows(rows: list[Row]) -> None:
    """Print AMOS's figures, and what they have of ZigZag's."""
    for loops in ("same", "own"):
        chosen = [row for row in rows if row.loops == loops]
        print(f"\n{loops} loops: cycles and microjoules by AMOS; AMOS over ZigZag")
        for row in chosen:
            print(
                f"{row.layer:14} {row.amos.cycles:12,.0f} {row.amos.picojoules / 1e6:9.2f}", end=""
            )
            print("", *ratios(row), row.reason)
        pairs = [(row.amos, row.zigzag) for row in chosen if row.zigzag is not None]
        if pairs:
            cycles = geometric_mean(a.cycles / b.cycles for a, b in pairs)
            energy = geometric_mean(a.picojoules / b.picojoules for a, b in pairs)
            print(f"geometric mean: cycles {cycles:.3f}, energy {energy:.3f}")


def ratios(row: Row) -> list[str]:
    """Ratios of a layer in words: cycles, energy, bytes of each operand at each level."""
    if row.zigzag is None:
        return []
    own, rival = row.amos, row.zigzag
    texts = [f"of peak {row.peak_cycles / x.cycles:.3f}" for x in (own, rival)]
    texts += [f"cycles {own.cycles / rival.cycles:.3f}"]
    texts += [f"energy {own.picojoules / rival.picojoules:.3f}"]
    for name, size in rival.accesses.items():
        level, _, operand = name.rpartition(" ")
        for own_name, own_size in own.accesses.items():
            # ZigZag's examples name a memory with its size.
            own_level, _, own_operand = own_name.rpartition(" ")
            if size and own_operand == operand and level.lower().startswith(own_level.lower()):
                texts.append(f"{own_name} {own_size / size:.3f}")
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zigzag", default="python", help="interpreter that has zigzag-dse")
    parser.add_argument("--intrinsic", required=True, help="a matrix unit: a name or a TOML file")
    parser.add_argument("--machine", required=True, help="a name or a TOML file, with energies")
    parser.add_argument("--objective", default="energy", choices=[*OPTIMIZE])
    parser.add_argument("--example", help="hardware of ZigZag's own that the files describe")
    parser.add_argument("--layer", action="append", help="instead of C1 to C11 of ResNet-18")
    parser.add_argument("--json", type=Path, help="write all figures here")
    chosen = parser.parse_args()
    if chosen.intrinsic.endswith(".toml"):
        unit = amos.intrinsics.load(Path(chosen.intrinsic))
    else:
        unit = amos.intrinsics.get(chosen.intrinsic)
    machine = amos.machines.get(chosen.machine, [unit])
    layers, python = list(chosen.layer or LAYERS), chosen.zigzag
    rows = compare(layers, unit, machine, python, chosen.objective, chosen.example)
    print_rows(rows)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
