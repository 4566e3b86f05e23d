"""Loops of a chain's products that are one in memory."""

from __future__ import annotations

import re

import numpy as np
import pytest

from amos.chains import ChainCandidate, ChainKernel, Tiling
from amos.chains.candidate import slots_of
from amos.chains.merging import merge_loops
from amos.chains.records import candidate_from
from amos.explore.choosing import Chooser
from amos.ir import Chain, Operator
from amos.validate import evaluate, random_inputs
from tests.support.chains import best_candidate


@pytest.mark.parametrize(
    ("text", "merged"),
    [
        ("o[n,y,x,k] += a[n,y,x,c] * w[c,k]", "o[x,k] += a[x,c] * w[c,k]"),
        ("o[y,k,x] += a[y,x,c] * w[c,k]", "o[y,k,x] += a[y,x,c] * w[c,k]"),
        ("o[y,x] += a[y,x,c,d] * w[c,d]", "o[x] += a[x,d] * w[d]"),
        ("o[y,x,k] += a[y+1,x,c] * w[c,k]", "o[y,x,k] += a[y+1,x,c] * w[c,k]"),
        ("o[y,x,k] += a[x,y,c] * w[c,k]", "o[y,x,k] += a[x,y,c] * w[c,k]"),
        ("o[y,x,k] += a[y,x,c] * w[x,c,k]", "o[y,x,k] += a[y,x,c] * w[x,c,k]"),
        ("o[y,x,k] += a[y,x,c] * weight[y,x,c,k]", "o[x,k] += a[x,c] * weight[x,c,k]"),
        ("o[n,y,k,x] += pad(a[n,y,k+h-1,x]) * w[h]", "o[y,k,x] += pad(a[y,k+h-1,x]) * w[h]"),
        ("o[h,q,k] += a[h,q,d] * b[h,k,d]", "o[h,q,k] += a[h,q,d] * b[h,k,d]"),
    ],
)
def test_loops_that_are_one_in_memory_are_merged(text: str, merged: str) -> None:
    extents = dict(zip("nyxkcdhq", (2, 3, 4, 5, 6, 7, 2, 3), strict=True))
    used = {name: size for name, size in extents.items() if name in re.sub("weight|pad", "", text)}
    operator = Operator.parse(text, used, constants=["weight"] if "weight" in text else None)
    again = merge_loops(operator)
    assert str(again.compute) == str(Operator.parse(merged, again.extents).compute)
    inputs = random_inputs(operator, np.random.default_rng(0))
    shapes = {tensor.name: tensor.shape for tensor in again.inputs}
    flat = {name: array.reshape(shapes[name]) for name, array in inputs.items()}
    np.testing.assert_allclose(evaluate(again, flat).ravel(), evaluate(operator, inputs).ravel())


def test_rows_longer_in_memory_than_in_a_tile_stay() -> None:
    chain = Chain.parse(
        "t[y,x,k] += a[y,x,c] * w[c,k]; o[y,x,k] = relu(t)", dict(y=8, x=6, k=8, c=4)
    )
    for tiles, names in (({"y": 2}, "xkc"), ({"y": 2, "x": 3}, "yxkc")):
        (slot,) = slots_of(Tiling.of(chain, tiles), frozenset())
        assert "".join(slot.operator.extents) == names


def test_dimensions_of_sources_that_tiles_pack_stay() -> None:
    """Channels of two dimensions are one loop, unless keys are packed for all tiles."""
    chain = Chain.parse(
        "s[n,q,k] += query[n,q,d,e] * key[k,d,e]; p = softmax(s, axis=k); o[n,q,k] = p",
        dict(n=2, q=24, k=16, d=3, e=4),
    )
    tiling, chooser = Tiling.of(chain, {"q": 7}), Chooser("host", core=True)
    inputs = random_inputs(chain, np.random.default_rng(0))
    expected = evaluate(chain, inputs)
    for packs, names in (False, "nqke"), (True, "nqkde"):
        candidate = best_candidate(chooser, tiling, packs=packs)
        (slot,) = candidate.slots
        assert "".join(slot.operator.extents) == names and bool(slot.packed) == packs
        np.testing.assert_allclose(ChainKernel(candidate)(**inputs), expected, atol=1e-5)


def test_records_without_merged_loops_mean_what_they_meant() -> None:
    text = "t[y,x,k] += a[y,x,c] * weight[c,k]; o[y,x,k] = relu(t + b[k])"
    chain = Chain.parse(text, dict(y=8, x=7, k=16, c=8))
    tiling = Tiling.of(chain, {"y": 2})
    inputs = random_inputs(chain, np.random.default_rng(0))
    expected, chooser = evaluate(chain, inputs), Chooser("host", core=True)
    for merges in (True, False):
        (slot,) = slots_of(tiling, frozenset(), merges)
        products = {"t": chooser.choose(slot.operator).candidate}
        candidate = ChainCandidate(tiling, products, merges=merges)
        values = candidate.values()
        assert ("merged" in values) == merges
        again = candidate_from(chain, values)
        assert again.values() == values and again.merges == merges
        np.testing.assert_allclose(ChainKernel(again)(**inputs), expected, rtol=1e-4, atol=1e-5)
