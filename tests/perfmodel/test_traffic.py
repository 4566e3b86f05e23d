"""What loops touch, by counting it; what caches keep; how loops are shared out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import amos
from amos.ir import Operator
from amos.machine import Level
from amos.mapping import Mapping
from amos.perfmodel import predict
from amos.perfmodel.traffic import CoreNest
from amos.plan import Schedule, Structure
from amos.plan.staging import StagedOperand, staged_destination, staged_sources
from amos.schedule import In, ScheduleSpace
from tests.support.models import LEVELS, VNNI, gemm, machine_of, nest_of

CONV = Operator.parse(
    "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
    extents=dict(n=1, p=4, q=6, k=32, c=6, r=2, s=3),
    shapes=dict(image=(1, 4, 6, 6)),
)
MAPPINGS = list(amos.enumerate_mappings(CONV, VNNI, rule="gather"))

seeds = st.integers(0, 2**32 - 1)


def _touched(op: StagedOperand, covered: dict[str, int]) -> int:
    """Different elements that the loops and the lanes reach, counted one by one."""
    lanes = {g.lane: g.lanes for g in op.nest.groups.values()}
    used = {name for dim in op.dims for name in dim.index.names}
    ranges = {n: extent for n, extent in (covered | lanes).items() if n in used}
    levels = set()
    for values in product(*map(range, ranges.values())):
        at = dict.fromkeys(used, 0) | dict(zip(ranges, values, strict=True))
        levels.add(tuple(dim.index.evaluate(at) for dim in op.dims))
    return len(levels)


@settings(max_examples=12)
@given(st.sampled_from(MAPPINGS), seeds)
def test_footprints_are_exact_without_gaps(mapping: Mapping, seed: int) -> None:
    structure = Structure(mapping)
    nest, loops = structure.nest, (*structure.spatial, *structure.reduce)
    space = ScheduleSpace(mapping, tiling="divisors")
    single = [In(name, (1,)) for name in space.variables if name.startswith("block.")]
    row = space.fix(single).sample(np.random.default_rng(seed)).batch(structure)
    core = CoreNest(nest_of(structure, row), None, line=1)
    order = [loops[n] for n in (*row.order[0], *row.reduce[0])]
    tiles = dict(zip([x.name for x in structure.spatial], row.tile[0].tolist(), strict=True))
    staged = (*staged_sources(nest), staged_destination(nest))
    for op, operand in zip(staged, structure.operands, strict=True):
        for depth in range(len(order) + 1):
            covered = tiles | {loop.name: loop.extent for loop in order[depth:]}
            counted = _touched(op, covered) * operand.size
            assert core.footprint(operand)[depth, 0] == counted, (op.name, depth)


@settings(max_examples=20)
@given(st.sampled_from(MAPPINGS), seeds)
def test_blocks_and_tiles_cover_their_loops(mapping: Mapping, seed: int) -> None:
    """What is inside the outermost depth is at least the loop, and less than one span more."""
    structure = Structure(mapping)
    row = ScheduleSpace(mapping).sample(np.random.default_rng(seed)).batch(structure)
    nest = CoreNest(nest_of(structure, row), None, line=1)
    for number, loop in enumerate(structure.spatial):
        covered, span = nest.cover(number)[0, 0], row.span[0, number]
        assert loop.extent <= covered < loop.extent + span
        assert nest.cover(number)[-1, 0] == row.tile[0, number]
    calls = nest.trips[-1, 0] * nest.steps.tile[:, 0].prod()
    assert calls >= structure.nest.calls


def test_what_fits_a_cache_is_not_loaded_again() -> None:
    levels = (Level("L1", 4096, 64.0, 32.0), LEVELS[1])
    prediction = predict(gemm(), machine_of(*levels), Schedule.of({}))
    assert (prediction.rows[2].bytes_in, prediction.rows[2].bytes_out) == (0, 0)
    assert prediction.rows[1].bytes_in == 512


def test_cores_share_the_work() -> None:
    level = Level("DRAM", 0, 1e9, 1e9)
    single, two, many = (
        predict(gemm(), machine_of(level, cores=n), Schedule.of({"parallel": 1}))
        for n in (1, 2, 64)
    )
    assert single.rows[0].compute == 2 * two.rows[0].compute == 2 * many.rows[0].compute


def test_a_loop_of_one_step_is_not_shared_out() -> None:
    """As in generated code: the outermost loop that is left goes to the cores."""
    op = Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=4, j=64, k=8))
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    machine = machine_of(Level("DRAM", 0, 1e9, 1e9), cores=2)
    structure = Structure(mapping)
    outer = [loop.name for loop in structure.spatial]
    order = " ".join(sorted(outer, key=lambda name: name != "i"))
    whole: dict[str, int | str] = {"tile.i": 4, "order": order}
    row = Schedule.of(whole | {"parallel": 1}).batch(structure)
    assert nest_of(structure, row).parallel.tolist() == [4.0]
    assert nest_of(structure, row).region.tolist() == [2]
    single = predict(mapping, replace(machine, cores=1), Schedule.of(whole))
    assert (
        predict(mapping, machine, Schedule.of(whole)).rows[0].compute == single.rows[0].compute / 2
    )
