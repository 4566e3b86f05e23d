"""AMOS: explored with a number of trials, over all mappings or with one fixed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import amos
from amos.explore.contenders import select_intrinsics
from amos.ir import Operator, aligned, dtype
from amos.plan import Candidate, Schedule
from amos.schedule import ScheduleSpace
from contenders.workloads import Workload

#: What the mappings of Table 6 are held to.
INTRINSIC = "vnni_dpbusd_m16k4_u8_s8_s32"
SEED = 0


def fixed_mapping(op: Operator, contender: str) -> tuple[str, ...]:
    """Name of the mapping that a contender is held to; none if it may choose.

    AMOS, section 7.6: fixM1 sends all of c, r, s to the reduction of the unit
    (im2col), fixM2 only c (fuse_hw). The spatial dimension of VNNI is its 16 lanes,
    which hold output channels in both.
    """
    if not contender.startswith("fix"):
        return ()
    wanted = {"c", "r", "s"} if contender == "fixM1" else {"c"}
    space = amos.enumerate_mappings(op, amos.intrinsics.get(INTRINSIC), commute=True)
    for mapping in space:
        groups = mapping.groups
        if set(groups["i1"]) == {"k"} and set(groups["r1"]) == wanted:
            return (mapping.name,)
    raise LookupError(f"{op.name} has no mapping like {contender}'s")


def instructions(contender: str) -> str | list[str]:
    """What a contender may use: all that this CPU has, AMX if it is asked for."""
    if contender.startswith("fix"):
        return INTRINSIC
    units = select_intrinsics(None, "host")
    return [unit.name for unit in units if contender == "amos-amx" or unit.family != "amx"]


def tune(work: Workload, contender: str, trials: int, folder: Path) -> dict[str, Any]:
    """Explore; trials that fewer trials have measured before are taken from the record.

    Where a workload has several stages they share the trials.
    """
    start = time.monotonic()
    share = max(1, trials // len(work.stages))
    made = [_tuned(op, contender, share, folder) for op in work.stages]
    seconds = time.monotonic() - start
    return {"seconds": seconds, **made[-1]} | ({"before": made[:-1]} if made[:-1] else {})


def _tuned(op: Operator, contender: str, trials: int, folder: Path) -> dict[str, Any]:
    """The best candidate that so many trials find for one operator."""
    result = amos.explore(
        op,
        instructions(contender),
        trials=trials,
        seed=SEED,
        search=amos.SearchOptions(commute=True, only=fixed_mapping(op, contender)),
        records=folder / "amos.db",
    )
    best = result.best
    return {
        "replayed": result.replayed,
        "intrinsic": result.intrinsic.name,
        "mapping": best.mapping.name,
        "schedule": best.schedule.as_dict(),
        "tried": len(result.trials),
        "failed": result.failures,
    }


def load(
    work: Workload, tuned: dict[str, Any], inputs: dict[str, np.ndarray], expected: np.ndarray
) -> dict[str, Callable[[int], float]]:
    """Build and check; what is timed by name: seconds of so many runs, each on its own.

    Raises:
        ValueError: the kernels compute something else.
    """
    known = dict(work.staged_inputs(inputs))
    calls, timers = [], []
    for op, found in zip(work.stages, [*tuned.get("before", ()), tuned], strict=True):
        call, timer, out = _loaded(op, found, known)
        calls.append(call)
        timers.append(timer)
        known[op.output.tensor.name] = out
    for once in calls:
        once()
    # Sums of floats depend on their order.
    slack = 1e-5 * np.abs(expected).max() if out.dtype.kind == "f" else 0
    if not np.allclose(out, expected, rtol=0, atol=slack):
        raise ValueError("differs from NumPy")

    def bare(runs: int) -> float:
        return sum(timer(runs) for timer in timers)

    def call_all(runs: int) -> float:
        start = time.perf_counter()
        for _ in range(runs):
            for once in calls:
                once()
        return (time.perf_counter() - start) / runs

    return {"kernel": bare, "call": call_all}


def _loaded(
    op: Operator, tuned: dict[str, Any], known: dict[str, np.ndarray]
) -> tuple[Callable[[], Any], Callable[[int], float], np.ndarray]:
    """A kernel's call, its seconds of so many runs without the call, and its output."""
    import tvm

    unit = amos.intrinsics.get(tuned.get("intrinsic", INTRINSIC))
    # The widest rule holds what an exploration may have found under any other.
    space = amos.enumerate_mappings(op, unit, rule="gather", commute=True)
    mapping = space.find(tuned["mapping"])
    schedule = ScheduleSpace(mapping).check(Schedule.of(tuned["schedule"]))
    kernel = amos.build(Candidate(mapping, schedule))
    names = [tensor.name for tensor in mapping.operator.inputs]
    kernel.pack(**{name: known[name] for name in op.constants})
    rest = {name: known[name] for name in names if name not in op.constants}
    out = aligned(op.output.tensor.shape, dtype(op.output.tensor.dtype).numpy)
    out[...] = -1
    arguments = kernel.prepare(rest, out)
    timer = kernel._library.mod.time_evaluator

    def seconds(runs: int) -> float:
        return float(timer("main", tvm.cpu(), number=runs)(*arguments).mean)

    return lambda: kernel(**rest, out=out), seconds, out
