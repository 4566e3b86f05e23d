"""Operators whose names are those of generated code: TIR, split reductions, calls, C."""

from __future__ import annotations

import itertools
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import amos
from amos.codegen.naming import Names
from amos.codegen.scheduling import schedule_candidate
from amos.errors import BuildError
from amos.export import export
from amos.ir import Operator
from amos.machine.limits import CpuLimits
from amos.plan import Candidate, Schedule
from amos.schedule import ScheduleSpace
from amos.validate import evaluate, random_inputs

x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")
UNIT = amos.intrinsics.get("avx512_fmadd_m16_f32_f32")
#: Loops of a convolution, and what strangers may call them.
LOOPS = ("n", "k", "p", "q", "c", "r", "s")
NASTY = (
    ("i3", "i4", "i5", "i6", "i0", "i1", "i2"),
    ("v_i0_o", "v_i1", "ax0", "main", "i0", "v_i0", "v_c_o"),
    ("i1_tile", "r1_lane", "reduce_part", "reduce", "r1_tile", "i1_lane", "reduce_lane"),
    ("c_0", "c_1", "i0_0", "i0_fused", "c", "c_0_init", "c_1_1"),
    ("order", "tile", "used", "capacity", "block", "split", "stage"),
    ("class", "lambda", "None", "for", "int", "register", "acc"),
    ("row", "column", "step", "x", "self", "out", "main_init"),
)
#: Tensors that clash with C, its headers, and what its kernels call themselves.
TENSORS = (
    "NULL", "int32_t", "linux", "errno", "stdin", "x", "out_", "main", "printf", "memcpy",
    "workspace", "lane", "given", "packed_weight", "static_cast", "register", "load_f32x16",
    "f32x16", "_mm512_fmadd_ps", "UINT64_C", "at_c", "of_a", "i0", "acc_", "self", "sum", "size_t",
    "times", "bfloat16", "wrong", "digest",
)  # fmt: skip


#: Extents of those loops, by the parts of the reduction.
SIZES = {1: (2, 19, 4, 3, 6, 3, 2), 2: (1, 19, 2, 1, 259, 3, 3)}


def convolution(names: tuple[str, ...], split: int) -> Operator:
    """One that is large in its spatial loops, or so small that its reduction is split."""
    n, k, p, q, c, r, s = names
    return Operator.parse(
        f"out[{n},{p},{q},{k}] += pad(image[{n},{p}+{r}-1,{q}+{s}-1,{c}])"
        f" * weight[{r},{s},{c},{k}]",
        extents=dict(zip(names, SIZES[split], strict=True)),
    )


def candidates(names: tuple[str, ...], split: int) -> Iterator[Candidate]:
    """The same mappings under the same schedules, whatever the loops are called."""
    matched = amos.enumerate_mappings(convolution(LOOPS, split), UNIT, rule="gather")
    space = amos.enumerate_mappings(convolution(names, split), UNIT, rule="gather")
    renamed = Names({}, dict(zip(LOOPS, names, strict=True)))
    rng = np.random.default_rng(0)
    for number in rng.integers(0, len(space), 2):
        values = ScheduleSpace(matched[int(number)]).sample(rng).as_dict() | {"split": split}
        tiles: dict[str, int | str] = {}
        for key, value in values.items():
            head, _, loop = key.partition(".")
            if head in ("order", "reduce"):
                value = " ".join(map(renamed.loop, str(value).split()))
            tiles[f"{head}.{renamed.loop(loop)}" if head in ("tile", "block") else key] = value
        yield Candidate(space[int(number)], Schedule.of(tiles))


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("names", NASTY, ids=" ".join)
def test_tensor_ir_does_not_depend_on_names(names: tuple[str, ...], split: int) -> None:
    from tvm_ffi import structural_equal

    for nasty, plain in zip(candidates(names, split), candidates(LOOPS, split), strict=True):
        generated, expected = (
            schedule_candidate(each, "generic", CpuLimits.here())[1] for each in (nasty, plain)
        )
        assert structural_equal(generated, expected), nasty.schedule


@pytest.mark.parametrize(("names", "split"), [(NASTY[0], 2), (NASTY[3], 1)])
def test_kernels_are_right(names: tuple[str, ...], split: int) -> None:
    candidate = next(candidates(names, split))
    inputs = random_inputs(candidate.mapping.operator, np.random.default_rng(0))
    expected = evaluate(candidate.mapping.operator, inputs)
    np.testing.assert_allclose(amos.build(candidate)(**inputs), expected, atol=1e-3)


