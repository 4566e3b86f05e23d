"""The physical program computes what the operator says, whatever the extents."""

from __future__ import annotations

import numpy as np
import pytest

import amos
from amos import intrinsics
from amos.errors import MappingError, OperatorError
from amos.intrinsics import Intrinsic
from amos.intrinsics.virtual import unit as virtual_unit
from amos.ir import Operator
from amos.mapping import enumerate_mappings, simulate
from amos.validate import evaluate, random_inputs

VNNI = intrinsics.get("vnni_dpbusd_m16k4_u8_s8_s32")
WMMA = intrinsics.get("wmma_m16n16k16_f16_f32")


def unit(compute: str, dtypes: str = "s64", **extents: int) -> Intrinsic:
    return virtual_unit(compute, extents, dtypes)


CASES = {
    "conv": (
        "out[n,k,p,q] += image[n,c,p*2+r,q*2+s] * weight[k,c,r,s]",
        dict(n=2, k=5, p=3, q=5, c=3, r=2, s=3),
        unit("Dst[i1,i2] += Src1[i1,r1] * Src2[r1,i2]", i1=4, i2=2, r1=3),
    ),
    "padded": (
        "out[k,p,q] += pad(image[c,p+r-1,q+s-1]) * weight[k,c,r,s]",
        dict(k=5, p=3, q=7, c=2, r=3, s=3),
        unit("Dst[i1,i2] += Src1[i1,r1] * Src2[r1,i2]", i1=2, i2=3, r1=5),
    ),
    "reversed": (
        "out[n,k,p] += image[n,c,p+r] * weight[k,c,2-r]",
        dict(n=2, k=5, p=5, c=3, r=3),
        unit("Dst[i1,i2] += Src1[i1,r1] * Src2[r1,i2]", i1=4, i2=4, r1=4),
    ),
    "gathered": (
        "out[k,p,b] += image[k,p+r] * weight[k,r]",
        dict(k=7, p=5, r=3, b=3),
        unit("Dst[i1] += Src1[i1,r1] * Src2[i1,r1]", i1=4, r1=2),
    ),
    "transposed": (
        "out[j,i] += a[k,i] * b[j,k]",
        dict(i=7, j=5, k=11),
        unit("Dst[i2,i1] += Src1[r1,i1] * Src2[i2,r1]", i1=2, i2=3, r1=4),
    ),
    "three": (
        "out[i,j] += a[i,k] * b[k] * d[k,j]",
        dict(i=3, j=5, k=7),
        unit("Dst[i1,i2] += Src1[i1,r1] * Src2[r1] * Src3[r1,i2]", i1=2, i2=2, r1=2),
    ),
    "sum": (
        "out[i,j] += a[i,k]",
        dict(i=5, j=3, k=7),
        unit("Dst[i1,i2] += Src[i1,r1]", i1=2, i2=2, r1=4),
    ),
    "elementwise": (
        "out[i,j] = a[i,j] * b[j]",
        dict(i=5, j=7),
        unit("Dst[i1] = Src1[i1] * Src2[i1]", i1=4),
    ),
    "strided": (
        "out[i*2+1,j] += a[i,k] * b[k,j]",
        dict(i=5, j=3, k=5),
        unit("Dst[i1,i2] += Src1[i1,r1] * Src2[r1,i2]", i1=4, i2=4, r1=4),
    ),
    "diagonal": (
        "out[i] += a[i,k,k] * b[k]",
        dict(i=5, k=5),
        unit("Dst[i1] += Src1[i1,r1,r1] * Src2[r1]", i1=2, r1=2),
    ),
    "same names": (
        "out[r1,i2] += a[r1,i1] * b[i1,i2]",
        dict(r1=5, i1=3, i2=7),
        unit("Dst[i1] += Src1[r1] * Src2[r1,i1]", i1=2, r1=2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_simulate_equals_evaluate(name: str) -> None:
    text, extents, intrinsic = CASES[name]
    shapes = {"image": (2, 3, 7)} if "pad" in text else {}
    op = Operator.parse(text, extents, name=name.replace(" ", "_"), shapes=shapes)
    space = enumerate_mappings(op, intrinsic, "gather", commute=True)
    assert space
    chosen = [space[i] for i in range(0, len(space), max(1, len(space) // 40))]
    inputs = random_inputs(chosen[0].operator, np.random.default_rng(11))
    expected = evaluate(chosen[0].operator, inputs)
    for mapping in chosen:
        np.testing.assert_array_equal(simulate(mapping, inputs), expected, mapping.name)


@pytest.mark.parametrize("text", [
    "out[n,k,d,p,q] += image[n,c,d+t,p*2+r,q+s] * weight[k,c,t,r,s]",
    "out[n,k,p,q] += image[n,c,p+r,q+s*2] * weight[k,c,r,s]",
    "out[g,n,k,p] += image[n,g,c,p+r] * weight[g,k,c,r]",
    "out[n,k,p,q,j] += image[n,c,p+r,q+s] * weight[k,c,r,s,j]",
    "out[m] += a[m,k] * x[k]",
])  # fmt: skip
def test_operators_of_table_6_with_prime_extents(text: str) -> None:
    extents = dict(n=2, k=5, d=2, p=3, q=5, g=3, j=3, m=17, c=3, t=2, r=3, s=2)
    indices = ",".join(access.split("]")[0] for access in text.split("[")[1:])
    op = Operator.parse(text, {n: e for n, e in extents.items() if n in indices})
    matrix = unit("Dst[i1,i2] += Src1[i1,r1] * Src2[r1,i2]", i1=4, i2=4, r1=4)
    space = enumerate_mappings(op, matrix)
    inputs = random_inputs(space[0].operator, np.random.default_rng(0))
    expected = evaluate(space[0].operator, inputs)
    for mapping in space[:: max(1, len(space) // 10)]:
        np.testing.assert_array_equal(simulate(mapping, inputs), expected, mapping.name)


def test_vnni_is_exact() -> None:
    op = Operator.parse(
        "out[n,p,q,k] += image[n,p+r,q+s,c] * weight[r,s,c,k]",
        dict(n=1, p=5, q=5, k=37, c=7, r=3, s=3),
        dict(image="u8", weight="s8", out="s32"),
    )
    inputs = random_inputs(op, np.random.default_rng(0))
    expected = evaluate(op, inputs)
    for mapping in enumerate_mappings(op, VNNI, "gather"):
        np.testing.assert_array_equal(simulate(mapping, inputs), expected, mapping.name)


def test_floats_agree_but_for_rounding() -> None:
    op = Operator.parse("out[i,j] += a[i,k] * b[k,j]", dict(i=37, j=23, k=53))
    mapping = enumerate_mappings(op, WMMA)[0]
    rng = np.random.default_rng(0)
    inputs = {
        t.name: rng.standard_normal(t.shape).astype(np.float16) for t in mapping.operator.inputs
    }
    got, expected = simulate(mapping, inputs), evaluate(mapping.operator, inputs)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_bad_arguments() -> None:
    op = Operator.parse("out[i,j] += a[i,k] * b[k,j]", dict(i=2, j=2, k=2))
    mapping = enumerate_mappings(op, WMMA)[0]
    with pytest.raises(OperatorError, match="expected a, b, got a"):
        simulate(mapping, {"a": np.zeros((2, 2), np.float16)})
    with pytest.raises(OperatorError, match="expected dtype float16"):
        simulate(mapping, {"a": np.zeros((2, 2)), "b": np.zeros((2, 2), np.float16)})
    with pytest.raises(MappingError, match="expected a Mapping, got Operator"):
        simulate(op, {})  # type: ignore[arg-type]
    with pytest.raises(MappingError, match="expected a Mapping, got Operator"):
        amos.simulate(op, None)  # type: ignore[arg-type]
    with pytest.raises(OperatorError, match="inputs of out: expected a dictionary, got 3"):
        amos.simulate(mapping, 3)  # type: ignore[arg-type]
