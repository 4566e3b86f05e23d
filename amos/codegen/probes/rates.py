"""Programs that run an intrinsic as fast as this CPU can, from a cache or from registers.

What tells the rate of an intrinsic is a kernel's innermost loop and nothing else: a
register tile of accumulators, and random sources that stay in the nearest cache. Every
step has sources of its own. Without that a compiler takes what depends on sources alone,
often the product itself, out of the loop, and what is left to time is an addition.

With operands in registers single instructions show what the units can do. No kernel has
that rate: sources must be loaded, which takes issue slots, and many CPUs lower their clock
the more of their units are busy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from amos._toolchain import load_tvm
from amos.codegen.amx.probe import MOST_CHAINS, fed_tiles, tile_chains
from amos.codegen.amx.tiles import ask_for_tiles
from amos.codegen.tir.arrays import decoded, held, to_tensor
from amos.codegen.tir.tensor_intrin import register_tensor_intrin
from amos.intrinsics import Intrinsic
from amos.ir import aligned, dtype
from amos.machine.cpu import cpu
from amos.plan.cpu_plan import partial_sums

__all__ = ["RateProgram", "fed_program", "least_interval", "register_program", "tiles"]

#: Calls on each core in one run: long enough that starting a region does not count.
_CALLS = 1 << 18
#: Operations after which the loops that stand for an instruction have run long enough.
_OPERATIONS = 1 << 21
#: Bytes of the sources, which fit the nearest cache of every CPU with room to spare.
_BYTES = 1 << 14
#: Bits of the widest vectors that a CPU multiplies, by a feature that tells, and without any.
_WIDTHS, _LEAST_WIDTH = {"avx512f": 512, "sve": 2048, "avx2": 256}, 128
#: Vector instructions that any CPU starts in a cycle; of multiplications most start two.
_ISSUE = 4
#: Register tiles to try where there are 32 registers, and where there are fewer, as
#: fragments of the smaller source and of the larger one.
_MANY, _TILES, _FEW = 32, ((14, 2), (8, 3)), ((6, 2), (4, 3))
#: Register tiles of loops that stand for an instruction, where compilers write them out;
#: longer loops have accumulators enough of their own.
_EMULATED, _WRITTEN_OUT = ((6, 4), (4, 3)), 1 << 14


@dataclass(frozen=True)
class RateProgram:
    """A program to be timed.

    Attributes:
        module: its only function is ``main``.
        tensors: the arguments.
        calls: how many calls of the intrinsic each core makes in one run.
    """

    module: Any
    tensors: list[Any]
    calls: int


def tiles(intrinsic: Intrinsic, kind: str) -> tuple[tuple[int, ...], ...]:
    """Register tiles, one of which should feed the intrinsic as fast as any.

    Args:
        intrinsic: the intrinsic.
        kind: its implementation, ``"native"`` or ``"generic"``.
    """
    if _numbered(intrinsic, kind):
        return ((2, 2),)
    if kind == "native":
        found: tuple[tuple[int, int], ...] = _TILES if intrinsic.registers >= _MANY else _FEW
    else:
        found = tuple(t for t in _EMULATED if prod(t) * intrinsic.operations <= _WRITTEN_OUT)
        found = found or ((1, 1),)
    sizes = [prod(load.tensor.shape) for load in intrinsic.sources]
    if len(sizes) != 2:
        # Only accumulators are many: one source of each has another fragment.
        return tuple((m * n, *[1] * (len(sizes) - 1)) for m, n in found)
    return found if sizes[0] <= sizes[1] else tuple((n, m) for m, n in found)


def least_interval(intrinsic: Intrinsic, kind: str, clock: float) -> float:
    """Seconds between two calls that no core of this CPU can go below.

    A native call is one instruction at least. Vector units multiply a register of elements
    of the sources in one instruction, and a tile register row by row.

    Args:
        intrinsic: the intrinsic.
        kind: its implementation, ``"native"`` or ``"generic"``.
        clock: cycles a second.
    """
    if _numbered(intrinsic, kind):
        return intrinsic.sources[0].tensor.shape[0] / clock
    features = cpu().features
    width = next((bits for name, bits in _WIDTHS.items() if name in features), _LEAST_WIDTH)
    bits = min(dtype(name).bits for name in intrinsic.staged_dtypes[:-1])
    products = prod(iteration.extent for iteration in intrinsic.iterations)
    instructions = max(float(kind == "native"), products * bits / width)
    return instructions / (_ISSUE * clock)


def register_program(intrinsic: Intrinsic, kind: str, chains: int, cores: int) -> RateProgram:
    """Each core calls the intrinsic on operands in registers, the same in every call.

    Args:
        intrinsic: one that is a single instruction.
        kind: its implementation, ``"native"`` or ``"generic"``.
        chains: accumulators that take turns; with one, a call waits for the last.
        cores: how many work at once.
    """
    numbered = _numbered(intrinsic, kind)
    tile = (min(chains, MOST_CHAINS) if numbered else chains, *[1] * (len(intrinsic.sources) - 1))
    repeat = max(1, _count(intrinsic, kind) // prod(tile))
    if numbered:
        module = tile_chains(intrinsic, repeat, tile[0], cores)
    else:
        module = _scheduled(intrinsic, kind, tile, None, repeat, cores)
    around = (1, 1) if numbered else ()
    shapes = [(*around, *load.tensor.shape) for load in intrinsic.sources]
    return RateProgram(
        module, _arguments(intrinsic, kind, shapes, tile, cores), prod(tile) * repeat
    )


def fed_program(intrinsic: Intrinsic, kind: str, tile: tuple[int, ...], cores: int) -> RateProgram:
    """Each core calls the intrinsic on sources from its nearest cache.

    Args:
        intrinsic: the intrinsic.
        kind: its implementation, ``"native"`` or ``"generic"``.
        tile: fragments of each source in a register tile; with one of each, a call waits
            for the last.
        cores: how many work at once.
    """
    sizes = [
        n * prod(load.tensor.shape) * dtype(kind).bits // 8
        for n, load, kind in zip(tile, intrinsic.sources, intrinsic.staged_dtypes, strict=False)
    ]
    steps = max(2, _BYTES // sum(sizes))
    repeat = max(1, _count(intrinsic, kind) // (prod(tile) * steps))
    if _numbered(intrinsic, kind):
        first, second = tile
        module = fed_tiles(intrinsic, (first, second), steps, repeat, cores)
    else:
        module = _scheduled(intrinsic, kind, tile, steps, repeat, cores)
    shapes = [
        (steps, n, *load.tensor.shape) for n, load in zip(tile, intrinsic.sources, strict=True)
    ]
    calls = prod(tile) * steps * repeat
    return RateProgram(module, _arguments(intrinsic, kind, shapes, tile, cores), calls)


def _count(intrinsic: Intrinsic, kind: str) -> int:
    """Calls on each core in one run."""
    if kind == "native":
        return _CALLS
    return min(_CALLS, _OPERATIONS // intrinsic.operations)


def _numbered(intrinsic: Intrinsic, kind: str) -> bool:
    """Whether operands are in registers that have to be named."""
    if kind == "native" and intrinsic.tile_registers:
        ask_for_tiles()
        return True
    return False


def _arguments(
    intrinsic: Intrinsic,
    kind: str,
    shapes: list[tuple[int, ...]],
    tile: tuple[int, ...],
    cores: int,
) -> list[Any]:
    rng = np.random.default_rng(0)
    *given, last = intrinsic.staged_dtypes
    made = [_random(shape, name, rng) for shape, name in zip(shapes, given, strict=True)]
    shape = (cores, *tile, *intrinsic.destination.tensor.shape, *_parts(intrinsic, kind))
    out = aligned(shape, dtype(last).numpy)
    out[...] = 0
    return [
        to_tensor(a, name) for a, name in zip((*made, out), intrinsic.staged_dtypes, strict=True)
    ]


def _parts(intrinsic: Intrinsic, kind: str) -> tuple[int, ...]:
    """What a sum in the lanes of a register adds to the destination's shape."""
    parts = partial_sums(intrinsic, kind)
    return (parts,) if parts > 1 else ()