def test_a_reduction_loop_called_like_a_spatial_variable() -> None:
    op = Operator.parse(
        "out[p,k] += pad(x[p-1,i0,s]) * w[i0,s,k]",
        extents=dict(p=4, k=8, i0=4, s=3),
        shapes=dict(x=(3, 4, 3)),
    )
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get("avx2_fmadd_m8_f32_f32"))[0]
    inputs = random_inputs(mapping.operator, np.random.default_rng(0))
    expected = evaluate(mapping.operator, inputs)
    np.testing.assert_allclose(amos.build(mapping)(**inputs), expected, atol=1e-3)


def test_inputs_called_out_and_self() -> None:
    op = Operator.parse("y[i,j] += out[i,k] * self[k,j]", extents=dict(i=3, j=17, k=5))
    kernel = amos.build(amos.enumerate_mappings(op, UNIT)[0])
    assert kernel.inputs == ("out", "self")
    a, b = np.ones((3, 5), np.float32), np.ones((5, 17), np.float32)
    np.testing.assert_array_equal(kernel(out=a, self=b), np.full((3, 17), 5))
    np.testing.assert_array_equal(kernel(a, self=b), np.full((3, 17), 5))
    written = np.zeros((3, 17), np.float32)
    assert kernel(a, b, out=written) is written and written[2, 16] == 5
    arguments = kernel.prepare({"out": a, "self": b}, out := np.zeros((3, 17), np.float32))
    kernel.run(arguments)
    np.testing.assert_array_equal(out, np.full((3, 17), 5))
    with pytest.raises(BuildError, match="missing input self"):
        kernel(out=a)


def test_constants_called_self_are_packed() -> None:
    op = Operator.parse(
        "y[i,j] += out[i,k] * self[j,k]", extents=dict(i=3, j=17, k=5), constants=["self"]
    )
    kernel = amos.build(amos.enumerate_mappings(op, UNIT)[0]).pack(
        self=np.ones((17, 5), np.float32)
    )
    got = kernel(out=np.ones((3, 5), np.float32))
    np.testing.assert_array_equal(got, np.full((3, 17), 5))


@x86
@pytest.mark.parametrize("loops", [("i", "k", "c"), ("sum", "NULL", "x")], ids=" ".join)
def test_exported_c(loops: tuple[str, ...], tmp_path: Path) -> None:
    """A kernel of thirty tensors with such names: its own test program finds it right."""
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("no make and C compiler here")
    i, k, c = loops
    op = Operator.parse(
        f"out[{i},{k}] += class[{i},{c}] * weight[{k},{c}]",
        extents={i: 3, k: 18, c: 7},
        dtypes={"class": "u8", "weight": "s8", "out": "s32"},
    )
    total = "acc" + "".join(f" + {name}[{k}]" for name in TENSORS)
    op = op.with_epilogue(total, dtypes=dict.fromkeys(TENSORS, "int32"))
    mapping = amos.enumerate_mappings(op, amos.intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32"))[0]
    candidate = Candidate(mapping, ScheduleSpace(mapping).smallest())
    export(candidate, "c", tmp_path, name="kernel", implementation="generic")
    header = (tmp_path / "kernel.h").read_text(encoding="utf-8")
    for name in ("class", *TENSORS):
        assert re.search(rf"^ \*   \w+: {name}, ", header, re.MULTILINE), name
    done = subprocess.run(
        ["make", "-f", "kernel.mk", "test", "CFLAGS=-O1 -fwrapv -Wno-psabi -Wall -Wextra"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "elements are right" in done.stdout
    kernel = subprocess.run(
        ["cc", "-fsyntax-only", "-x", "c++", "kernel.h"], cwd=tmp_path, capture_output=True
    )
    assert kernel.returncode == 0, kernel.stderr


def test_names_are_different_whatever_they_were() -> None:
    """Every choice of three names out of some that are close to each other."""
    close = ("c", "c_", "user_c", "user_c_1", "a", "a.b", "a_b", "1")
    own = re.compile("c|a_b")
    for names in itertools.permutations(close, 3):
        op = Operator.parse("o[x] += t[x,y] * u[y,z]", extents=dict(x=2, y=3, z=4)).rename(
            lambda name: name, dict(zip("xyz", names, strict=True)).__getitem__
        )
        spelled = list(Names.of(op, own).iterations.values())
        assert len(set(spelled)) == 3
        assert all(re.fullmatch(r"[A-Za-z_]\w*", n, re.ASCII) for n in spelled)
        assert not any(map(own.fullmatch, spelled))
