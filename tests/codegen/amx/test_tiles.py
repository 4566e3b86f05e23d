"""Kernels on AMX: every way to read and write a tile, held against NumPy."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

import amos
from amos import intrinsics
from amos.codegen.amx import tiles as amx
from amos.codegen.scheduling import schedule_candidate
from amos.errors import BuildError
from amos.ir import Operator
from amos.machine.cpu import cpu
from amos.machine.limits import CpuLimits
from amos.mapping import MappingSpace
from amos.mapping.mapping import Mapping
from amos.operators import resolve
from amos.plan import Candidate, CpuSchedule
from amos.plan.cpu_plan import CpuPlan
from amos.plan.nest import Nest
from amos.plan.staging import StagedOperand
from amos.plan.strided import StridedOperand, destination_form, source_forms
from amos.runtime import build
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

pytestmark = pytest.mark.features

BYTES = "amx_tdpbusd_m16n16k64_u8_s8_s32"
BFLOATS = "amx_tdpbf16ps_m16n16k32_bf16_f32"


def _granted() -> str:
    """Why no tile can be used here, or nothing."""
    if missing := {"amx_tile", "amx_int8", "amx_bf16"} - cpu().features:
        return f"this CPU lacks {', '.join(sorted(missing))}"
    try:
        amx.ask_for_tiles()
    except BuildError as error:
        return str(error)
    return ""


needs_amx = pytest.mark.skipif(bool(_granted()), reason=_granted() or "AMX is there")


def _space(op: Operator, name: str, rule: str = "access") -> MappingSpace:
    return amos.enumerate_mappings(op, intrinsics.get(name), rule=rule)


def _check(op: Operator, name: str, draws: int, mappings: int = 3) -> None:
    """Draw mappings and schedules, build, run, compare; floats within their rounding."""
    rng = np.random.default_rng(7)
    space = _space(op, name)
    inputs = random_inputs(space[0].operator, rng)
    expected = evaluate(space[0].operator, inputs)
    for number in rng.permutation(len(space))[:mappings]:
        schedules = ScheduleSpace(space[int(number)])
        for _ in range(draws):
            candidate = Candidate(space[int(number)], schedules.sample(rng))
            kernel = build(candidate)
            assert kernel.implementation == "native"
            got = kernel(**inputs)
            if got.dtype.kind in "iu":
                np.testing.assert_array_equal(got, expected, str(candidate))
            else:
                np.testing.assert_allclose(got, expected, 1e-2, 1e-2, err_msg=str(candidate))


OPERATORS = [
    "O[m,n] += A[m,k] * B[k,n] with m=32,n=48,k=128",
    "O[m,n] += A[m,k] * B[k,n] with m=37,n=53,k=101",
    "O[m,n] += A[m,k] * B[k,n] with m=1,n=17,k=3",
    "O[m,n] += A[m,k] * B[k,n] with m=211,n=1,k=67",
    "O[m,n] += A[k,m] * B[n,k] with m=33,n=16,k=65",
    "O[n,m] += A[m,k] * B[k,n] with m=20,n=40,k=64",
    "O[m] += A[m,k] * B[k] with m=45,k=130",
    "O[b,m,n] += A[b,m,k] * B[b,k,n] with b=3,m=19,n=16,k=70",
    "O[m,b,n] += A[m,b,k] * B[b,k,n] with b=2,m=32,n=32,k=64",
    "O[x,k] += A[x*2+s,c] * B[s,c,k] with x=29,k=32,s=3,c=64",
    "O[x,k] += A[x+s] * B[s,k] with x=50,k=5,s=31",
    "O[x,k] += A[x*2+s,c] * B[s,c,k] with x=29,k=20,s=5,c=3",
    "O[x,k] += A[x,c+s] * B[s,c,k] with x=19,k=17,s=3,c=7",
]


def _operator(text: str, kinds: tuple[str, str, str]) -> Operator:
    math, _, extents = text.partition(" with ")
    pairs = (pair.split("=") for pair in extents.split(","))
    dtypes = dict(zip("ABO", kinds, strict=True))
    return Operator.parse(math, {name: int(size) for name, size in pairs}, dtypes)


@needs_amx
@pytest.mark.parametrize("text", OPERATORS)
def test_bytes_are_exact(text: str) -> None:
    _check(_operator(text, ("uint8", "int8", "int32")), BYTES, draws=2, mappings=2)


@needs_amx
@pytest.mark.parametrize("rows", [14, 7])
@pytest.mark.parametrize("text", [OPERATORS[1], OPERATORS[9]])
def test_tiles_of_fewer_rows(text: str, rows: int) -> None:
    name = BYTES.replace("m16", f"m{rows}")
    _check(_operator(text, ("uint8", "int8", "int32")), name, draws=2, mappings=1)


@needs_amx
def test_rows_that_divide_an_image_need_no_copy_and_no_crop() -> None:
    extents = dict(n=1, c=64, k=32, p=14, q=14, r=1, s=1, stride=2)
    op = resolve("conv2d", extents, dtype="u8s8", layout="NHWC")
    name = BYTES.replace("m16", "m14")
    mapping = next(m for m in _space(op, name) if m.groups["i1"] == ("q",))
    nest = Nest(mapping)
    assert source_forms(nest)[0].in_place and destination_form(nest).in_place
    inputs = random_inputs(op, np.random.default_rng(2))
    np.testing.assert_array_equal(build(mapping)(**inputs), evaluate(op, inputs))


@needs_amx
@pytest.mark.parametrize("text", OPERATORS[:4])
def test_bfloats(text: str) -> None:
    _check(_operator(text, ("bfloat16", "bfloat16", "float32")), BFLOATS, draws=2, mappings=1)


@needs_amx
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_convolutions(layout: str, stride: int) -> None:
    extents = dict(n=1, c=64, k=32, p=7, q=13, r=3, s=3, stride=stride)
    _check(resolve("conv2d", extents, dtype="u8s8", layout=layout), BYTES, draws=1, mappings=5)


@needs_amx
@pytest.mark.parametrize(("channels", "stride"), [(1, 1), (3, 2), (5, 3), (13, 1)])
def test_few_channels_are_read_beside_their_neighbours(channels: int, stride: int) -> None:
    extents = dict(n=1, c=channels, k=19, p=6, q=17, r=3, s=5, stride=stride)
    op = resolve("conv2d", extents, dtype="u8s8", layout="NHWC")
    space, rng = _space(op, BYTES), np.random.default_rng(5)
    mapping = next(m for m in space if m.groups["i1"] == ("q",) and m.groups["r1"] == ("s", "c"))
    image = source_forms(Nest(mapping))[0]
    # A pixel is as far from the next as it has channels, and no element lies there twice.
    assert isinstance(image, StridedOperand) and len(image.shape) == 3
    assert image.dims[-1].index.coefficient("i1.lane") == stride * channels
    inputs = random_inputs(op, rng)
    expected = evaluate(op, inputs)
    for _ in range(2):
        kernel = build(Candidate(mapping, ScheduleSpace(mapping).sample(rng)))
        np.testing.assert_array_equal(kernel(**inputs), expected, str(kernel.candidate))


def test_rows_are_merged_only_where_steps_are_even() -> None:
    def image(text: str, kinds: tuple[str, str, str], name: str, **groups: tuple[str, ...]) -> bool:
        space = _space(_operator(text, kinds), name, "gather")
        mapping = next(m for m in space if all(m.groups[n] == g for n, g in groups.items()))
        return isinstance(source_forms(Nest(mapping))[0], StridedOperand)

    bytes_, floats = ("uint8", "int8", "int32"), ("bfloat16", "bfloat16", "float32")
    text = "O[x,k] += A[x*2+s,c] * B[s,c,k] with x=29,k=20,s=5,c=3"
    assert image(text, bytes_, BYTES, i1=("x",), r1=("s", "c"))
    # Lanes beyond the fifteen read the next pixel: zero times infinity would be no zero.
    assert not image(text, floats, BFLOATS, i1=("x",), r1=("s", "c"))
    # All channels of a pixel fill a fragment, or nothing stands behind them.
    assert image(text.replace("c=3", "c=32"), floats, BFLOATS, i1=("x",), r1=("s", "c"))
    assert image(text, floats, BFLOATS, i1=("x",), r1=("c",))
    # Every other column of a window, or a channel that runs into the next pixel.
    dilated = "O[x,k] += A[x+s*2,c] * B[s,c,k] with x=29,k=20,s=5,c=3"
    assert not image(dilated, bytes_, BYTES, i1=("x",), r1=("s", "c"))
    beyond = "O[x,k] += A[x+s,c+e] * B[s,c,e,k] with x=19,k=17,s=3,c=3,e=2"
    assert not image(beyond, bytes_, BYTES, i1=("x",), r1=("s", "c"))


@needs_amx
def test_an_epilogue_and_constants_that_are_packed_ahead() -> None:
    op = replace(_operator(OPERATORS[1], ("uint8", "int8", "int32")), constants=("B",))
    op = op.with_epilogue("u8(relu((acc + bias[n]) * scale[n]))", {"bias": "int32"})
    mapping = _space(op, BYTES)[0]
    rng = np.random.default_rng(1)
    inputs = random_inputs(mapping.operator, rng)
    expected = evaluate(mapping.operator, inputs)
    for _ in range(3):
        kernel = build(Candidate(mapping, ScheduleSpace(mapping).sample(rng)))
        kernel.pack(B=inputs["B"])
        without_b = {name: array for name, array in inputs.items() if name != "B"}
        np.testing.assert_array_equal(kernel(**without_b), expected, str(kernel.candidate))


def test_what_is_read_and_written_in_place() -> None:
    # Whole tiles of a matrix; and one pixel after another of a 1x1 convolution.
    whole = Nest(_space(_operator(OPERATORS[0], ("uint8", "int8", "int32")), BYTES)[0])
    assert source_forms(whole)[0].in_place and destination_form(whole).in_place
    op = resolve("conv2d", dict(n=1, c=64, k=16, p=8, q=6, r=1, s=1), dtype="u8s8", layout="NHWC")
    fused = next(m for m in _space(op, BYTES) if m.groups["i1"] == ("p", "q"))
    assert source_forms(Nest(fused))[0].in_place


def test_windows_overlap_in_one_copy_of_the_image() -> None:
    op = resolve("conv2d", dict(n=1, c=64, k=16, p=14, q=14, r=3, s=3), dtype="u8s8", layout="NHWC")
    space = _space(op, BYTES)
    mapping = next(m for m in space if m.groups == {"i1": ("q",), "i2": ("k",), "r1": ("c",)})
    image = source_forms(Nest(mapping))[0]
    assert isinstance(image, StridedOperand) and not image.in_place
    # One pixel of padding, and 16 lanes where 14 are used.
    assert image.shape == (1, 16, 18, 64)


def test_a_gathered_source_is_staged_as_fragments() -> None:
    op = resolve("conv2d", dict(n=1, c=64, k=16, p=14, q=14, r=3, s=3), dtype="u8s8", layout="NCHW")
    for mapping in _space(op, BYTES):
        first = source_forms(Nest(mapping))[0]
        if "c" in mapping.groups["r1"]:
            assert not isinstance(first, StridedOperand)
            assert first.shape[-2:] == (16, 64)


def _second(mapping: Mapping) -> StagedOperand:
    schedule = CpuSchedule.of(ScheduleSpace(mapping).smallest().as_dict())
    return CpuPlan(mapping, schedule, CpuLimits.here()).sources[1]


def test_the_second_source_lies_in_groups() -> None:
    mapping = _space(_operator(OPERATORS[1], ("uint8", "int8", "int32")), BYTES)[0]
    assert _second(mapping).shape[-3:] == (16, 16, 4)
    wide = _space(_operator(OPERATORS[1], ("bfloat16", "bfloat16", "float32")), BFLOATS)[0]
    assert _second(wide).shape[-3:] == (16, 16, 2)


def test_eight_registers_hold_six_accumulators() -> None:
    mapping = _space(_operator(OPERATORS[3], ("uint8", "int8", "int32")), BYTES)[0]
    space = ScheduleSpace(mapping)
    tiles = {
        variable: values for variable, values in space.variables.items() if "tile." in variable
    }
    assert max(int(size) for size in tiles["tile.i1.tile"]) <= 8
    rng = np.random.default_rng(0)
    seen = {space.sample(rng).tile["i1.tile"] for _ in range(60)}
    assert max(seen) <= 6


def test_a_long_reduction_of_few_tiles_is_whole() -> None:
    """Kernels on tile registers make no parts of it, so that no space offers any."""
    op = _operator("O[m,n] += A[m,k] * B[k,n] with m=5,n=16,k=65536", ("uint8", "int8", "int32"))
    (mapping, *_), rng = _space(op, BYTES), np.random.default_rng(0)
    for schedule in ScheduleSpace(mapping).draw(4, rng):
        program, module = schedule_candidate(
            Candidate(mapping, schedule), "native", CpuLimits.here()
        )
        assert program.plan.split is None and "tdpbusd" in module.script()


@needs_amx
def test_tiles_are_set_up_and_given_back_in_every_parallel_range() -> None:
    mapping = _space(_operator(OPERATORS[0], ("uint8", "int8", "int32")), BYTES)[0]
    text = build(mapping).assembly
    for instruction in ("ldtilecfg", "tdpbusd", "tileloadd", "tilestored", "tilerelease"):
        assert instruction in text


def test_a_system_that_denies_the_tiles_is_an_error_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Denies:
        def syscall(self, *numbers: int) -> int:
            ctypes.set_errno(95)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Denies())
    monkeypatch.setattr("amos.runtime.kernel.cpu", _with_amx)
    amx.ask_for_tiles.cache_clear()
    mapping = _space(_operator(OPERATORS[0], ("uint8", "int8", "int32")), BYTES)[0]
    try:
        with pytest.raises(BuildError, match=r"does not grant this process the tile registers"):
            build(mapping)
    finally:
        amx.ask_for_tiles.cache_clear()


def _with_amx() -> object:
    return replace(cpu(), features=cpu().features | {"amx_tile", "amx_int8"})


def test_a_cpu_without_amx_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = replace(cpu(), features=frozenset({"avx512_vnni"}))
    monkeypatch.setattr("amos.runtime.kernel.cpu", lambda: lacking)
    mapping = _space(_operator(OPERATORS[0], ("uint8", "int8", "int32")), BYTES)[0]
    with pytest.raises(BuildError, match="it needs amx_tile, amx_int8, which this CPU lacks"):
        build(mapping, implementation="native")


def _scheduled(mapping: Mapping) -> str:
    """The program of the smallest schedule, on tile registers."""
    candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
    return str(schedule_candidate(candidate, "native", CpuLimits.here())[1].script())


def _right(mapping: Mapping) -> None:
    inputs = random_inputs(mapping.operator, np.random.default_rng(1))
    got, expected = build(mapping)(**inputs), evaluate(mapping.operator, inputs)
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    for first_pair, second_pair in pairs:
        np.testing.assert_array_equal(first_pair, second_pair, mapping.name)


PADDED = [
    ("O[i,j] += pad(A[i-1]) * B[j] with i=20,j=20", (20,)),
    ("O[p,q,k] += pad(A[p-1,q-1]) * B[k] with p=8,q=8,k=16", (6, 6)),
    ("O[i,j] += pad(A[j-1]) * B[i] with i=5,j=40", (40,)),
]


@pytest.mark.parametrize(("text", "shape"), PADDED)
def test_padding_where_a_dimension_of_the_unit_stays_empty(
    text: str, shape: tuple[int, ...]
) -> None:
    math, _, extents = text.partition(" with ")
    pairs = (pair.split("=") for pair in extents.split(","))
    op = Operator.parse(math, {name: int(n) for name, n in pairs}, shapes={"A": shape})
    for mapping in _space(op, BYTES, "gather"):
        assert "tdpbusd" in _scheduled(mapping)
    _right(mapping)


@pytest.mark.parametrize("result", ["res[n] max= acc", "res[n*2 + 1] = acc", "res[k,n%2,p] = acc"])
def test_a_further_result_along_a_loop_of_one_step(result: str) -> None:
    """A loop of one step around the calls has no place among the accumulators."""
    extents = dict(p=1, n=1, k=1, c=31) if "*" in result else dict(p=6, n=1, k=10, c=31)
    op = Operator.parse("O[p,n,k] += A[n,p,c] * B[k,c]", extents).with_result(result)
    for mapping in _space(op, BYTES.replace("m16", "m7"), "gather"):
        assert "tdpbusd" in _scheduled(mapping)
    _right(mapping)
