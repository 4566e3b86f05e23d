"""Results stored elsewhere than the statement says, on every target, held against NumPy."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import amos
from amos import intrinsics
from amos.cuda import GpuSchedule
from amos.cuda.codegen.emulate import compiler, draw_inputs, emulate
from amos.cuda.plan import GpuPlan
from amos.errors import BuildError
from amos.export import export
from amos.ir import Operator
from amos.plan import Candidate
from amos.runtime import build
from amos.schedule import ScheduleSpace, candidate_of
from amos.validate import evaluate, random_inputs

GEMM = "out[i,j] += a[i,k] * weight[j,k]"
CONV = "out[n,p,q,k] += image[n,p+r,q+s,c] * weight[k,r,s,c]"
NCHW = "out[n,k,p,q] += image[n,c,p+r,q+s] * weight[k,c,r,s]"
BYTES = dict(a="uint8", image="uint8", weight="int8", out="int32")
VNNI = "vnni_dpbusd_m16k4_u8_s8_s32"
AMX = "amx_tdpbusd_m16n16k64_u8_s8_s32"
CASES = [
    (GEMM, dict(i=12, j=32, k=16), VNNI, "u8(relu((acc + bias[j]) * s[]))"),
    (GEMM, dict(i=7, j=24, k=9), VNNI, None),
    (GEMM, dict(i=20, j=18, k=30), AMX, "s8(acc * s[] + skip[i,j])"),
    (CONV, dict(n=2, p=6, q=4, k=32, r=2, s=2, c=8), VNNI, None),
    (CONV, dict(n=1, p=5, q=6, k=20, r=1, s=3, c=4), AMX, None),
    (NCHW, dict(n=1, k=8, p=6, q=10, r=2, s=1, c=6), VNNI, "acc * s[k]"),
    (GEMM, dict(i=9, j=20, k=12), "avx512_fmadd_m16_f32_f32", "acc + bias[j]"),
]  # fmt: skip


def operator(text: str, extents: dict[str, int], epilogue: str | None, kinds: object) -> Operator:
    """An operator with every dtype set, as far as it has such tensors."""
    names = re.findall(r"(\w+)\[", text)
    dtypes = {n: (BYTES[n] if kinds == "bytes" else str(kinds)) for n in names}
    dtypes |= {"out": "float32"} if kinds == "float16" else {}
    op = Operator.parse(text, extents, dtypes)
    return op if epilogue is None else op.with_epilogue(epilogue)


@dataclass(frozen=True)
class Digit:
    """Some digits of an iteration, and what one step of them moves a result by."""

    name: str
    divide: int
    size: int
    step: int = 1

    def __str__(self) -> str:
        divided = f"{self.name}//{self.divide}" if self.divide > 1 else self.name
        return f"{divided}%{self.size}*{self.step}"


@dataclass(frozen=True)
class Drawn:
    """An operator with an output of any order, dimensions merged and split, and margins."""

    op: Operator
    dims: list[tuple[int, list[Digit]]]

    @staticmethod
    def of(op: Operator, rng: np.random.Generator) -> Drawn:
        """Draw the output."""
        digits = [each for it in op.spatial for each in _digits(it.name, it.extent, rng)]
        digits = [digits[n] for n in rng.permutation(len(digits))]
        cuts = [n for n in range(1, len(digits)) if rng.random() < 0.6]
        dims, shape = [], []
        for first, last in zip([0, *cuts], [*cuts, len(digits)], strict=True):
            step, merged = 1, list[Digit]()
            for digit in reversed(digits[first:last]):
                merged.append(replace(digit, step=step))
                step *= digit.size
            before, after = (int(n) for n in rng.integers(0, 3, 2) * (rng.random() < 0.3))
            dims.append((before, merged))
            shape.append(before + step + after)
        indices = [" + ".join(map(str, (*merged, before))) for before, merged in dims]
        return Drawn(op.with_output(f"y[{', '.join(indices)}]", {"y": shape}), dims)

    def placed(self, plain: np.ndarray) -> np.ndarray:
        """Results of the operator without this output, moved one by one."""
        moved = np.zeros(self.op.stored.tensor.shape, plain.dtype)
        names = [it.name for it in self.op.spatial]
        for point in np.ndindex(*(it.extent for it in self.op.spatial)):
            at = dict(zip(names, point, strict=True))
            where = [
                before + sum(at[x.name] // x.divide % x.size * x.step for x in digits)
                for before, digits in self.dims
            ]
            moved[tuple(where)] = plain[point]
        return moved


def _digits(name: str, extent: int, rng: np.random.Generator) -> list[Digit]:
    factors = [n for n in range(2, extent) if extent % n == 0]
    if not factors or rng.random() < 0.5:
        return [Digit(name, 1, extent)]
    low = int(rng.choice(factors))
    return [Digit(name, low, extent // low), Digit(name, 1, low)]


def _candidates(op: Operator, unit: str, rng: np.random.Generator) -> Iterator[Candidate]:
    space = amos.enumerate_mappings(op, unit, "gather")
    for number in rng.permutation(len(space))[:1]:
        mapping = space[int(number)]
        if unit.startswith("amx"):  # a tile of its fragments is long in generic code
            yield candidate_of(mapping, None)
        else:
            yield Candidate(mapping, ScheduleSpace(mapping).sample(rng))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_drawn_outputs(number: int) -> None:
    text, extents, unit, epilogue = CASES[number]
    rng = np.random.default_rng(number)
    plain = operator(text, extents, epilogue, "float32" if "f32_f32" in unit else "bytes")
    inputs = random_inputs(plain, rng)
    expected = evaluate(plain, inputs)
    for mapped in range(2):
        output = Drawn.of(plain, rng)
        op, result = output.op, output.placed(expected)
        np.testing.assert_array_equal(evaluate(op, inputs), result)
        for candidate in _candidates(op, unit, rng):
            np.testing.assert_array_equal(amos.simulate(candidate.mapping, inputs), result)
            kernel = build(candidate, implementation="generic")
            message = f"{op}, {candidate}, {mapped}"
            np.testing.assert_array_equal(kernel(**inputs), result, message)
            # What the operator does not reach is left alone.
            out = np.full(result.shape, 77, result.dtype)
            kernel(**inputs, out=out)
            reached = output.placed(np.ones(expected.shape, bool))
            np.testing.assert_array_equal(out, np.where(reached, result, result.dtype.type(77)))


def test_mappings_are_those_without_it() -> None:
    op = operator(*CASES[5][:2], None, "bytes")
    for text in ("y[q, p, k, n]", "y[n, k*60 + p*10 + q]", "y[k//2, n, p%3, q, p//3, k%2]"):
        names = [m.name for m in amos.enumerate_mappings(op.with_output(text), CASES[5][2])]
        assert names == [m.name for m in amos.enumerate_mappings(op, CASES[5][2])]


@pytest.mark.parametrize("text", ["y[i, j, i]", "y[i + j, j]", "y[j, j%4, i + 1, j//2]"])
def test_elements_that_are_no_box(text: str) -> None:
    """An iteration in several dimensions: a diagonal, a band, and digits that say it twice."""
    rng = np.random.default_rng(1)
    plain = operator(GEMM, dict(i=9, j=19, k=16), None, "bytes")
    op, inputs = plain.with_output(text), random_inputs(plain, rng)
    sums, expected = evaluate(plain, inputs), np.zeros(plain.with_output(text).result.shape)
    for i, j in np.ndindex(9, 19):
        expected[tuple(op.stored.at({"i": i, "j": j}))] = sums[i, j]
    for candidate in _candidates(op, VNNI, rng):
        np.testing.assert_array_equal(amos.simulate(candidate.mapping, inputs), expected)
        kernel = build(candidate, implementation="generic")
        np.testing.assert_array_equal(kernel(**inputs), expected)
    if compiler() is not None:
        half = operator(GEMM, dict(i=9, j=19, k=16), None, "float16").with_output(text)
        mapping = amos.enumerate_mappings(half, "wmma_m16n16k16_f16_f32")[0]
        plan = GpuPlan(mapping, GpuSchedule(), "sm_80")
        assert emulate(plan, draw_inputs(plan, rng)).problem == ""


def test_a_split_reduction() -> None:
    op = operator(GEMM, dict(i=1, j=13, k=4 * 515), None, "bytes").with_output("y[j, i]")
    mapping = amos.enumerate_mappings(op, VNNI)[0]
    space, rng = ScheduleSpace(mapping), np.random.default_rng(0)
    schedule = space.repair(space.sample(rng).as_dict() | {"split": 2}, rng)
    assert schedule.as_dict()["split"] == 2
    inputs = random_inputs(op, rng)
    kernel = build(Candidate(mapping, schedule), implementation="generic")
    np.testing.assert_array_equal(kernel(**inputs), evaluate(op, inputs))


def test_two_kernels_write_one_tensor() -> None:
    """A concatenation: each kernel stores its own channels of one array."""
    out = np.full((6, 40), -1, np.int32)
    halves = []
    for first, channels in ((0, 16), (16, 24)):
        extents = dict(i=6, j=channels, k=8)
        op = operator(GEMM, extents, None, "bytes").with_output(
            f"y[i, j + {first}]", {"y": (6, 40)}
        )
        inputs = random_inputs(op, np.random.default_rng(first))
        mapping = amos.enumerate_mappings(op, VNNI)[0]
        assert build(mapping, implementation="generic")(**inputs, out=out) is out
        halves.append(inputs["a"].astype(np.int32) @ inputs["weight"].T.astype(np.int32))
    np.testing.assert_array_equal(out, np.hstack(halves))


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("seed", range(4))
def test_drawn_outputs_on_cuda(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text, extents = [(GEMM, dict(i=32, j=16, k=16)), (NCHW, CASES[5][1])][seed % 2]
    unit = intrinsics.get(["wmma_m16n16k16_f16_f32", "mma_sync_m16n8k16_f16_f32"][seed // 2])
    plain = operator(text, extents, ["f32(acc * s[])", None][seed // 2], "float16")
    op = Drawn.of(plain, rng).op
    space = amos.enumerate_mappings(op, unit, "gather")
    mapping = space[int(rng.integers(len(space)))]
    plan = GpuPlan(mapping, GpuSchedule(), "sm_80")
    assert emulate(plan, draw_inputs(plan, rng)).equal


def test_cuda_cannot_add_to_part_of_a_tensor() -> None:
    op = operator(GEMM, dict(i=16, j=16, k=64), None, "float16")
    unit = intrinsics.get("wmma_m16n16k16_f16_f32")
    mapping = amos.enumerate_mappings(op.with_output("y[i, j + 8]"), unit)[0]
    with pytest.raises(BuildError, match="adds to zeros"):
        GpuPlan(mapping, GpuSchedule(split=2), "sm_80")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("number", [0, 2, 5, 6])
def test_c_leaves_the_rest_alone(number: int, tmp_path: Path) -> None:
    text, extents, unit, epilogue = CASES[number]
    rng = np.random.default_rng(number + 10)
    kinds = "float32" if "f32_f32" in unit else "bytes"
    op = Drawn.of(operator(text, extents, epilogue, kinds), rng).op
    candidate = next(_candidates(op, unit, rng))
    export(candidate, "c", tmp_path, name="kernel", implementation="generic")
    flags = ["-O1", "-fwrapv", "-Wno-psabi", "-ffp-contract=off", "-fsanitize=address,undefined"]
    command = ["cc", *flags, "-o", "test", "kernel_test.c", "kernel.c", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./test"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
