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
from amos.codegen.probes.rates import RateProgram, cache_program, register_program, tiles
from amos.codegen.tir.target import host_target
from amos.codegen.tir.tensor_intrin import implementation
from amos.machine.cpu import cpu
from contenders.workloads import Workload, chosen_dtype

__all__ = ["load"]

#: Accumulators in flight that are tried, and timings from which the best program is chosen.
CHAINS, TRIED = (12, 16, 24), 7

AMX = "amx_tdpbusd_m16n16k64_u8_s8_s32"
#: Instructions by dtype, the fastest first; of the last ones every CPU has what it needs.
VNNI = ("vnni_dpbusd_m16k4_u8_s8_s32", "avxvnni_dpbusd_m8k4_u8_s8_s32")
AVX2 = "avx2_pmaddwd_m8k2_u8_s8_s32"
ORDER = {
    "u8s8": (*VNNI, AVX2),
    "u8s7": (*VNNI, "avx2_pmaddubsw_m8k4_u8_s7_s32", AVX2),
    "f32": ("avx512_fmadd_m16_f32_f32", "avx2_fmadd_m8_f32_f32"),
}

Timed = Callable[[int], float]


def load(work: Workload, contender: str) -> dict[str, Timed]:
    """How to time the instruction alone: on registers, and fed from the nearest cache."""
    found = _fastest(AMX if contender.endswith("-amx") else _best())

    def scaled(seconds: Timed) -> Timed:
        return lambda runs: work.operations * seconds(1)

    return {name: scaled(seconds) for name, seconds in found.items()}


def _best() -> str:
    """The fastest instruction of this CPU for the workloads' dtypes, AMX aside."""
    order, features = ORDER[chosen_dtype()], cpu().features
    native = (n for n in order if implementation(amos.intrinsics.get(n), features) == "native")
    return next(native, order[-1])


@cache
def _fastest(name: str) -> dict[str, Timed]:
    """Of each kind the program that runs fastest: seconds for each operation."""
    unit, cores = amos.intrinsics.get(name), len(os.sched_getaffinity(0))
    how = implementation(unit, cpu().features)
    kinds = {"fed": [cache_program(unit, how, tile, cores) for tile in tiles(unit, how)]}
    if name in (AMX, *VNNI):
        # Of several instructions, compilers take those on sources alone out of the loop.
        kinds["registers"] = [register_program(unit, how, chains, cores) for chains in CHAINS]
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
