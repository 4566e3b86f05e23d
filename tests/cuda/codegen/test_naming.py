"""Operators whose names are those of CUDA kernels."""

from __future__ import annotations

import re

import numpy as np
import pytest

import amos
from amos import machines
from amos.cuda import GpuSchedule
from amos.cuda.codegen import KernelText, draw_inputs, emulate
from amos.cuda.codegen.emulate import compiler
from amos.cuda.codegen.text import OWN
from amos.cuda.plan import GpuPlan
from amos.errors import ExportError
from amos.export import export
from amos.intrinsics import Intrinsic
from amos.ir import Operator
from amos.mapping import Mapping
from amos.plan import Candidate, Structure
from amos.schedule import ScheduleSpace

needs_compiler = pytest.mark.skipif(
    compiler() is None, reason="kernels run on the host with g++ or clang++; there is none"
)
WMMA = amos.intrinsics.get("wmma_m16n16k16_f16_f32")
MMA = amos.intrinsics.get("mma_sync_m16n8k16_f16_f32")
LOOPS = ("zn", "zp", "zq", "zr")
NASTY = (
    ("step", "row", "column", "reduction"),
    ("c", "first_c", "at_c", "c_"),
    ("i1_tile", "i1", "reduce", "r1"),
    ("warp", "t_stage", "stage", "warp_warp"),
    ("NULL", "static_cast", "int32_t", "class"),
)
#: Tensors that clash with C++, CUDA's headers, and what kernels call themselves.
TENSORS = (
    "NULL", "int32_t", "static_cast", "shared_Src1", "threadIdx", "half", "__half", "x", "sum",
    "row", "column", "step", "e", "lane", "first_p", "at_row", "i1", "linux", "kept_Src1",
    "copy_async", "f_add", "wmma", "stream", "self", "std", "printf", "begin", "user_x", "dim3",
)  # fmt: skip


def product(loops: tuple[str, ...], inputs: tuple[str, str] = ("a", "b")) -> Operator:
    n, p, q, r = loops
    a, b = inputs
    return Operator.parse(
        f"out[{n},{p},{q}] += {a}[{n},{p},{r}] * {b}[{q},{r}]",
        extents=dict(zip(loops, (3, 20, 17, 40), strict=True)),
        dtypes={a: "f16", b: "f16", "out": "f32"},
    )


def cut(mapping: Mapping) -> GpuPlan:
    """Several warps, tiles, steps and stages, so that everything has a name."""
    loops = Structure(mapping).spatial
    tile = {x.name: min(2, x.extent) for x in loops}
    schedule = GpuSchedule(tile=tile, warps={loops[-1].name: 2}, steps=2, stages=2)
    return GpuPlan(mapping, schedule, "sm_80")


def spread(mapping: Mapping) -> list[Mapping]:
    """The mapping that leaves the most loops outside, and the one that leaves the fewest."""
    space = amos.enumerate_mappings(mapping.operator, mapping.intrinsic, rule="gather")
    ordered = sorted(space, key=lambda m: (len(m.outer), m.assignment))
    return [ordered[-1], ordered[0]]


@needs_compiler
def test_loops() -> None:
    op = product(("step", "row", "column", "reduction"))
    mapping = spread(amos.enumerate_mappings(op, WMMA, rule="gather")[0])[0]
    plan = cut(mapping)
    assert emulate(plan, draw_inputs(plan, np.random.default_rng(0))).problem == ""


@pytest.mark.parametrize("unit", [WMMA, MMA], ids=lambda unit: unit.family)
@pytest.mark.parametrize("loops", NASTY, ids=" ".join)
def test_text_does_not_depend_on_names(loops: tuple[str, ...], unit: Intrinsic) -> None:
    """Whatever loops are called, the text is the same up to what they are called in it."""
    plain = spread(amos.enumerate_mappings(product(LOOPS), unit, rule="gather")[0])
    nasty = spread(amos.enumerate_mappings(product(loops), unit, rule="gather")[0])
    for actual, reference in zip(plain, nasty, strict=True):
        plan = [
            _with_numbered_loops(KernelText(cut(each), "kernel")) for each in (actual, reference)
        ]
        assert plan[0] == plan[1]


def _with_numbered_loops(text: KernelText) -> list[str]:
    """Lines of a kernel, sorted, as those of a copy follow the names of loops."""
    numbers = {name: f"loop{n}" for n, name in enumerate(text.names.iterations.values())}
    alternatives = "|".join(sorted(numbers, key=len, reverse=True))
    code = text.source[text.source.index('extern "C"') :]
    pattern = rf"\b((?:first|warp|t|at)_|)({alternatives})\b"
    return sorted(re.sub(pattern, lambda m: m[1] + numbers[m[2]], code).splitlines())


@needs_compiler
def test_tensors() -> None:
    """A kernel of thirty tensors with such names, loops too."""
    op = product(("row", "e", "at_row", "sum"), ("class", "shared_Src2"))
    total = "acc" + "".join(f" + {name}[e]" for name in TENSORS)
    op = op.with_epilogue(total, dtypes=dict.fromkeys(TENSORS, "float32"))
    mapping = spread(amos.enumerate_mappings(op, MMA, rule="gather")[0])[1]
    plan = cut(mapping)
    assert emulate(plan, draw_inputs(plan, np.random.default_rng(0))).problem == ""


@pytest.mark.parametrize("unit", [WMMA, MMA], ids=lambda unit: unit.family)
def test_every_identifier_of_a_kernel_is_listed(unit: Intrinsic) -> None:
    """What the text calls its own, or makes of a loop's name, no name of an operator may be."""
    op = product(("zqn", "zqp", "zqq", "zqr"), ("zqa", "zqb"))
    users = {"zqn", "zqp", "zqq", "zqr", "zqa", "zqb", "out"}
    for mapping in spread(amos.enumerate_mappings(op, unit, rule="gather")[0]):
        source = KernelText(cut(mapping), "kernel").source
        start = source.index('extern "C"')
        body = re.sub(r"//.*|#.*|\"[^\"]*\"", "", source[start:])
        body = re.sub(r"(?<=[.:])\s*[A-Za-z_]\w*|\b\d\w*", "", body)
        words = set(re.findall(r"[A-Za-z_]\w*", body)) - users - {"kernel"}
        assert not {word for word in words if not OWN.fullmatch(word)}


@pytest.mark.parametrize("loops", [("n", "p", "q", "reduce"), ("reduce", "p", "q", "order")])
def test_loops_called_like_variables_of_a_schedule(loops: tuple[str, ...]) -> None:
    plain = amos.enumerate_mappings(product(LOOPS), WMMA, rule="gather")
    nasty = amos.enumerate_mappings(product(loops), WMMA, rule="gather")
    machine = machines.get("a100")
    for number in range(len(plain)):
        spaces = [ScheduleSpace(space[number], machine) for space in (plain, nasty)]
        assert spaces[0].csp.size == spaces[1].csp.size
        values = [list(s.sample(np.random.default_rng(1)).as_dict().values()) for s in spaces]
        assert len(values[0]) == len(values[1])
        schedule = spaces[1].sample(np.random.default_rng(2))
        KernelText(GpuPlan.of(nasty[number], schedule, "sm_80")).source  # noqa: B018


def test_a_kernel_cannot_have_a_name_of_its_text(tmp_path: object) -> None:
    mapping = amos.enumerate_mappings(product(LOOPS), WMMA)[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping, machines.get("a100")).smallest())
    with pytest.raises(ExportError, match="CUDA kernels use it themselves"):
        export(candidate, "cuda", str(tmp_path), name="multiply_add")
