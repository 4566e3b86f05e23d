"""``amos space`` on a chain, and ``amos reproduce lift``: loops on work-groups and work-items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from amos.cli.chains import read_tiles
from amos.cli.options import AsJson, read_fixes
from amos.cli.output import print_json, print_line, print_table
from amos.errors import UnknownNameError

if TYPE_CHECKING:
    from amos.chains import ParallelSpace
    from amos.ir import Chain
    from amos.reproduce.lift import Lift

#: Mappings that are printed.
_LISTED = 4


def _make_space(
    chain: Chain, tiles: dict[str, int], memory: Sequence[str], dimensions: int, machine: str
) -> ParallelSpace:
    """Make the space of a chain in tiles, with the limits of a machine of OpenCL."""
    import amos
    from amos.chains import ParallelSpace, Tiling
    from amos.opencl.chains.candidate import ParallelCandidate
    from amos.operators.lookup import read_pair

    memories = dict(read_pair(item, "TENSOR=MEMORY") for item in memory)
    inputs = {tensor.name for tensor in chain.inputs}
    copies = {name: kind for name, kind in memories.items() if name in inputs}
    temporaries = {name: kind for name, kind in memories.items() if name not in inputs}
    frame = ParallelCandidate(Tiling.of(chain, tiles), {}, temporaries, copies)
    described = amos.machines.get(machine, [])
    limits = None if described.opencl is None else frame.limits_on(described)
    return ParallelSpace(frame.nest, dimensions, limits)


def space_of_chain(
    chain: Chain,
    fix: Sequence[str] | None,
    memory: Sequence[str],
    dimensions: int,
    machine: str,
    as_json: bool,
) -> None:
    """Print the loops of a chain in tiles, and the constraints on their mapping."""
    import numpy as np

    tiles, further = read_tiles(fix)
    loops = dict[str, str]()
    for name, value in read_fixes(further):
        kind, _, loop = name.partition(".")
        if kind != "map":
            raise UnknownNameError("variable", name, ["tile.LOOP=SIZE", "map.LOOP=LEVEL"])
        loops[loop] = str(value)
    space = _make_space(chain, tiles, memory, dimensions, machine)
    nest = space.nest
    conflict = space.explain(loops)
    drawn = space.draw(_LISTED, np.random.default_rng(0), loops)
    report = {
        "operator": str(chain),
        "nest": str(nest),
        "loops": [loop.name for loop in nest.loops],
        "variables": len(space.csp.variables),
        "by_rule": space.by_rule(),
        "size": space.size,
        "conflict": conflict,
        "drawn": drawn,
    }
    if as_json:
        print_json(report)
        return
    print_line(str(nest))
    print_table(["rule", "constraints"], [[rule, n] for rule, n in space.by_rule().items()])
    print_line(f"size       {space.size:,} assignments of {len(nest.loops)} loops")
    for text in conflict:
        print_line(f"impossible {text}")
    for example in drawn:
        used = {name: value for name, value in example.items() if " " in value}
        words = ", ".join(f"{n}: {v}" for n, v in used.items()) or "no loop in parallel"
        print_line(f"for example {words}")


def lift_command(
    candidates: Annotated[
        int, typer.Option(min=1, metavar="N", help="Valid mappings to draw of each layer.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws and searches.")] = 0,
    trials: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Kernels to measure of each layer through OpenCL."),
    ] = 0,
    layer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this layer, such as V8; repeatable."),
    ] = None,
    fusion: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Mappings of V8, or the first --layer, to measure for each way to fuse loops.",
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Valid mappings of loops to OpenCL's levels: Listing 1, and the layers of VGG-16."""
    from amos.reproduce.lift import lift

    result = lift(candidates, seed, trials, layer or (), fusion=fusion)
    if as_json:
        layers = [
            asdict(row) | {"per_second": row.per_second, "total": sum(row.constraints.values())}
            for row in result.layers
        ]
        print_json(asdict(result) | {"layers": layers})
        return
    _print_lift(result)
    _print_fusions(result)


def _print_lift(result: Lift) -> None:
    listing = result.listing1
    print_table(
        ["mapping", "A to E", "", "broken rules"],
        [
            [row.name, " ".join(row.loops), "valid" if row.valid else "invalid"]
            + [", ".join(row.broken)]
            for row in listing.mappings
        ],
        title="Lift, Table 1: mappings of Listing 1",
    )
    print_line(
        f"{listing.valid} of {listing.assignments:,} assignments in two dimensions are valid, "
        f"{listing.brute_force} by trying each.\nWith rule 2 on innermost loops alone: "
        f"{listing.innermost_only}."
    )
    rules = list(result.layers[0].constraints)
    print_table(
        ["", *(rule.partition(" ")[0] for rule in rules), "variables", "loops", "valid a second"],
        [["paper", *(result.paper_constraints.get(rule, "") for rule in rules), "", "> 200", ""]]
        + [
            [row.layer, *row.constraints.values(), row.variables, row.loops]
            + [f"{row.per_second:,.0f}"]
            for row in result.layers
        ],
        title=f"Lift, Table 4: constraints of a convolution by rule ({', '.join(rules)})",
    )
    if not result.rates:
        print_line(
            "Seconds are of the processor. --trials N measures layers, --fusion N mappings of V8."
        )
        return
    after = [*result.rates[0].gflops_after]
    print_table(
        ["", *(f"after {n}" for n in after), "best", "memory", "search s"],
        [
            [row.layer, *(f"{row.gflops_after[n]:.1f}" for n in after), f"{row.gflops:.1f}"]
            + [f"{1 + row.memory:.2f}x", f"{row.seconds:.0f}"]
            for row in result.rates
        ],
        title="Lift, Figures 4 and 5: GFLOP/s of the best kernel, and memory beside the tensors'",
    )


def _print_fusions(result: Lift) -> None:
    if not result.fusions:
        return
    after = [*result.fusions[0].gflops_after]
    print_table(
        ["fused", "candidates", "kernels", "failed", *(f"after {n}" for n in after), "best"]
        + ["best after", "paper: best after"],
        [
            [row.fusion, row.candidates, row.kernels, row.failed]
            + [*(f"{row.gflops_after[n]:.1f}" for n in after), f"{row.gflops:.1f}"]
            + [row.reached_after, row.paper_reached_after or ""]
            for row in result.fusions
        ],
        title=f"Lift, Figure 6: GFLOP/s of {result.fusions[0].layer} after so many candidates",
    )
    print_line(
        "Medians of the best of 100 samples. Fused loops and sequential loops compile to the same\n"
        "code here, so strategies differ only in how often they draw a kernel. The paper measures\n"
        "250 candidates of each on a Mali-G72."
    )
