"""How fast this CPU multiplies tiles: that are in registers, or in the nearest cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.amx.tiles import tile_multiply
from amos.codegen.tir.arrays import held
from amos.intrinsics import Intrinsic
from amos.intrinsics.amx import CONFIGURE, configuration

__all__ = ["MOST_CHAINS", "fed_tiles", "tile_chains"]

#: Accumulators beside one tile of each source.
MOST_CHAINS = 6
#: Tile registers, and rows of a full one.
_TILES, _ROWS = 8, 16


def tile_chains(intrinsic: Intrinsic, calls: int, chains: int, cores: int) -> Any:
    """A function in which each core makes ``calls`` rounds of multiply-adds of tiles.

    Args:
        intrinsic: which multiply-add.
        calls: rounds; each has one multiply-add into every accumulator.
        chains: accumulators, at most :data:`MOST_CHAINS`.
        cores: how many work at once.

    Returns:
        a prim func of one tile of each source, and of the accumulators, cores × chains ×
        rows × 16.
    """
    first, second = MOST_CHAINS, MOST_CHAINS + 1
    multiply = tile_multiply(intrinsic)
    zero = [_emit("llvm.x86.tilezero", f"T.int8({n})") for n in range(chains)]
    load = [_load(first, "a[0, 0, 0, 0]"), _load(second, "b[0, 0, 0, 0]")]
    step = [_emit(multiply, *(f"T.int8({t})" for t in (n, first, second))) for n in range(chains)]
    lines = [*zero, *load, f"for step in range({calls}):", *(f"    {line}" for line in step)]
    rows = intrinsic.sources[0].tensor.shape[0]
    heights = (*[rows] * (MOST_CHAINS + 1), _ROWS)
    return _function(intrinsic, (1, 1), 1, (chains, 1), cores, heights, lines)


def fed_tiles(
    intrinsic: Intrinsic, tile: tuple[int, int], steps: int, repeat: int, cores: int
) -> Any:
    """A function in which each core reads the tiles that it multiplies.

    Args:
        intrinsic: which multiply-add.
        tile: tiles of the first and of the second source; as many accumulators as their
            product, all of them in eight registers.
        steps: of the reduction, each with other tiles.
        repeat: how often all steps are made.
        cores: how many work at once.

    Returns:
        a prim func of the sources, steps × tiles × their shape, and the accumulators,
        cores × tiles × tiles × rows × 16.
    """
    rows, columns = tile
    multiply = tile_multiply(intrinsic)
    count = rows * columns
    zero = [_emit("llvm.x86.tilezero", f"T.int8({n})") for n in range(count)]
    step = [_load(count + j, f"b[step, {j}, 0, 0]") for j in range(columns)]
    for i in range(rows):
        step.append(_load(count + columns, f"a[step, {i}, 0, 0]"))
        step += [
            _emit(
                multiply, *(f"T.int8({t})" for t in (i * columns + j, count + columns, count + j))
            )
            for j in range(columns)
        ]
    lines = [*zero, f"for again, step in T.grid({repeat}, {steps}):"]
    lines += [f"    {line}" for line in step]
    height = intrinsic.sources[0].tensor.shape[0]
    heights = [_ROWS if count <= n < count + columns else height for n in range(_TILES)]
    return _function(intrinsic, tile, steps, tile, cores, heights, lines)


def _function(
    intrinsic: Intrinsic,
    tile: tuple[int, int],
    steps: int,
    accumulators: tuple[int, ...],
    cores: int,
    heights: Sequence[int],
    lines: list[str],
) -> Any:
    """A function that runs lines of TVMScript on each core and stores the accumulators."""
    load_tvm()
    from tvm.script import from_source

    shapes = [
        (steps, n, *load.tensor.shape) for n, load in zip(tile, intrinsic.sources, strict=True)
    ]
    out = (cores, *accumulators, *intrinsic.destination.tensor.shape)
    *given, kind = map(held, intrinsic.dtypes)
    places = itertools.product(*map(range, accumulators))
    store = [
        _emit(
            "llvm.x86.tilestored64",
            f"T.int8({n})",
            f"T.address_of(out[{', '.join(map(str, ('v_core', *place, 0, 0)))}])",
            "T.int64(64)",
        )
        for n, place in enumerate(places)
    ]
    inside = " " * 12
    text = [
        "# from tvm.script import tirx as T",
        "@T.prim_func(s_tir=True)",
        f'def main(a: T.Buffer({shapes[0]}, "{given[0]}"), b: T.Buffer({shapes[1]}, "{given[1]}"),',
        f'         out: T.Buffer({out}, "{kind}")):',
        f"    for core in T.parallel({cores}):",
        '        with T.sblock("main"):',
        f"            v_core = T.axis.spatial({cores}, core)",
        f"            T.reads({_whole('a', shapes[0])}, {_whole('b', shapes[1])})",
        f"            T.writes({_whole('out', out)})",
        f'{inside}T.attr(T.int32(0), "pragma_import_llvm", {configuration(heights)!r})',
        f'{inside}T.evaluate(T.call_extern("int32", "{CONFIGURE}"))',
        *(inside + line for line in (*lines, *store)),
        inside + _emit("llvm.x86.tilerelease"),
    ]
    return from_source("\n".join(text))


def _whole(name: str, shape: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(f'0:{extent}' for extent in shape)}]"


def _load(register: int, element: str) -> str:
    place = f"T.address_of({element})"
    return _emit("llvm.x86.tileloadd64", f"T.int8({register})", place, "T.int64(64)")


def _emit(name: str, *arguments: str) -> str:
    return f'T.evaluate(T.call_llvm_intrin("int32", {", ".join([repr(name), *arguments])}))'
