"""How fast this CPU multiplies tiles that are in registers."""

from __future__ import annotations

from typing import Any

from amos._toolchain import load_tvm
from amos.intrinsics import Intrinsic
from amos.intrinsics.amx import CONFIGURE, configuration

__all__ = ["MOST_CHAINS", "tile_chains"]

#: Accumulators beside one tile of each source.
MOST_CHAINS = 6


def tile_chains(intrinsic: Intrinsic, calls: int, chains: int, cores: int) -> Any:
    """A function in which each core makes ``calls`` rounds of multiply-adds of tiles.

    Args:
        intrinsic: which multiply-add.
        calls: rounds; each has one multiply-add into every accumulator.
        chains: accumulators, at most :data:`MOST_CHAINS`.
        cores: how many work at once.

    Returns:
        a prim func of the accumulators, cores × chains × 16 × 16.
    """
    load_tvm()
    from tvm.script import from_source

    def emit(name: str, *arguments: str) -> str:
        return f'T.evaluate(T.call_llvm_intrin("int32", {", ".join([repr(name), *arguments])}))'

    multiply = "llvm.x86." + intrinsic.name.split("_")[1]
    tiles = [*range(chains), MOST_CHAINS, MOST_CHAINS + 1]
    zero = [emit("llvm.x86.tilezero", f"T.int8({n})") for n in tiles]
    step = [
        emit(multiply, f"T.int8({n})", f"T.int8({MOST_CHAINS})", f"T.int8({MOST_CHAINS + 1})")
        for n in range(chains)
    ]
    store = [
        emit(
            "llvm.x86.tilestored64",
            f"T.int8({n})",
            f"T.address_of(out[v_core, {n}, 0, 0])",
            "T.int64(64)",
        )
        for n in range(chains)
    ]
    shape, kind = (cores, chains, 16, 16), intrinsic.dtypes[-1]
    before, after = " " * 12, " " * 16
    lines = [
        "# from tvm.script import tirx as T",
        "@T.prim_func(s_tir=True)",
        f'def main(out: T.Buffer({shape}, "{kind}")):',
        f"    for core in T.parallel({cores}):",
        '        with T.sblock("main"):',
        f"            v_core = T.axis.spatial({cores}, core)",
        "            T.reads()",
        f"            T.writes(out[v_core, 0:{chains}, 0:16, 0:16])",
        f'{before}T.attr(T.int32(0), "pragma_import_llvm", {configuration()!r})',
        f'{before}T.evaluate(T.call_extern("int32", "{CONFIGURE}"))',
        *(before + line for line in zero),
        f"{before}for step in range({calls}):",
        *(after + line for line in step),
        *(before + line for line in store),
        before + emit("llvm.x86.tilerelease"),
    ]
    return from_source("\n".join(lines))
