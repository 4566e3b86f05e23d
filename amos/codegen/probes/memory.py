"""Small kernels that measure this CPU: intrinsic rate, bandwidths, launch cost.

They use the same tensor intrinsics as real kernels, so a rate is what generated code can reach, not
what a data sheet says.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from amos._toolchain import s_tir, te, tirx, tvm
from amos.codegen.probes.rates import cache_program, least_interval, tiles
from amos.codegen.tir.arrays import to_tensor
from amos.codegen.tir.target import host_target
from amos.errors import MeasureError
from amos.intrinsics import Intrinsic

#: Links of the chain that measures the clock: enough to make the start negligible.
_LINKS = 20_000
#: int32 elements summed or incremented in one unrolled step: eight 64-byte vectors.
_STEP = 128
_REPEAT = 15
#: Bytes that the timings of one bandwidth stream together; three are made at the least.
_STREAMED, _FEWEST = 2 << 30, 3
#: Libraries by their programs: a probe is repeated, and compiling takes most of its time.
_compiled: dict[str, Any] = {}
#: Latency of a multiplication and a xor.
_CHAIN_CYCLES = 4


def probe_rates(intrinsic: Intrinsic, kind: str, cores: int) -> dict[str, float]:
    """Measure the seconds between two calls on one core with sources in the nearest cache.

    Args:
        kind: its implementation, ``"native"`` or ``"generic"``.
        cores: how many work at once.

    Returns:
        ``latency`` of a call that waits for the last; ``interval`` of calls that do not. No
        call waits for one that accumulates nothing.
    """
    single = (1,) * len(intrinsic.sources)
    # Cores share no execution units; alone, a core is disturbed less.
    rates = [
        min(_interval(intrinsic, kind, tile, busy) for busy in {1, cores})
        for tile in tiles(intrinsic, kind)
    ]
    # A generic implementation is compiled differently in every kernel.
    typical = min if kind == "native" else max
    interval = typical(rates)
    waits = intrinsic.compute.accumulates
    latency = _interval(intrinsic, kind, single, 1) if waits else interval
    return {"latency": latency, "interval": interval}


def _interval(intrinsic: Intrinsic, kind: str, tile: tuple[int, ...], cores: int) -> float:
    program = cache_program(intrinsic, kind, tile, cores)
    return _seconds(program.module, program.tensors) / program.calls


def check_rates(intrinsic: Intrinsic, kind: str, rates: dict[str, float], clock: float) -> None:
    """Refuse rates that no core of this CPU can reach.

    Args:
        clock: cycles a second.

    Raises:
        MeasureError: a rate is one of them; the program was not what ran.
    """
    if is_reachable(intrinsic, kind, rates, clock):
        return
    least, name = least_interval(intrinsic, kind, clock), min(rates, key=lambda x: rates[x])
    raise MeasureError(
        f"{intrinsic.name}, {kind}: {name} measured as {rates[name] * 1e9:.3g} ns, expected at "
        f"least {least * 1e9:.3g} ns at {clock / 1e9:.2f} GHz; nothing was kept"
    )


def is_reachable(intrinsic: Intrinsic, kind: str, rates: dict[str, float], clock: float) -> bool:
    """Return whether a core could have these rates; arguments as of :func:`check_rates`."""
    return min(rates.values()) >= least_interval(intrinsic, kind, clock)


def probe_bandwidth(size: int, cores: int, *, write: bool) -> float:
    """Measure bytes per second of each core that sums, or increments in place, ``size`` bytes."""
    chunks = max(1, size // (4 * _STEP))
    passes = max(1, min(1000, (64 << 20) // size))
    line, buffer = (cores, _STEP), (cores, chunks, _STEP)
    shapes = [line, buffer] if write else [buffer, line]
    source = te.placeholder(shapes[0], "int32", name="given")
    step = te.reduce_axis((0, passes), name="step")
    if write:
        out = te.compute(buffer, lambda c, k, x: te.sum(source[c, x], axis=[step]), name="main")
    else:
        chunk = te.reduce_axis((0, chunks), name="chunk")
        out = te.compute(
            line, lambda c, x: te.sum(source[c, chunk, x], axis=[step, chunk]), name="main"
        )
    sch = s_tir.Schedule(te.create_prim_func([source, out]))
    main = sch.get_sblock("main")
    core, *loops = sch.get_loops(main)
    middle, lane, passing = loops if write else (loops[2], loops[0], loops[1])
    local = None if write else sch.cache_write(main, 0, "global")
    sch.reorder(core, passing, middle, lane)
    sch.parallel(core)
    if local is not None:
        sch.reverse_compute_at(local, core)
    vectors, vector = sch.split(lane, [None, 16])
    sch.unroll(vectors)
    sch.vectorize(vector)
    # Last: once the initialization is split off, the block is no longer a reduction.
    sch.decompose_reduction(main, passing)
    streamed = passes * chunks * _STEP * 4
    tensors = [to_tensor(np.ones(shape, "int32"), "int32") for shape in shapes]
    return streamed / _seconds(sch.mod, tensors, timings(streamed))


def timings(streamed: int) -> int:
    """Return how often to time a kernel that streams ``streamed`` bytes: less often if slow."""
    return max(_FEWEST, min(_REPEAT, _STREAMED // streamed))


def probe_clock() -> float:
    """Measure the cycles per second by a chain of dependent integer multiplications and xors.

    A multiplication takes three cycles and a xor one on every current x86 and
    64-bit ARM core, and the pair cannot be reassociated or vectorized.
    """
    seed = te.placeholder((1,), "int64", name="seed")
    step = te.reduce_axis((0, _LINKS), name="step")
    chain = te.comm_reducer(
        lambda x, y: (x * y) ^ seed[0], lambda kind: tirx.const(1, kind), name="chain"
    )
    out = te.compute((1,), lambda i: chain(seed[i], axis=step), name="main")
    module = s_tir.Schedule(te.create_prim_func([seed, out])).mod
    arrays = [np.array([0x9E3779B97F4A7C1], "int64"), np.zeros(1, "int64")]
    return _CHAIN_CYCLES * _LINKS / _seconds(module, arrays)


def probe_launch(cores: int) -> float:
    """Measure the seconds to start and join one parallel region that does next to nothing."""
    counts = te.placeholder((cores,), "int32", name="given")
    out = te.compute((cores,), lambda c: counts[c] + 1, name="main")
    sch = s_tir.Schedule(te.create_prim_func([counts, out]))
    sch.parallel(sch.get_loops(sch.get_sblock("main"))[0])
    return _seconds(sch.mod, [to_tensor(np.zeros(cores, "int32"), "int32") for _ in range(2)])


def _seconds(module: Any, tensors: list[Any], repeat: int = _REPEAT) -> float:
    """Return the best of a few timings: a probe asks for the capability of the machine."""
    text = module.script()
    if text not in _compiled:
        _compiled[text] = tvm.compile(module, target=host_target())
    timer = _compiled[text].mod.time_evaluator(
        "main", tvm.cpu(), number=1, repeat=repeat, min_repeat_ms=2
    )
    times = [float(t) for t in timer(*tensors).results]
    return min(times) if min(times) > 0 else statistics.median(times)
