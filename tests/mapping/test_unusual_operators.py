"""Unusual operators: mapped where the meaning is clear, otherwise refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from amos import intrinsics
from amos.errors import AmosError
from amos.ir import Operator
from amos.mapping import enumerate_mappings, simulate
from amos.validate import RULES, evaluate, random_inputs

WMMA = intrinsics.get("wmma_m16n16k16_f16_f32")


def read(text: str) -> Operator:
    indices = [access.split("]")[0] for access in text.split("[")[1:]]
    names = sorted({c for index in indices for c in index if c.isalpha()})
    return Operator.parse(text, dict.fromkeys(names, 3), name="op")


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("o[i,j] += a[i,i] * b[i,j]", (1, 1, 1)),  # repeated: i indexes both, and stays a loop
        ("o[i,j] += a[i,k,k] * b[k,j]", (0, 1, 1)),  # repeated: the diagonal is gathered
        ("o[i,j] += a[i,0] * b[0,j]", (1, 1, 1)),  # constant indices
        ("o[i,2] += a[i,k] * b[k,1]", (1, 1, 1)),
        ("o[] += a[k] * b[k]", (1, 1, 1)),  # no spatial iteration
        ("o[i,j] += a[i] * b[j]", (1, 1, 1)),  # no reduction
        ("o[i*2 + 1] += a[i,k] * b[k]", (1, 1, 1)),  # an output with holes
        ("o[i,j] += a[i,k] * b[j]", (0, 0, 1)),  # k indexes one source only
        ("o[i,j] += a[k] * b[k]", (0, 0, 2)),  # i and j index the output only
        ("o[i,j,z] += a[i,k] * b[k,j]", (1, 1, 5)),  # z as well
    ],
)
def test_what_is_supported_computes_the_right_thing(
    text: str, counts: tuple[int, int, int]
) -> None:
    op = read(text)
    spaces = [enumerate_mappings(op, WMMA, rule) for rule in RULES]
    assert tuple(map(len, spaces)) == counts
    for mapping in spaces[-1]:
        inputs = random_inputs(mapping.operator, np.random.default_rng(0))
        expected = evaluate(mapping.operator, inputs)
        np.testing.assert_array_equal(simulate(mapping, inputs), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("o[i,j], p[i,j] += a[i,k] * b[k,j]", "expected '\\+=' or '=' after the output, found ','"),
        ("o[i] = p[i] += a[i,k] * b[k]", "a second assignment"),
        ("o[i,j] = a[i,k] * b[k,j]", "k is summed over, so write \\+= instead of ="),
        ("o[i,i] += a[i,k] * b[k]", "i indexes two dimensions of the output"),
        ("o[i + j] += a[i,k] * b[k,j]", "index i \\+ j the coefficient 1 of j must exceed"),
        ("o[i] += a[i,k*k] * b[k]", "not affine: product of k and k"),
        ("o[i] += a[i,k%2] * b[k]", "not affine: modulo"),
        ("o[i] += a[i,t[k]] * b[k]", "data-dependent index: 't'"),
        ("o[i] += a[i,k + z - z] * b[k]", "iteration z cancels out"),
        ("o[i] += o[k] * b[k]", "'o' is both read and written"),
        ("o[i] += a[i,k] * b[k] * d[k]", "it has 3 sources, the intrinsic takes 2"),
        ("o[i] += a[i,k]", "it has 1 source, the intrinsic takes 2"),
        ("o[i] = a[i] * b[i]", "its arithmetic is multiply, the intrinsic's is multiply-add"),
    ],
)
def test_what_is_not_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(AmosError, match=message):
        enumerate_mappings(read(text), WMMA)


def test_an_extent_for_what_indexes_nothing_is_refused() -> None:
    with pytest.raises(AmosError, match="extent given for 'z', which indexes nothing"):
        Operator.parse("o[i] += a[i,k] * b[k]", dict(i=2, k=2, z=2))
