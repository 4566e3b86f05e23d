"""Programs that run an intrinsic as fast as this CPU can, from a cache or from registers.

The program is the innermost loop of a kernel and nothing else: a register tile of
accumulators, and random sources in the nearest cache. Every step has sources of its own.
Otherwise a compiler hoists expressions that depend on sources alone, often the product
itself, out of the loop, and only an addition is timed.

With operands in registers single instructions show what the units can do. No kernel has
that rate: sources must be loaded, which takes issue slots, and many CPUs lower their clock
the more of their units are busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from amos._toolchain import s_tir, te, tirx, tvm
from amos.codegen.amx.probe import MOST_CHAINS, tile_calls
from amos.codegen.amx.tiles import ask_for_tiles
from amos.codegen.tir.arrays import container_dtype, decode, to_tensor
from amos.codegen.tir.combining import join, reduce_axes
from amos.codegen.tir.statements import copy_loop, replace_loop
from amos.codegen.tir.tensor_intrin import register_tensor_intrin
from amos.intrinsics import Intrinsic
from amos.ir import allocate_aligned, dtype
from amos.machine.cpu import cpu
from amos.plan.cpu_blocks import partial_sums

#: Calls on each core in one run: enough to make the start of a region negligible.
_CALLS = 1 << 18
#: Operations after which the loops that emulate an instruction have run long enough.
_OPERATIONS = 1 << 21
#: Bytes of the sources, which fit the nearest cache of every CPU with room to spare.
_BYTES = 1 << 14
#: Bits of the widest vectors that a CPU multiplies, by feature, and without any of these.
_WIDTHS, _LEAST_WIDTH = {"avx512f": 512, "sve": 2048, "avx2": 256}, 128
#: Vector instructions that any CPU starts in a cycle; most start two multiplications.
_ISSUE = 4
#: Register tiles to try where there are 32 registers, and where there are fewer, as
#: fragments of the smaller source and of the larger one.
_MANY, _TILES, _FEW = 32, ((14, 2), (8, 3)), ((6, 2), (4, 3))
#: Register tiles of loops that emulate an instruction, where compilers unroll them; longer loops
#: have accumulators enough of their own.
_EMULATED, _WRITTEN_OUT = ((6, 4), (4, 3)), 1 << 14


@dataclass(frozen=True)
class RateProgram:
    """A program to be timed: arguments of its ``main``, and an intrinsic's calls on each core."""

    module: Any
    tensors: list[Any]
    calls: int


def tiles(intrinsic: Intrinsic, kind: str) -> tuple[tuple[int, ...], ...]:
    """List register tiles, one of which should feed the intrinsic as fast as any."""
    if _has_numbered_registers(intrinsic, kind):
        return ((2, 2),)
    if kind == "native":
        chosen: tuple[tuple[int, int], ...] = _TILES if intrinsic.registers >= _MANY else _FEW
    else:
        chosen = tuple(t for t in _EMULATED if prod(t) * intrinsic.operations <= _WRITTEN_OUT)
        chosen = chosen or ((1, 1),)
    sizes = [prod(load.tensor.shape) for load in intrinsic.sources]
    if len(sizes) != 2:
        # Only accumulators are many: one source of each has another fragment.
        return tuple((m * n, *[1] * (len(sizes) - 1)) for m, n in chosen)
    return chosen if sizes[0] <= sizes[1] else tuple((n, m) for m, n in chosen)


def least_interval(intrinsic: Intrinsic, kind: str, clock: float) -> float:
    """Return a lower bound of the seconds between two calls on a core of this CPU.

    A native call is one instruction at least. Vector units multiply a register of elements
    of the sources in one instruction, and a tile register row by row.

    Args:
        clock: cycles a second.
    """
    if _has_numbered_registers(intrinsic, kind):
        return intrinsic.sources[0].tensor.shape[0] / clock
    features = cpu().features
    width = next((bits for name, bits in _WIDTHS.items() if name in features), _LEAST_WIDTH)
    bits = min(dtype(name).bits for name in intrinsic.staged_dtypes[:-1])
    products = prod(iteration.extent for iteration in intrinsic.iterations)
    instructions = max(float(kind == "native"), products * bits / width)
    return instructions / (_ISSUE * clock)


