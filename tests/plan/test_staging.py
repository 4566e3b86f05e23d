"""Staged operands against their definition, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import amos
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.mapping import Mapping
from amos.plan.cpu_plan import CpuPlan
from amos.plan.nest import Nest
from amos.plan.schedule import CpuSchedule
from amos.plan.staging import StagedOperand, stage_array, staged_destination, staged_sources
from amos.validate import random_inputs

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
WMMA = amos.intrinsics.get("wmma_m16n16k16_f16_f32")

TEXTS = [
    "out[n,k,p] += image[n,c,p+r] * weight[k,c,r]",
    "out[n,p,k] += image[n,2*p+r,c] * weight[c,r,k]",
    "out[n,p,k] += pad(image[n,p+r-1,c]) * weight[k,r,c]",
    "out[k,p,n] += image[p+r,n,c] * weight[k,c,2-r]",
    "out[k*2+n,p] += image[n,p,c] * weight[k,r,c,p]",
    "out[n,p,k] += image[n,3*p+2*r,c] * weight[k,c,r]",
]


def _operator(text: str, sizes: dict[str, int]) -> Operator:
    sizes = sizes | ({"r": 3} if "2-r" in text else {}) | ({"n": 2} if "k*2" in text else {})
    shapes = {"image": (sizes["n"], sizes["p"], sizes["c"])} if "pad" in text else {}
    return Operator.parse(text, extents=sizes, shapes=shapes)


@st.composite
def mappings(draw: st.DrawFn) -> Mapping:
    sizes = {name: draw(st.integers(1, 5)) for name in "npcr"} | {"k": draw(st.integers(1, 18))}
    unit = draw(st.sampled_from([VNNI, WMMA]))
    op = _operator(draw(st.sampled_from(TEXTS)), sizes)
    try:
        space = amos.enumerate_mappings(op, unit, rule="gather")
    except amos.AmosError:
        space = amos.enumerate_mappings(_operator(TEXTS[0], sizes), unit, rule="gather")
    return space[draw(st.integers(0, space.count - 1))]


def _points(nest: Nest) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Every loop point and slot: loops and lanes, software iterations, and which slots are live."""
    groups = nest.groups.values()
    extents = {loop.name: loop.extent for loop in nest.loops} | {g.lane: g.lanes for g in groups}
    at = dict(zip(extents, np.ogrid[tuple(map(slice, extents.values()))], strict=True))
    software = {name: at[name] for name in nest.mapping.operator.extents if name in at}
    live = {}
    for group in groups:
        fused = at[group.tile] * group.lanes + at[group.lane]
        live[group.target] = fused < group.size
        digits = np.unravel_index(np.minimum(fused, group.size - 1), group.radices or (1,))
        software |= dict(zip(group.members, digits, strict=False))
    return at, software, live


def _called(op: StagedOperand, array: np.ndarray, at: dict[str, Any]) -> np.ndarray:
    """What calls find at each point."""
    values: np.ndarray = array[tuple(dim.index.evaluate(at) for dim in op.dims)]
    return values


def _read(op: StagedOperand, array: np.ndarray, software: dict[str, Any]) -> np.ndarray:
    """What the operator reads at each point, zero outside of the tensor."""
    indices = [np.asarray(index.evaluate(software)) for index in op.load.indices]
    in_bounds: Any = True
    for index, size in zip(indices, array.shape, strict=True):
        in_bounds = in_bounds & (index >= 0) & (index < size)
    clipped = (np.clip(i, 0, n - 1) for i, n in zip(indices, array.shape, strict=True))
    read: np.ndarray = np.where(in_bounds, array[tuple(clipped)], array.dtype.type(0))
    return read


@settings(max_examples=30)
@given(mappings())
def test_a_call_reads_what_the_operator_reads(mapping: Mapping) -> None:
    """Of every live slot the staged elements are the operator's own."""
    nest = Nest(mapping)
    inputs = random_inputs(mapping.operator, np.random.default_rng(0))
    at, software, live = _points(nest)
    for op in staged_sources(nest):
        array = stage_array(op, inputs[op.load.tensor.name])
        assert array.shape == op.shape
        assert array.size == op.elements
        assert array.flags.c_contiguous
        same = _called(op, array, at) == _read(op, inputs[op.load.tensor.name], software)
        for slots in live.values():
            same = same | ~slots
        assert same.all(), op.name


