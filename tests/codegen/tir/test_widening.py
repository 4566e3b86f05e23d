"""Sources that are staged in a wider dtype than the operator has them in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import amos
from amos.errors import BuildError, IntrinsicError, MappingError, OperatorError
from amos.intrinsics import Memory
from amos.ir import Operator, dtype
from amos.machine.cpu import cpu
from amos.machine.limits import CpuLimits
from amos.plan import Candidate, CpuSchedule
from amos.plan.cpu_plan import CpuPlan
from amos.schedule import ScheduleSpace
from amos.schedule.constraints import In
from amos.validate import evaluate, random_inputs

pytestmark = pytest.mark.features

UNITS = [
    "avx2_pmaddwd_m8k2_u8_s8_s32",
    "avx2_pmaddwd_lhs_m8k2_u8_s8_s32",
    "avx512_pmaddwd_m16k2_u8_s8_s32",
    "avx2_pmaddwd_m8k2_s8_s32",
    "avx2_pmaddubsw_m8k4_u8_s7_s32",
    "avx512_pmaddubsw_lhs_m16k4_u7_s8_s32",
    "avx2_fmadd_m8_f16_f32",
    "avx512_fmadd_m16_bf16_f32",
]
TEXTS = {
    "padded": "out[k,p,q] += pad(a[c,p*2+r-1,q+s-1]) * b[k,c,r,s]",
    "windows": "out[p,q,k] += a[p+r,q,c] * b[k,r,c]",
    "matrices": "out[i,j] += a[i,c] * b[j,c]",
}
#: Instructions whose sources both fill the lanes, and what only they compute.
LANES = [
    "avx2_pmaddwd_lanes_m8k2_u8_s8_s32",
    "avx2_pmaddwd_lanes_m8k2_s8_s32",
    "avx2_pmaddubsw_lanes_m8k4_u8_s7_s32",
    "avx512_pmaddubsw_lanes_m16k4_u7_s8_s32",
]
DEPTHWISE = "out[p,q,k] += pad(a[p+r-1,q+s-1,k]) * b[k,r,s]"
EXTENTS = dict(k=19, p=5, q=7, c=11, r=3, s=3, i=23, j=18)


def operator(text: str, unit: amos.Intrinsic) -> Operator:
    names = {name: n for name, n in EXTENTS.items() if name in text.replace("pad", "")}
    kinds = dict(zip(("a", "b", "out"), (each.declared for each in unit.kinds), strict=True))
    shapes = {"a": (11, 10, 7)} if text == TEXTS["padded"] else None
    return Operator.parse(text, extents=names, dtypes=kinds, shapes=shapes, constants=("b",))


def candidates(op: Operator, unit: amos.Intrinsic, count: int) -> list[Candidate]:
    rng = np.random.default_rng(7)
    candidates: list[Candidate] = []
    space = amos.enumerate_mappings(op, unit, rule="gather", commute=True)
    while len(candidates) < count:
        mapping = space[int(rng.integers(len(space)))]
        schedules = ScheduleSpace(mapping)
        if "copy" in schedules.variables and len(candidates) % 2:
            schedules = schedules.fix([In("copy", ("vectors",))])
        candidates.append(Candidate(mapping, schedules.sample(rng)))
    return candidates


@pytest.mark.parametrize("implementation", ["native", "generic"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        # Two of the three, in turns.
        *(
            (x, text)
            for n, x in enumerate(UNITS)
            for m, text in enumerate(TEXTS.values())
            if m != n % 3
        ),
        *((name, DEPTHWISE) for name in LANES),
    ],
)
def test_kernels_are_exact(name: str, text: str, implementation: str) -> None:
    unit = amos.intrinsics.get(name)
    if implementation == "native" and not set(unit.requires) <= cpu().features:
        pytest.skip(f"this CPU lacks {', '.join({*unit.requires} - cpu().features)}")
    op = operator(text, unit)
    inputs = random_inputs(op, np.random.default_rng(0))
    expected = evaluate(op, inputs)
    for candidate in candidates(op, unit, 2 if implementation == "native" else 1):
        kernel = amos.build(candidate, implementation=implementation)
        for got in (kernel(**inputs), kernel.pack(b=inputs["b"])(a=inputs["a"])):
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3)
            else:
                np.testing.assert_array_equal(got, expected, str(candidate))


def test_nothing_is_read_in_place() -> None:
    unit = amos.intrinsics.get(UNITS[0])
    op = Operator.parse(
        "out[i,j] += a[i,c] * b[c,j]",
        extents=dict(i=8, j=8, c=8),
        dtypes=dict(a="uint8", b="int8", out="int32"),
        constants=("b",),
    )
    for mapping in amos.enumerate_mappings(op, unit, rule="gather"):
        schedule = CpuSchedule.of(ScheduleSpace(mapping).smallest().as_dict())
        plan = CpuPlan(mapping, schedule, CpuLimits(2, 1 << 20))
        assert [plan.form(source) for source in plan.sources] == ["gathered", "packed"]
        assert [source.kind for source in plan.sources] == ["int16", "int16"]


RANGED = dict(a="uint8", b="s8 in [-64, 63]", out="int32")


def test_a_declared_range_is_held_to() -> None:
    """Wherever constants are packed, with the first offending element."""
    text, extents = "out[i,j] += a[i,c] * b[c,j]", dict(i=8, j=8, c=8)
    op = Operator.parse(text, extents=extents, dtypes=RANGED, constants=("b",))
    unit = amos.intrinsics.get("avx2_pmaddubsw_m8k4_u8_s7_s32")
    kernel = amos.build(amos.enumerate_mappings(op, unit)[0], implementation="generic")
    inputs = random_inputs(op, np.random.default_rng(0))
    assert inputs["b"].min() >= -64 and inputs["b"].max() <= 63
    np.testing.assert_array_equal(kernel(**inputs), evaluate(op, inputs))
    inputs["b"][2, 5] = 64
    for refused in (lambda: kernel(**inputs), lambda: kernel.pack(b=inputs["b"])):
        with pytest.raises(BuildError, match=r"'b'.*\[-64, 63\], got 64 at \[2, 5\]"):
            refused()
    with pytest.raises(OperatorError, match=r"\[-64, 63\], got 64 at \[2, 5\]"):
        evaluate(op, inputs)


def test_who_takes_a_declared_range() -> None:
    """An instruction of whole bytes, but one of half a range takes no whole bytes."""
    text, extents = "out[i,j] += a[i,c] * b[c,j]", dict(i=8, j=8, c=8)
    ranged = Operator.parse(text, extents=extents, dtypes=RANGED)
    bytes_ = Operator.parse(text, extents=extents, dtypes=RANGED | {"b": "int8"})
    for name in ("avx2_pmaddwd_m8k2_u8_s8_s32", "vnni_dpbusd_m16k4_u8_s8_s32"):
        unit = amos.intrinsics.get(name)
        assert len(amos.enumerate_mappings(ranged, unit)) == len(
            amos.enumerate_mappings(bytes_, unit)
        )
    with pytest.raises(
        MappingError, match=r"`b` is int8, its operand `Src2` is int8 in \[-64, 64\]"
    ):
        amos.enumerate_mappings(bytes_, amos.intrinsics.get("avx2_pmaddubsw_m8k4_u8_s7_s32"))


def test_no_gpu_kernel_converts() -> None:
    wmma = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
    memory = [replace(m, staged="f32" if m.direction == "load" else "") for m in wmma.memory]
    unit = replace(wmma, memory=tuple(memory))
    op = operator(TEXTS["matrices"], unit)
    mapping = amos.enumerate_mappings(op, unit)[0]
    machine = amos.machines.get("a100")
    schedule = ScheduleSpace(mapping, machine).smallest()
    with pytest.raises(BuildError, match="in their own dtypes"):
        amos.plan(Candidate(mapping, schedule), machine)


@pytest.mark.parametrize(
    ("wide", "narrow", "holds"),
    [
        ("s16", "u8", True),
        ("s16", "s8", True),
        ("u16", "s8", False),
        ("s8", "u8", False),
        ("f32", "bf16", True),
        ("f16", "bf16", False),
        ("f32", "f64", False),
        ("s16", "f16", False),
    ],
)
def test_what_holds_every_value(wide: str, narrow: str, holds: bool) -> None:
    assert dtype(wide).represents(dtype(narrow)) == holds
    memory = [
        Memory.parse("reg.Src1[] = memory.Src1[addr_a]", staged=wide),
        Memory.parse("reg.Src2[] = memory.Src2[addr_b]"),
        Memory.parse("memory.Dst[addr_c] = reg.Dst[]"),
    ]
    kinds = {"Src1": narrow, "Src2": narrow, "Dst": "s32" if dtype(narrow).is_integer else "f64"}

    def define() -> amos.Intrinsic:
        return amos.Intrinsic.define(
            "wide_m4", "Dst[i1] += Src1[i1] * Src2[i1]", {"i1": 4}, kinds, memory,
            family="wide", source="a test",
        )  # fmt: skip

    if holds:
        assert define().staged_dtypes[0] == dtype(wide).name
    else:
        with pytest.raises(IntrinsicError, match="every value of a source's"):
            define()