def _random(shape: tuple[int, ...], name: str, rng: np.random.Generator) -> np.ndarray:
    """Values whose bits change: on some CPUs units draw less power on zeros, and run faster."""
    known = dtype(name)
    if known.is_integer:
        limits = np.iinfo(known.numpy)
        return rng.integers(limits.min, limits.max, shape, known.numpy, endpoint=True)
    # Of either sign, so that sums over many calls stay finite.
    return (rng.integers(-64, 64, shape, endpoint=True) / 64).astype(known.numpy)


def _scheduled(
    intrinsic: Intrinsic,
    kind: str,
    tile: tuple[int, ...],
    steps: int | None,
    repeat: int,
    cores: int,
) -> Any:
    """The program of an intrinsic whose operands TVM and LLVM keep in registers.

    Args:
        intrinsic: the intrinsic.
        kind: its implementation, ``"native"`` or ``"generic"``.
        tile: for each source, how many accumulators there are along it.
        steps: of the reduction, each with sources of its own; without, there is one
            fragment of each source.
        repeat: how often all of that is done.
        cores: how many work at once.
    """
    load_tvm()
    from tvm import s_tir

    dst, count, parts = intrinsic.destination, len(tile), _parts(intrinsic, kind)
    reduced = [it.name for it in intrinsic.iterations if it.is_reduce]
    sch = s_tir.Schedule(_computed(intrinsic, parts, tile, steps, repeat, cores))
    main = sch.get_sblock("main")
    write = sch.cache_write(main, 0, "global")
    core, *rest = sch.get_loops(main)
    # The longer one outside, as in kernels: what the shorter one indexes stays in registers.
    unrolled = [loop for _, loop in sorted(zip(tile, rest, strict=False), key=lambda t: -t[0])]
    spatial, (outer, inner, *last) = rest[count : -2 - len(reduced)], rest[-2 - len(reduced) :]
    order = {
        index.names[0]: loop
        for index, loop in zip(dst.indices, spatial[: len(dst.indices)], strict=True)
    }
    order |= dict(zip(reduced, last, strict=True))
    calls = [order[it.name] for it in intrinsic.iterations]
    if parts:
        calls.insert(-1, spatial[-1])
    sch.reorder(core, outer, inner, *unrolled, *calls)
    sch.parallel(core)
    for loop in unrolled:
        sch.unroll(loop)
    sch.reverse_compute_at(write, core)
    sch.decompose_reduction(main, outer)
    sch.tensorize(calls[0], register_tensor_intrin(intrinsic, kind))
    return sch.mod


