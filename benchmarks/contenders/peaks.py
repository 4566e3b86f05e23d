"""What this machine can do at most, timed in turns with the others as a contender.

A CPU has another clock in every second, by what runs on it and around it, so a share of a
peak means something only if both were measured together. Times are those in which the
machine, at that rate, would make a workload's operations.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import amos
from amos.codegen.probes.rates import RateProgram, fed_program, register_program, tiles
from amos.codegen.tir.target import host_target
from amos.codegen.tir.tensor_intrin import implementation
from amos.machine.cpu import cpu
from contenders import amos_
from contenders.workloads import Workload

__all__ = ["load"]

#: Accumulators in flight that are tried, and timings from which the best program is chosen.
CHAINS, TRIED = (12, 16, 24), 7

Timed = Callable[[int], float]


def load(work: Workload, contender: str) -> dict[str, Timed]:
    """How to time the instruction alone: on registers, and fed from the nearest cache."""
    unit = amos_.AMX if contender.endswith("-amx") else amos_.INTRINSIC
    found = _fastest(unit)

    def scaled(seconds: Timed) -> Timed:
        return lambda runs: work.operations * seconds(1)

    return {name: scaled(seconds) for name, seconds in found.items()}


@cache
def _fastest(name: str) -> dict[str, Timed]:
    """Of each kind the program that runs fastest: seconds for each operation."""
    unit, cores = amos.intrinsics.get(name), len(os.sched_getaffinity(0))
    how = implementation(unit, cpu().features)
    kinds = {
        "registers": [register_program(unit, how, chains, cores) for chains in CHAINS],
        "fed": [fed_program(unit, how, tile, cores) for tile in tiles(unit, how)],
    }
    made = {}
    for kind, programs in kinds.items():
        timed = [_timed(program, unit.operations * cores) for program in programs]
        best = [min(each(1) for _ in range(TRIED)) for each in timed]
        made[kind] = timed[best.index(min(best))]
    return made


def _timed(program: RateProgram, operations: int) -> Timed:
    import tvm

    library = tvm.compile(program.module, target=host_target())
    timer = library.mod.time_evaluator("main", tvm.cpu(), number=1)

    def seconds(runs: int) -> float:
        """A run takes milliseconds, so that one is enough."""
        return float(timer(*program.tensors).mean) / (operations * program.calls)

    return seconds
