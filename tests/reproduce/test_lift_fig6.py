"""Lift, Figure 6: ways to fuse sequential loops."""

from __future__ import annotations

import importlib.util
from itertools import product

import numpy as np
import pytest

from amos.chains import LoopNest, ParallelSpace, Tiling
from amos.chains.parallel import FUSED, FUSIONS
from amos.errors import ScheduleError
from amos.ir import Chain
from amos.opencl.chains.candidate import ParallelCandidate
from amos.reproduce.lift import LISTING1, accepts, layer_frame
from amos.reproduce.lift_fig6 import compare_fusions, fuse_sequential


def test_ways_to_fuse_differ_in_rule_8_alone() -> None:
    nest = LoopNest.of(Tiling.of(Chain.parse(LISTING1, dict(i=8, j=4, k=4)), {"i": 1}))
    names = [loop.name for loop in nest.loops]
    drawn = {}
    for fusion in FUSIONS:
        space = ParallelSpace(nest, 1, fusion=fusion)
        drawn[fusion] = {tuple(each.values()) for each in space.draw(500, np.random.default_rng(0))}
        assert len(drawn[fusion]) == space.count
    assert drawn["never"] == {each for each in drawn["random"] if FUSED not in each}
    assert drawn["always"] < drawn["random"]
    valid = {
        each
        for each in product(ParallelSpace(nest, 1).choices, repeat=len(names))
        if accepts(nest, dict(zip(names, each, strict=True)))
    }
    assert drawn["always"] == valid
    with pytest.raises(ScheduleError, match="expected one of always, never, random, got 'often'"):
        ParallelSpace(nest, fusion="often")


def test_every_mapping_has_a_twin_that_keeps_rule_8() -> None:
    frame = layer_frame("vgg16:V8")
    for fusion in FUSIONS:
        space = ParallelSpace(frame.nest, limits=frame.limits_on(None), fusion=fusion)
        for choices in space.draw(20, np.random.default_rng(0)):
            twin = fuse_sequential(frame, choices)
            assert twin.violations() == ()
            assert {n: x for n, x in twin.choices.items() if " " in x} == {
                n: x for n, x in choices.items() if " " in x
            }


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("pyopencl") is None, reason="pyopencl is not installed"
)
def test_candidates_of_each_way_are_measured() -> None:
    text = "sum[p,k] += image[p,c] * weight[k,c]; out[p,k] = relu(sum[p,k])"
    chain = Chain.parse(text, dict(p=8, k=8, c=4))
    frame = ParallelCandidate(Tiling.of(chain, {"p": 4, "k": 4}), {}, copies={"image": "local"})
    # PoCL compiles some kernels with barriers into endless loops.
    rows = compare_fusions(frame, "small", 4, seed=0, timeout=5.0)
    assert [row.fusion for row in rows] == ["always", "never", "random"]
    for row in rows:
        assert row.candidates == 4
        assert 1 <= row.kernels <= 4
        assert row.failed < 4
        assert 0 < row.gflops_after[1] <= row.gflops
        assert 1 <= row.reached_after <= 4
