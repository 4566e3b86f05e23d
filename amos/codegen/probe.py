"""Small kernels that measure this CPU: intrinsic rate, bandwidths, launch cost.

They are written through the same tensor intrinsics as real kernels, so a rate is
what generated code can reach, not what a data sheet says.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from amos._toolchain import load_tvm
from amos.codegen.arrays import to_tensor
from amos.codegen.rate_probe import RateProgram, fed_program, register_program
from amos.codegen.target import host_target
from amos.intrinsics import Intrinsic

__all__ = ["probe_bandwidth", "probe_clock", "probe_fed", "probe_intrinsic", "probe_launch"]

#: Links of the chain that tells the clock: long enough that a start does not count.
_LINKS = 20_000
#: int32 elements summed or incremented in one unrolled step: eight 64-byte vectors.
_STEP = 128
_REPEAT = 15
#: Bytes that the timings of one bandwidth stream together; three are made at the least.
_STREAMED, _FEWEST = 2 << 30, 3
#: Latency of a multiplication and a xor.
_CHAIN_CYCLES = 4


def probe_intrinsic(intrinsic: Intrinsic, chains: int, cores: int = 1) -> float:
    """Seconds between two calls on one core while ``chains`` accumulators are in flight.

    Operands stay in registers. With one chain this is the latency of the
    intrinsic; with enough chains, the inverse of its throughput.
    """
    return _interval(register_program(intrinsic, chains, cores))


def probe_fed(intrinsic: Intrinsic, tile: tuple[int, int], cores: int = 1) -> float:
    """Seconds between two calls on one core that reads its sources from the nearest cache.

    Args:
        intrinsic: one with two sources.
        tile: fragments of the first and of the second in the register tile.
        cores: how many work at once.
    """
    return _interval(fed_program(intrinsic, tile, cores))


def _interval(program: RateProgram) -> float:
    return _seconds(program.module, program.tensors) / program.calls


def probe_bandwidth(size: int, cores: int, *, write: bool) -> float:
    """Bytes per second that each of ``cores`` cores streams through ``size`` bytes.

    Reading sums the buffer; writing increments it in place.
    """
    load_tvm()
    from tvm import s_tir, te

    chunks = max(1, size // (4 * _STEP))
    passes = max(1, min(1000, (64 << 20) // size))
    step = te.reduce_axis((0, passes), name="step")
    given = te.placeholder((cores, chunks, _STEP), "int32", name="given")
    if write:
        seed = te.placeholder((cores, _STEP), "int32", name="seed")
        out = te.compute(
            (cores, chunks, _STEP), lambda c, k, x: te.sum(seed[c, x], axis=[step]), name="main"
        )
        arguments, arrays = [seed, out], [(cores, _STEP), (cores, chunks, _STEP)]
    else:
        chunk = te.reduce_axis((0, chunks), name="chunk")
        out = te.compute(
            (cores, _STEP), lambda c, x: te.sum(given[c, chunk, x], axis=[step, chunk]), name="main"
        )
        arguments, arrays = [given, out], [(cores, chunks, _STEP), (cores, _STEP)]
    sch = s_tir.Schedule(te.create_prim_func(arguments))
    main = sch.get_sblock("main")
    loops = sch.get_loops(main)
    if write:
        core, middle, lane, passing = loops
    else:
        core, lane, passing, middle = loops
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
    tensors = [to_tensor(np.ones(shape, "int32"), "int32") for shape in arrays]
    return streamed / _seconds(sch.mod, tensors, timings(streamed))


def timings(streamed: int) -> int:
    """How often a kernel that streams so many bytes is timed: less often if that takes long."""
    return max(_FEWEST, min(_REPEAT, _STREAMED // streamed))


def probe_clock() -> float:
    """Cycles per second, from a chain of dependent integer multiplications and xors.

    A multiplication takes three cycles and a xor one on every current x86 and
    64-bit ARM core, and the pair cannot be reassociated or vectorized.
    """
    load_tvm()
    from tvm import s_tir, te, tirx

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
    """Seconds to start and join one parallel region that does next to nothing."""
    load_tvm()
    from tvm import s_tir, te

    given = te.placeholder((cores,), "int32", name="given")
    out = te.compute((cores,), lambda c: given[c] + 1, name="main")
    sch = s_tir.Schedule(te.create_prim_func([given, out]))
    sch.parallel(sch.get_loops(sch.get_sblock("main"))[0])
    return _seconds(sch.mod, [to_tensor(np.zeros(cores, "int32"), "int32") for _ in range(2)])


def _seconds(module: Any, tensors: list[Any], repeat: int = _REPEAT) -> float:
    """Best of a few timings: a probe asks what the machine can do, not what it did."""
    load_tvm()
    import tvm

    library = tvm.compile(module, target=host_target())
    timer = library.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=repeat, min_repeat_ms=2)
    times = [float(t) for t in timer(*tensors).results]
    return min(times) if min(times) > 0 else statistics.median(times)
