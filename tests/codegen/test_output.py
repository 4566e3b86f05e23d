"""Results stored elsewhere than the statement says, on every target, held against NumPy."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

import amos
from amos import intrinsics
from amos.cuda import GpuSchedule
from amos.cuda.codegen.emulate import compiler, draw_inputs, emulate
from amos.cuda.plan import GpuPlan
from amos.errors import BuildError
from amos.ir import Operator
from amos.plan import Candidate
from amos.runtime import build
from amos.schedule import ScheduleSpace, candidate_of
from amos.validate import evaluate, random_inputs
from tests.support.oracle.statements import Tokens, access_of, grid_of

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
#: Accesses for convolutions, and for matrix products: among them a diagonal, a band, and digits
#: that say an iteration twice.
STORES = (
    ("y[q, k//4, p*2 + n, k%4 + 1]",),
    ("y[j%2, i*2 + 1, j//2 + 1]", "y[i, j, i]", "y[i + j, j]", "y[j, j%4, i + 1, j//2]"),
)


def operator(text: str, extents: dict[str, int], epilogue: str | None, kinds: object) -> Operator:
    """An operator with every dtype set, as far as it has such tensors."""
    names = re.findall(r"(\w+)\[", text)
    dtypes = {n: (BYTES[n] if kinds == "bytes" else str(kinds)) for n in names}
    dtypes |= {"out": "float32"} if kinds == "float16" else {}
    op = Operator.parse(text, extents, dtypes)
    return op if epilogue is None else op.with_epilogue(epilogue)


def placed(op: Operator, plain: np.ndarray) -> np.ndarray:
    """Results of the operator without its output, stored where the oracle reads that it is."""
    moved = np.zeros(op.result.shape, plain.dtype)
    grid = grid_of({it.name: it.extent for it in op.spatial})
    moved[access_of(Tokens(str(op.stored)), grid).indices] = plain.reshape(-1)
    return moved


def _candidates(op: Operator, unit: str, rng: np.random.Generator) -> Iterator[Candidate]:
    space = amos.enumerate_mappings(op, unit, "gather")
    for number in rng.permutation(len(space))[:1]:
        mapping = space[int(number)]
        if unit.startswith("amx"):  # a tile of its fragments is long in generic code
            yield candidate_of(mapping, None)
        else:
            yield Candidate(mapping, ScheduleSpace(mapping).sample(rng))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_outputs(number: int) -> None:
    """Dimensions in another order, merged, split and with margins; the fuzz draws more."""
    text, extents, unit, epilogue = CASES[number]
    rng = np.random.default_rng(number)
    plain = operator(text, extents, epilogue, "float32" if "f32_f32" in unit else "bytes")
    inputs = random_inputs(plain, rng)
    expected = evaluate(plain, inputs)
    for store in STORES["i" in extents]:
        op = plain.with_output(store)
        result = placed(op, expected)
        np.testing.assert_array_equal(evaluate(op, inputs), result)
        for candidate in _candidates(op, unit, rng):
            np.testing.assert_array_equal(amos.simulate(candidate.mapping, inputs), result)
            kernel = build(candidate, implementation="generic")
            np.testing.assert_array_equal(kernel(**inputs), result, f"{op}, {candidate}")
            # What the operator does not reach is left alone.
            out = np.full(result.shape, 77, result.dtype)
            kernel(**inputs, out=out)
            reached = placed(op, np.ones(expected.shape, bool))
            np.testing.assert_array_equal(out, np.where(reached, result, result.dtype.type(77)))


def test_mappings_are_those_without_it() -> None:
    op = operator(*CASES[5][:2], None, "bytes")
    for text in ("y[q, p, k, n]", "y[n, k*60 + p*10 + q]", "y[k//2, n, p%3, q, p//3, k%2]"):
        names = [m.name for m in amos.enumerate_mappings(op.with_output(text), CASES[5][2])]
        assert names == [m.name for m in amos.enumerate_mappings(op, CASES[5][2])]


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("store", ["y[i, j, i]", "y[i + j, j]", "y[j, j%4, i + 1, j//2]"])
def test_elements_that_are_no_box_on_cuda(store: str) -> None:
    half = operator(GEMM, dict(i=9, j=19, k=16), None, "float16").with_output(store)
    mapping = amos.enumerate_mappings(half, "wmma_m16n16k16_f16_f32")[0]
    plan = GpuPlan(mapping, GpuSchedule(), "sm_80")
    assert emulate(plan, draw_inputs(plan, np.random.default_rng(1))).problem == ""


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


def test_cuda_cannot_add_to_part_of_a_tensor() -> None:
    op = operator(GEMM, dict(i=16, j=16, k=64), None, "float16")
    unit = intrinsics.get("wmma_m16n16k16_f16_f32")
    mapping = amos.enumerate_mappings(op.with_output("y[i, j + 8]"), unit)[0]
    with pytest.raises(BuildError, match="adds to zeros"):
        GpuPlan(mapping, GpuSchedule(split=2), "sm_80")