@settings(max_examples=30)
@given(mappings())
def test_padded_slots_add_nothing(mapping: Mapping) -> None:
    """In a slot beyond a fused reduction some source holds zero."""
    nest = Nest(mapping)
    inputs = random_inputs(mapping.operator, np.random.default_rng(1))
    at, _, live = _points(nest)
    nothing: Any = False
    for op in staged_sources(nest):
        array = stage_array(op, np.ones_like(inputs[op.load.tensor.name]))
        nothing = nothing | (_called(op, array, at) == 0)
    for group in nest.groups.values():
        if group.kind == "reduce":
            assert (nothing | live[group.target]).all()


@settings(max_examples=150)
@given(mappings())
def test_in_place_moves_nothing(mapping: Mapping) -> None:
    """Whatever is called in place equals its tensor byte for byte."""
    nest = Nest(mapping)
    for op in (*staged_sources(nest), staged_destination(nest)):
        if not op.in_place:
            continue
        count = op.load.tensor.elements
        tensor = np.arange(count).reshape(op.load.tensor.shape)
        indices, guards = op.locate(np.ogrid[tuple(slice(0, n) for n in op.shape)])
        gathered = np.broadcast_to(tensor[tuple(indices)], op.shape)
        np.testing.assert_array_equal(gathered.reshape(-1), np.arange(count))
        for value, bound, _ in guards:
            assert np.all((np.asarray(value) >= 0) & (np.asarray(value) < bound))


def _source(text: str, name: str, matching: list[list[int]], **extents: int) -> StagedOperand:
    mapping = Mapping.of(Operator.parse(text, extents=extents), VNNI, matching, rule="gather")
    staged = {op.load.tensor.name: op for op in staged_sources(Nest(mapping))}
    return staged[name]


GEMM = "out[i,j] += a[i,k] * weight[j,k]"


def test_rows_of_a_matrix_are_read_in_place() -> None:
    matching = [[0, 1, 0], [0, 0, 1]]
    assert _source(GEMM, "a", matching, i=3, j=16, k=8).in_place
    assert not _source(GEMM, "a", matching, i=3, j=16, k=7).in_place
    assert not _source(GEMM, "weight", matching, i=3, j=16, k=8).in_place


def test_constants_are_packed_even_where_they_could_be_read_in_place() -> None:
    extents = dict(i=1, j=128, k=24)
    text, unit = "out[i,j] += a[i,k] * {}[k,j]", "avx512_fmadd_m16_f32_f32"
    schedule = CpuSchedule.of({"tile.i1.tile": 4, "order": "i1.tile", "reduce": "k"})
    forms = {}
    for name in ("b", "weight"):
        op = Operator.parse(
            text.format(name), extents=extents, dtypes={name: "f32", "a": "f32", "out": "f32"}
        )
        (mapping,) = amos.enumerate_mappings(op, unit)
        plan = CpuPlan(mapping, schedule, CpuLimits(cores=2, cache=1 << 20))
        source = next(each for each in plan.sources if each.load.tensor.name == name)
        forms[name] = plan.form(source), source.shape
    # Two panels of four vectors of columns, each of them a stream of rows.
    assert forms == {"b": ("in place", (24, 8, 16)), "weight": ("packed", (2, 24, 4, 16))}


def test_an_operand_larger_than_what_is_read_is_not_in_place() -> None:
    op = Operator.parse(GEMM, extents=dict(i=3, j=16, k=8), shapes=dict(a=(3, 12)))
    mapping = Mapping.of(op, VNNI, [[0, 1, 0], [0, 0, 1]])
    a, _ = staged_sources(Nest(mapping))
    assert not a.in_place
    array = np.arange(36, dtype=np.uint8).reshape(3, 12)
    np.testing.assert_array_equal(stage_array(a, array).reshape(3, 8), array[:, :8])


def test_overlapping_windows_are_stored_once() -> None:
    text = "out[p,k] += image[p+r,c] * weight[k,c,r]"
    image = _source(text, "image", [[0, 1, 0, 0], [0, 0, 0, 1]], p=6, k=16, c=8, r=3)
    assert image.in_place
    assert image.elements == 8 * 8


def test_staging_is_in_the_dtype_that_the_instruction_reads() -> None:
    op = _source(GEMM, "weight", [[0, 1, 0], [0, 0, 1]], i=2, j=17, k=5)
    assert op.kind == "int8"
    assert stage_array(op, np.ones((17, 5), np.uint8)).dtype == np.int8
