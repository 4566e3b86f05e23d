"""Small kernels that measure this CPU: intrinsic rate, bandwidths, launch cost.

They are written through the same tensor intrinsics as real kernels, so a rate is
what generated code can reach, not what a data sheet says.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from amos._toolchain import load_tvm
from amos.codegen.amx import ask_for_tiles
from amos.codegen.amx_probe import MOST_CHAINS, tile_chains
from amos.codegen.arrays import decoded, held, to_tensor
from amos.codegen.target import host_target
from amos.codegen.tensor_intrin import implementation, partial, register_tensor_intrin
from amos.intrinsics import Intrinsic
from amos.ir import dtype
from amos.mapping.strided import loads_rows
from amos.perfmodel.host import cpu

__all__ = ["probe_bandwidth", "probe_clock", "probe_intrinsic", "probe_launch"]

#: Calls in one chain: long enough that starting a region does not count.
_CALLS = 20_000
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
    load_tvm()
    from tvm import s_tir, te

    kind = implementation(intrinsic, cpu().features)
    if kind == "native" and loads_rows(intrinsic):
        return _probe_tiles(intrinsic, min(chains, MOST_CHAINS), cores)
    sources = [
        te.placeholder(load.tensor.shape, held(str(load.tensor.dtype)), name=load.tensor.name)
        for load in intrinsic.sources
    ]
    dst, parts = intrinsic.destination, partial(intrinsic, kind)
    lanes = {
        it.name: te.reduce_axis((0, it.extent // parts), name=it.name)
        for it in intrinsic.iterations
        if it.is_reduce
    }
    steps = te.reduce_axis((0, _CALLS), name="step")

    def body(*position: Any) -> Any:
        at = lanes | {
            index.names[0]: where for index, where in zip(dst.indices, position[2:], strict=False)
        }
        if parts > 1:
            ((name, low),) = lanes.items()
            at[name] = position[-1] * int(low.dom.extent) + low
        product: Any = None
        for load, buffer in zip(intrinsic.sources, sources, strict=True):
            element = buffer[tuple(at[i.names[0]] for i in load.indices)]
            value = decoded(element, str(load.tensor.dtype), str(dst.tensor.dtype))
            product = value if product is None else product * value
        return te.sum(product, axis=[steps, *lanes.values()])

    held_parts = (parts,) if parts > 1 else ()
    shape = (cores, chains, *dst.tensor.shape, *held_parts)
    sch = s_tir.Schedule(te.create_prim_func([*sources, te.compute(shape, body, name="main")]))
    main = sch.get_sblock("main")
    write = sch.cache_write(main, 0, "global")
    loops = sch.get_loops(main)
    core, chain, step = loops[0], loops[1], loops[len(shape)]
    order = {index.names[0]: loops[2 + n] for n, index in enumerate(dst.indices)}
    order |= dict(zip(lanes, loops[1 + len(shape) :], strict=True))
    inner = [order[it.name] for it in intrinsic.iterations]
    if parts > 1:
        inner.insert(-1, loops[len(shape) - 1])
    sch.reorder(core, step, chain, *inner)
    sch.parallel(core)
    sch.unroll(chain)
    sch.reverse_compute_at(write, core)
    sch.decompose_reduction(main, step)
    sch.tensorize(inner[0], register_tensor_intrin(intrinsic, kind))
    kinds = intrinsic.dtypes
    data = [
        np.ones(x.tensor.shape, dtype(k).numpy)
        for x, k in zip(intrinsic.sources, kinds, strict=False)
    ]
    data.append(np.zeros(shape, dtype(kinds[-1]).numpy))
    tensors = [to_tensor(a, k) for a, k in zip(data, kinds, strict=True)]
    return _seconds(sch.mod, tensors) / (_CALLS * chains)


def _probe_tiles(intrinsic: Intrinsic, chains: int, cores: int) -> float:
    ask_for_tiles()
    made = tile_chains(intrinsic, _CALLS, chains, cores)
    out = to_tensor(np.zeros((cores, chains, 16, 16), intrinsic.dtypes[-1]), intrinsic.dtypes[-1])
    return _seconds(made, [out]) / (_CALLS * chains)


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
    step = te.reduce_axis((0, _CALLS), name="step")
    chain = te.comm_reducer(
        lambda x, y: (x * y) ^ seed[0], lambda kind: tirx.const(1, kind), name="chain"
    )
    out = te.compute((1,), lambda i: chain(seed[i], axis=step), name="main")
    module = s_tir.Schedule(te.create_prim_func([seed, out])).mod
    arrays = [np.array([0x9E3779B97F4A7C1], "int64"), np.zeros(1, "int64")]
    return _CHAIN_CYCLES * _CALLS / _seconds(module, arrays)


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