def register_program(intrinsic: Intrinsic, kind: str, chains: int, cores: int) -> RateProgram:
    """Build a program in which each core calls the intrinsic on the same operands in registers.

    Args:
        intrinsic: one that is a single instruction.
        chains: accumulators that take turns; with one, a call waits for the last.
    """
    chains = min(chains, MOST_CHAINS) if _has_numbered_registers(intrinsic, kind) else chains
    tile = (chains, *[1] * (len(intrinsic.sources) - 1))
    return _Calls(intrinsic.ordered, kind, tile, cores, 1, fed=False).program()


def cache_program(
    intrinsic: Intrinsic, kind: str, tile: tuple[int, ...], cores: int
) -> RateProgram:
    """Build a program in which each core calls the intrinsic on sources from its nearest cache.

    Args:
        tile: fragments of each source in a register tile; with one of each, a call waits
            for the last.
    """
    size = sum(
        n * prod(load.tensor.shape) * dtype(name).bits // 8
        for n, load, name in zip(tile, intrinsic.sources, intrinsic.staged_dtypes, strict=False)
    )
    if not intrinsic.compute.accumulates:
        size += prod(tile) * intrinsic.fragment_bytes(intrinsic.destination)
    return _Calls(intrinsic.ordered, kind, tile, cores, max(2, _BYTES // size)).program()


def _has_numbered_registers(intrinsic: Intrinsic, kind: str) -> bool:
    """Return whether operands are in registers that the code has to number."""
    if kind == "native" and intrinsic.tile_registers:
        ask_for_tiles()
        return True
    return False


@dataclass(frozen=True)
class _Calls:
    """Calls on each of some cores at once.

    Attributes:
        tile: number of accumulators along each source.
        fed: whether each step, and each place along a source, reads a fragment of its own;
            otherwise there is one of each source.
    """

    intrinsic: Intrinsic
    kind: str
    tile: tuple[int, ...]
    cores: int
    steps: int
    fed: bool = True

    @property
    def repeat(self) -> int:
        calls = _CALLS
        if self.kind != "native":
            calls = min(calls, _OPERATIONS // self.intrinsic.operations)
        return max(1, calls // (prod(self.tile) * self.steps))

    @property
    def parts(self) -> tuple[int, ...]:
        """Dimensions that sums in the lanes of a register add to the destination's shape."""
        parts = partial_sums(self.intrinsic, self.kind)
        return (parts,) if parts > 1 else ()

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of each source, then of the accumulators."""
        unit = self.intrinsic
        counts = self.tile if self.fed else [1] * len(self.tile)
        shapes = [
            (self.steps, n, *load.tensor.shape)
            for n, load in zip(counts, unit.sources, strict=True)
        ]
        # Accumulators stay in registers; other results are stored in each step.
        steps = () if unit.compute.accumulates else (self.steps,)
        out = (self.cores, *steps, *self.tile, *unit.destination.tensor.shape, *self.parts)
        return [*shapes, out]

    def program(self) -> RateProgram:
        unit, rng = self.intrinsic, np.random.default_rng(0)
        if _has_numbered_registers(unit, self.kind):
            first, second = self.tile
            tile = (first, second)
            module = tile_calls(unit, tile, self.shapes, self.repeat, fed=self.fed)
        else:
            module = self._schedule()
        kinds, (*source_shapes, last) = unit.staged_dtypes, self.shapes
        arrays = [
            _random(shape, name, rng) for shape, name in zip(source_shapes, kinds, strict=False)
        ]
        out = allocate_aligned(last, dtype(kinds[-1]).numpy)
        out[...] = 0
        tensors = [to_tensor(a, name) for a, name in zip((*arrays, out), kinds, strict=True)]
        return RateProgram(module, tensors, prod(self.tile) * self.steps * self.repeat)

    def _schedule(self) -> Any:
        """Schedule the calls of an intrinsic whose operands TVM and LLVM keep in registers."""
        unit, tile = self.intrinsic, self.tile
        if not unit.compute.accumulates:
            return self._schedule_stores()
        indices = [index.names[0] for index in unit.destination.indices]
        summed = [it.name for it in unit.compute.reduce]
        sch = s_tir.Schedule(self._compute())
        main = sch.get_sblock("main")
        write = sch.cache_write(main, 0, "global")
        core, *inner_loops = sch.get_loops(main)
        # The longer one outside, as in kernels: fragments along the shorter one stay in registers.
        unrolled = [
            loop for _, loop in sorted(zip(tile, inner_loops, strict=False), key=lambda t: -t[0])
        ]
        spatial = inner_loops[len(tile) : -2 - len(summed)]
        outer, inner, *last = inner_loops[-2 - len(summed) :]
        loops = dict(zip([*indices, *summed], [*spatial[: len(indices)], *last], strict=True))
        calls = [loops[it.name] for it in unit.iterations]
        if self.parts:
            calls.insert(-1, spatial[-1])
        sch.reorder(core, outer, inner, *unrolled, *calls)
        sch.parallel(core)
        for loop in unrolled:
            sch.unroll(loop)
        sch.reverse_compute_at(write, core)
        sch.decompose_reduction(main, outer)
        sch.tensorize(calls[0], register_tensor_intrin(unit, self.kind))
        return sch.mod

    def _compute(self) -> Any:
        unit, sources = self.intrinsic, self._sources()
        lanes = {
            it.name: te.reduce_axis((0, it.extent // prod(self.parts)), name=it.name)
            for it in unit.compute.reduce
        }
        again = te.reduce_axis((0, self.repeat), name="again")
        step = te.reduce_axis((0, self.steps), name="step")
        count = len(self.tile)

        def body(*position: Any) -> Any:
            places = position[1 : 1 + count]
            # Parts are one more dimension.
            moving = zip(unit.destination.indices, position[1 + count :], strict=False)
            at = lanes | {index.names[0]: where for index, where in moving}
            if self.parts:
                ((name, low),) = lanes.items()
                at[name] = position[-1] * int(low.dom.extent) + low
            axes = [again, step, *lanes.values()]
            return reduce_axes(unit.compute.combiner, self._call(sources, step, places, at), axes)

        return te.create_prim_func([*sources, te.compute(self.shapes[-1], body, name="main")])

    def _sources(self) -> list[Any]:
        sources = zip(
            self.shapes, self.intrinsic.sources, self.intrinsic.staged_dtypes, strict=False
        )
        return [
            te.placeholder(s, container_dtype(kind), name=x.tensor.name) for s, x, kind in sources
        ]

    def _call(
        self, sources: list[Any], step: Any, places: Sequence[Any], at: dict[str, Any]
    ) -> Any:
        """Join the sources' elements in one call, at a step and at a place along each source."""
        unit = self.intrinsic
        *kinds, kind = unit.staged_dtypes
        values = []
        for load, buffer, name, place in zip(unit.sources, sources, kinds, places, strict=True):
            outer = (step, place) if self.fed else (0, 0)
            element = buffer[(*outer, *(at[index.names[0]] for index in load.indices))]
            values.append(decode(element, name, kind))
        return join(unit.compute.join, values)

    def _schedule_stores(self) -> Any:
        """Schedule the calls of an intrinsic that accumulates nothing and stores each result.

        Results are stored to a cache, as sources are loaded from one, over and over.
        """
        unit, count, sources = self.intrinsic, len(self.tile), self._sources()
        names = [index.names[0] for index in unit.destination.indices]

        def body(_: Any, step: Any, *position: Any) -> Any:
            at = dict(zip(names, position[count:], strict=True))
            return self._call(sources, step, position[:count], at)

        out = te.compute(self.shapes[-1], body, name="main")
        sch = s_tir.Schedule(te.create_prim_func([*sources, out]))
        core, _, *inner_loops = sch.get_loops(sch.get_sblock("main"))
        calls = dict(zip(names, inner_loops[count:], strict=True))
        lanes = [calls[it.name] for it in unit.iterations]
        sch.reorder(*inner_loops[:count], *lanes)
        for loop in inner_loops[:count]:
            sch.unroll(loop)
        sch.parallel(core)
        sch.tensorize(lanes[0], register_tensor_intrin(unit, self.kind))
        function = sch.mod["main"]

        def repeat(loop: Any) -> Any:
            again = tirx.Var("again", "int32")
            body = tirx.For(again, 0, self.repeat, tirx.ForKind.SERIAL, loop.body)
            return copy_loop(loop, body=body)

        return tvm.IRModule({"main": replace_loop(function, sch.get(core).loop_var, repeat)})


def _random(shape: tuple[int, ...], name: str, rng: np.random.Generator) -> np.ndarray:
    """Draw values whose bits change: on zeros some units draw less power, and run faster."""
    kind = dtype(name)
    if kind.is_integer:
        limits = np.iinfo(kind.numpy)
        return rng.integers(limits.min, limits.max, shape, kind.numpy, endpoint=True)
    # Of either sign, so that sums over many calls stay finite.
    return (rng.integers(-64, 64, shape, endpoint=True) / 64).astype(kind.numpy)