def _computed(
    intrinsic: Intrinsic,
    parts: tuple[int, ...],
    tile: tuple[int, ...],
    steps: int | None,
    repeat: int,
    cores: int,
) -> Any:
    """What the program of :func:`_scheduled` computes, before it is scheduled."""
    from tvm import te

    *given, kind = intrinsic.staged_dtypes
    dst, count = intrinsic.destination, len(tile)
    around = [(steps, n) if steps else () for n in tile]
    sources = [
        te.placeholder((*outer, *load.tensor.shape), held(name), name=load.tensor.name)
        for outer, load, name in zip(around, intrinsic.sources, given, strict=True)
    ]
    reduced = [it for it in intrinsic.iterations if it.is_reduce]
    lanes = {it.name: te.reduce_axis((0, it.extent // prod(parts)), name=it.name) for it in reduced}
    again = te.reduce_axis((0, repeat), name="again")
    step = te.reduce_axis((0, steps or 1), name="step")

    def body(*position: Any) -> Any:
        moving = zip(dst.indices, position[1 + count : 1 + count + len(dst.indices)], strict=True)
        at = lanes | {index.names[0]: where for index, where in moving}
        if parts:
            ((name, low),) = lanes.items()
            at[name] = position[-1] * int(low.dom.extent) + low
        product: Any = None
        for n, (load, buffer) in enumerate(zip(intrinsic.sources, sources, strict=True)):
            outer = (step, position[1 + n]) if steps else ()
            element = buffer[(*outer, *(at[index.names[0]] for index in load.indices))]
            value = decoded(element, given[n], kind)
            product = value if product is None else product * value
        return te.sum(product, axis=[again, step, *lanes.values()])

    out = te.compute((cores, *tile, *dst.tensor.shape, *parts), body, name="main")
    return te.create_prim_func([*sources, out])
