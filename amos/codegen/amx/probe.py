"""Programs that measure how fast this CPU multiplies tiles in registers or in the nearest cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.amx.tiles import ROWS, TILES, tile_multiply
from amos.codegen.tir.arrays import container_dtype
from amos.codegen.tir.tensor_intrin import parse_function
from amos.intrinsics import Intrinsic
from amos.intrinsics.amx import CONFIGURE, configuration

#: Accumulators beside one tile of each source.
MOST_CHAINS = TILES - 2


def tile_calls(
    intrinsic: Intrinsic,
    tile: tuple[int, int],
    shapes: Sequence[tuple[int, ...]],
    repeat: int,
    *,
    fed: bool,
) -> Any:
    """Build a function in which each core multiplies tiles and stores the accumulators.

    Args:
        tile: accumulators along the first and along the second source.
        shapes: of the sources, steps × tiles × their shape, and of the accumulators, cores ×
            ``tile`` × rows × 16.
        repeat: number of repetitions of all steps.
        fed: whether each step reads tiles of its own; otherwise the first tile of each source
            stays in a register.
    """
    places = list(itertools.product(*map(range, tile)))
    count, columns = len(places), tile[1]
    # After the accumulators come the tiles of the second source, then one of the first.
    seconds, first, at = range(count, count + columns), count + columns, "step" if fed else "0"
    before = [_emit("llvm.x86.tilezero", n) for n in range(count)]
    step = [_load(number, f"b[{at}, {j}, 0, 0]") for j, number in enumerate(seconds)]
    if not fed:
        before, step = [*before, *step, _load(first, "a[0, 0, 0, 0]")], []
    for n, (i, j) in enumerate(places):
        if fed and j == 0:
            step.append(_load(first, f"a[step, {i}, 0, 0]"))
        step.append(_emit(tile_multiply(intrinsic), n, first, seconds[j]))
    height, steps = intrinsic.sources[0].tensor.shape[0], shapes[0][0]
    heights = [ROWS if n in seconds else height for n in range(TILES)]
    store = []
    for n, place in enumerate(places):
        element = f"out[{', '.join(map(str, ('v_core', *place, 0, 0)))}]"
        store.append(_emit("llvm.x86.tilestored64", n, *_rows_at(element)))
    lines = [
        f'T.attr(T.int32(0), "pragma_import_llvm", {configuration(heights)!r})',
        f'T.evaluate(T.call_extern("int32", "{CONFIGURE}"))',
        *before,
        f"for again, step in T.grid({repeat}, {steps}):",
        *("    " + line for line in step),
        *store,
        _emit("llvm.x86.tilerelease"),
    ]
    return _function(intrinsic, shapes, lines)


def _function(intrinsic: Intrinsic, shapes: Sequence[tuple[int, ...]], lines: list[str]) -> Any:
    """Build a function that runs lines of TVMScript on each core."""
    load_tvm()
    kinds, cores = map(container_dtype, intrinsic.dtypes), shapes[-1][0]
    buffers = list(zip(("a", "b", "out"), shapes, kinds, strict=True))
    arguments = ", ".join(f'{name}: T.Buffer({shape}, "{kind}")' for name, shape, kind in buffers)
    *read, written = (
        f"{name}[{', '.join(f'0:{extent}' for extent in shape)}]" for name, shape, _ in buffers
    )
    text = [
        "# from tvm.script import tirx as T",
        "@T.prim_func(s_tir=True)",
        f"def main({arguments}):",
        f"    for core in T.parallel({cores}):",
        '        with T.sblock("main"):',
        f"            v_core = T.axis.spatial({cores}, core)",
        f"            T.reads({', '.join(read)})",
        f"            T.writes({written})",
        *(" " * 12 + line for line in lines),
    ]
    return parse_function("\n".join(text))


def _load(register: int, element: str) -> str:
    return _emit("llvm.x86.tileloadd64", register, *_rows_at(element))


def _rows_at(element: str) -> tuple[str, str]:
    """Return the address of a tile's rows, and their distance in bytes."""
    return f"T.address_of({element})", "T.int64(64)"


def _emit(name: str, *arguments: int | str) -> str:
    """Write a call of an instruction; a number is that of a tile register."""
    texts = [each if isinstance(each, str) else f"T.int8({each})" for each in arguments]
    return f'T.evaluate(T.call_llvm_intrin("int32", {", ".join([repr(name), *texts])}))'
