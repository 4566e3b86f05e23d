"""Generated kernels against the operator's own meaning, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos.codegen.tir.tensor_intrin import implementation
from amos.ir import Operator
from amos.machine.cpu import cpu
from amos.mapping import Mapping
from amos.plan import Schedule
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs
from tests.support.models import plan_of

VNNI = amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
WMMA = amos.intrinsics.get("wmma_m16n16k16_f16_f32")

OPERATORS = {
    "conv_nhwc_pad": Operator.parse(
        "out[n,p,q,k] += pad(image[n,p+r-1,q+s-1,c]) * weight[k,c,r,s]",
        extents=dict(n=1, p=3, q=4, k=18, c=4, r=3, s=3),
        shapes=dict(image=(1, 3, 4, 4)),
    ),
    "conv_nchw_strided": Operator.parse(
        "out[n,k,p,q] += image[n,c,p*2+r,q*2+s] * weight[k,c,r,s]",
        extents=dict(n=2, k=5, p=3, q=2, c=3, r=2, s=3),
    ),
    "gemm_odd": Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=5, j=19, k=7)),
    "gemm_even": Operator.parse("out[i,j] += a[i,k] * b[k,j]", extents=dict(i=6, j=32, k=8)),
    "gemm_nothing_outside": Operator.parse("out[j] += a[k] * weight[j,k]", extents=dict(j=16, k=4)),
    "grouped": Operator.parse(
        "out[n,g,k,p] += image[n,g,c,p+r] * weight[g,k,c,r]",
        extents=dict(n=1, g=2, k=3, p=4, c=2, r=3),
    ),
    "transposed": Operator.parse(
        "out[n,k,p,q] += pad(image[n,c,p+r-1,q+s-1]) * weight[c,k,2-r,2-s]",
        extents=dict(n=1, k=17, p=2, q=3, c=2, r=3, s=3),
        shapes=dict(image=(1, 2, 2, 3)),
    ),
    "transposed_by_phases": amos.operators.transposed_conv2d(
        c=3, k=17, p=4, q=2, r=4, s=2, padding=1, form="phases", layout="NHWC"
    ),
    "pixel_shuffle": Operator.parse(
        "out[a*4+d,n] += x[a,c] * weight[d,n,c]", extents=dict(a=3, d=4, n=5, c=6)
    ),
    "batch_matmul": Operator.parse(
        "out[b,i,j] += x[b,i,k] * y[b,j,k]", extents=dict(b=3, i=4, j=5, k=6)
    ),
    "gaps_in_the_output": Operator.parse(
        "out[i*3+1,j] += a[i,k] * weight[j,k]",
        extents=dict(i=3, j=16, k=4),
        shapes=dict(out=(11, 20)),
    ),
}

BEST = implementation(VNNI, cpu().features)
needs_vnni = pytest.mark.skipif(
    BEST != "native",
    reason="this CPU has no avx512_vnni, so the instruction itself cannot run",
)
KINDS = [pytest.param("native", marks=needs_vnni), "generic"]


def _check(mapping: Mapping, kind: str, samples: int, seed: int, *, smallest: bool = True) -> None:
    rng, space = np.random.default_rng(seed), ScheduleSpace(mapping)
    inputs = random_inputs(mapping.operator, rng)
    expected = evaluate(mapping.operator, inputs)
    drawn = [space.sample(rng) for _ in range(samples)]
    for schedule in [space.smallest(), *drawn] if smallest else drawn:
        kernel = amos.build(mapping, schedule, implementation=kind)
        assert kernel.implementation == kind
        got = kernel(**inputs)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(got, expected), f"{mapping.name}: {schedule}"


@pytest.mark.features
@pytest.mark.parametrize("name", OPERATORS)
def test_mappings_compute_the_operator(name: str) -> None:
    """Some under one schedule each; by the instruction and by its meaning in turns."""
    space = amos.enumerate_mappings(OPERATORS[name], VNNI, rule="gather")
    assert len(space)
    for number, mapping in enumerate([*space][:: 1 + len(space) // 4]):
        _check(mapping, ("generic", BEST)[number % 2], samples=1, seed=number, smallest=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_mapping_under_more_schedules(name: str, kind: str) -> None:
    for number, mapping in enumerate(amos.enumerate_mappings(OPERATORS[name], VNNI, rule="gather")):
        _check(mapping, kind, samples=2, seed=number)


#: Extents that no register tile divides, for destinations that are staged and for
#: those that are the output itself, with padding, strides and reversed weights.
UNEVEN = {
    "gemm_prime": Operator.parse("out[i,j] += a[i,k] * weight[j,k]", extents=dict(i=13, j=32, k=8)),
    "gemm_both_prime": Operator.parse("out[i,j] += a[i,k] * b[j,k]", extents=dict(i=11, j=53, k=9)),
    "conv_in_place": Operator.parse(
        "out[n,p,q,k] += image[n,p+r,q+s,c] * weight[k,c,r,s]",
        extents=dict(n=1, p=7, q=11, k=16, c=4, r=2, s=3),
    ),
    "conv_pad_strided": Operator.parse(
        "out[n,k,p,q] += pad(image[n,c,p*2+r-1,q*2+s-1]) * weight[k,c,r,s]",
        extents=dict(n=1, k=19, p=7, q=5, c=3, r=3, s=3),
        shapes=dict(image=(1, 3, 14, 10)),
    ),
    "transposed_by_phases": amos.operators.transposed_conv2d(
        c=4, k=32, p=10, q=14, form="phases", layout="NHWC"
    ),
    "backwards": Operator.parse(
        "out[p,k] += image[10-p,c] * weight[k,c]", extents=dict(p=11, k=16, c=4)
    ),
}


@pytest.mark.parametrize("most", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", UNEVEN)
def test_tiles_that_do_not_divide(name: str, most: int) -> None:
    """Edges are padded, whatever the tile, the block and the place of staging."""
    rng, padded = np.random.default_rng(0), 0
    for mapping in list(amos.enumerate_mappings(UNEVEN[name], VNNI, rule="gather"))[:4]:
        space = ScheduleSpace(mapping)
        inputs = random_inputs(mapping.operator, rng)
        expected = evaluate(mapping.operator, inputs)
        uneven = [s for s in space.draw(40, rng) if plan_of(mapping, s).padded][:most]
        for schedule in uneven:
            got = amos.build(mapping, schedule, implementation="generic")(**inputs)
            assert np.array_equal(got, expected), f"{mapping.name}: {schedule}"
            padded += 1
    assert padded


def test_an_operand_in_place_stays_in_place_under_padding() -> None:
    """The last tile has a piece of code of its own, which reads and writes nothing beyond."""
    mapping = amos.enumerate_mappings(UNEVEN["gemm_prime"], VNNI)[0]
    space = ScheduleSpace(mapping)
    schedule = Schedule.of(space.smallest().as_dict() | {"tile.i": 5})
    assert plan_of(mapping, schedule).padded == {"i": 15}
    kernel = amos.build(mapping, schedule, implementation="generic")
    assert "stage_Src1" not in kernel.source
    assert "T.min" not in kernel.source and "T.where" not in kernel.source
    assert kernel.source.count('T.sblock("main_update_o")') == 2
    inputs = random_inputs(mapping.operator, np.random.default_rng(0))
    assert np.array_equal(kernel(**inputs), evaluate(mapping.operator, inputs))


@pytest.mark.parametrize(("r", "s", "stride"), [(3, 1, 2), (2, 5, 3)])
def test_phases_of_different_lengths(r: int, s: int, stride: int) -> None:
    """The shorter ones read zeros behind the ends of a kernel that is packed ahead."""
    op = amos.operators.transposed_conv2d(
        c=5, k=17, p=2 * stride, q=3 * stride, r=r, s=s, stride=stride, padding=0,
        form="phases", layout="NHWC",
    )  # fmt: skip
    for mapping in list(amos.enumerate_mappings(op, VNNI, rule="access"))[:2]:
        _check(mapping, "generic", samples=1, seed=0)


@pytest.mark.parametrize("block", [16, 8, 6])
def test_blocks_of_a_row_are_read_and_written_where_they_lie(block: int) -> None:
    """Lanes may be the innermost digit of a dimension; where they are padded, copies are made."""
    op = amos.operators.scan_by_blocks(n=5, k=48, block=block, dtype="u8s8")[1]
    mapping = amos.enumerate_mappings(op, VNNI).find("i-j")
    rng, space = np.random.default_rng(0), ScheduleSpace(mapping)
    inputs = random_inputs(mapping.operator, rng)
    expected = evaluate(mapping.operator, inputs)
    for schedule in [space.smallest(), *space.draw(3, rng)]:
        kernel = amos.build(mapping, schedule, implementation="generic")
        assert np.array_equal(kernel(**inputs), expected), str(schedule)
    smallest = amos.build(mapping, space.smallest(), implementation="generic").source
    assert ("stage_Src1" in smallest) == (block == 6)


def test_an_output_of_phases_is_written_where_it_lies() -> None:
    """Steps and phases of a dimension are its digits; a tile of them is no copy."""
    mapping = amos.enumerate_mappings(UNEVEN["transposed_by_phases"], VNNI, rule="access")[0]
    assert mapping.groups["i1"] == ("k",)
    kernel = amos.build(mapping, ScheduleSpace(mapping).smallest(), implementation="generic")
    assert "unstage" not in kernel.source


@pytest.mark.features
@pytest.mark.parametrize("kind", KINDS)
def test_a_variable_input_is_staged_inside_the_kernel(kind: str) -> None:
    """Without constants both sources may be gathered by the kernel itself."""
    op = Operator.parse(
        "out[n,k,p] += image[n,c,p+r] * weight[k,c,r]",
        extents=dict(n=2, k=18, p=4, c=3, r=2),
        constants=(),
    )
    for number, mapping in enumerate(amos.enumerate_mappings(op, VNNI, rule="gather")):
        assert {x.name for x in ScheduleSpace(mapping).context.gathered} >= {"Src2"}
        _check(mapping, kind, samples=3 if kind == BEST else 1, seed=number)


def test_half_precision_on_a_matrix_unit() -> None:
    """No CPU has the instruction, so its meaning is emitted; short sums are exact."""
    op = Operator.parse(
        "out[n,k,p] += pad(image[n,c,p+r-1]) * weight[k,c,r]",
        extents=dict(n=2, k=5, p=6, c=3, r=3),
        shapes=dict(image=(2, 3, 6)),
    )
    mappings = list(amos.enumerate_mappings(op, WMMA, rule="gather"))
    for number, mapping in enumerate(mappings[::9]):
        _check(mapping, "generic", samples=1, seed=number)


def test_sources_in_another_order() -> None:
    op = Operator.parse("out[i,j] += weight[j,k] * a[i,k]", extents=dict(i=4, j=19, k=7))
    op = op.with_dtypes({"a": "uint8", "weight": "int8", "out": "int32"})
    (mapping,) = amos.enumerate_mappings(op, VNNI, commute=True)
    _check(mapping, "generic", samples=1, seed=0)


def test_one_tensor_in_two_places() -> None:
    """Each place gets its own staged form, packed ahead or not."""
    for constants in ((), ("a",)):
        op = Operator.parse(
            "out[i,j] += a[k,i] * a[k,j]", extents=dict(i=17, j=17, k=18), constants=constants
        )
        (mapping,) = amos.enumerate_mappings(op, WMMA)
        inputs = random_inputs(mapping.operator, np.random.default_rng(0))
        kernel = amos.build(mapping)
        if constants:
            kernel.pack(**inputs)
            np.testing.assert_array_equal(kernel(), evaluate(mapping.operator, inputs))
        np.testing.assert_array_equal(kernel(**inputs), evaluate(mapping.operator, inputs))


@needs_vnni
def test_the_native_kernel_holds_the_instruction() -> None:
    mapping = amos.enumerate_mappings(OPERATORS["gemm_even"], VNNI)[0]
    assert "vpdpbusd" in amos.build(mapping, implementation="native").assembly


@pytest.mark.features
def test_int32_wraps_around_like_the_instruction() -> None:
    """Sums of bytes stay far below 2^31, so there is nothing to saturate."""
    op = Operator.parse("out[j] += a[k] * weight[j,k]", extents=dict(j=16, k=64))
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    a, weight = np.full(64, 255, np.uint8), np.full((16, 64), -128, np.int8)
    assert (amos.build(mapping)(a, weight) == -255 * 128 * 64).all()


def test_steps_that_read_only_padding_are_skipped() -> None:
    """Whole rows of a window, where the loops around the inner reduction tell so."""
    op = Operator.parse(
        "out[n,p,q,k] += pad(image[n,p*2+r-2,q+s-1,c]) * weight[k,c,r,s]",
        extents=dict(n=1, p=4, q=5, k=16, c=8, r=5, s=3),
        shapes=dict(image=(1, 7, 5, 8)),
    )
    mapping = next(m for m in amos.enumerate_mappings(op, VNNI) if m.name == "k-c")
    inputs = random_inputs(mapping.operator, np.random.default_rng(0))
    expected = evaluate(mapping.operator, inputs)
    base = ScheduleSpace(mapping).smallest().as_dict()
    guards = {}
    for tile, reduce in ((1, "r s r1.tile"), (2, "r s r1.tile"), (1, "s r1.tile r")):
        requested = base | {"tile.p": tile, "tile.q": 5, "reduce": reduce}
        kernel = amos.build(mapping, Schedule.of(requested), implementation="generic")
        np.testing.assert_array_equal(kernel(**inputs), expected)
        guards[tile, reduce] = "if " in kernel.source
    # A tile of rows is partly inside, and the innermost loop takes no branch.
    assert list(guards.values()) == [True, False, False]


def test_constants_lie_in_the_order_in_which_they_are_read() -> None:
    op = Operator.parse(
        "out[n,p,q,k] += image[n,p+r,q+s,c] * weight[k,c,r,s]",
        extents=dict(n=1, p=3, q=4, k=70, c=8, r=2, s=3),
    )
    mapping = next(m for m in amos.enumerate_mappings(op, VNNI) if m.name == "k-c")
    values = ScheduleSpace(mapping).smallest().as_dict()
    values |= {"tile.i1.tile": 2, "reduce": "s r1.tile r"}
    inputs = random_inputs(mapping.operator, np.random.default_rng(0))
    kernel = amos.build(mapping, Schedule.of(values), implementation="generic")
    # Pairs of 16 channels outside, the reductions in order, the pair, the fragment.
    assert 'weight_1: T.Buffer((3, 3, 2, 2, 2, 16, 4), "int8")' in kernel.source
    np.testing.assert_array_equal(kernel(**inputs), evaluate(mapping.operator, inputs))
