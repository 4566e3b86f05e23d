"""Tiles that all cores compute together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from amos import machines
from amos.chains import ChainKernel, Tiling
from amos.chains.candidate import slots_of
from amos.chains.model import predict_chain
from amos.chains.records import candidate_from
from amos.explore.choosing import Chooser
from amos.export import export
from amos.ir import Chain
from amos.operators.winograd import Winograd
from amos.validate import evaluate, random_inputs
from tests.export.test_export import run
from tests.operators.test_winograd import convolution
from tests.support.chains import best_candidate

_CHOOSER = Chooser("host")
_SHAPES = (2, 10, 9, 16), (2, 10, 9, 24)
_WINOGRAD = Winograd(*_SHAPES, (1, 1)).build_chain(convolution(*_SHAPES, "float32"))
_ATTENTION = Chain.parse(
    "s[h,q,k] += query[h,q,d] * key[h,k,d]; p = softmax(s, axis=k); "
    "o[h,q,d] += p[h,q,k] * value[h,k,d]",
    dict(h=2, q=24, k=32, d=16),
)


@pytest.mark.parametrize(
    ("chain", "tiles"),
    [
        (_WINOGRAD, {"y": 2}),
        (_WINOGRAD, {"n": 1, "y": 1}),
        (_ATTENTION, {"h": 1, "q": 7}),
        (_ATTENTION, {"q": 24, "k": 8}),
    ],
)
def test_all_cores_compute_each_tile(chain: Chain, tiles: dict[str, int]) -> None:
    tiling = Tiling.of(chain, tiles)
    inputs = random_inputs(chain, np.random.default_rng(0))
    candidate = replace(best_candidate(_CHOOSER, tiling, packs=True), cooperative=True)
    again = candidate_from(chain, candidate.values())
    assert again.values() == candidate.values() and again.cooperative
    assert str(again).startswith(f"tiles {tiling} cooperative") and again.as_dict()["cooperative"]
    assert not candidate_from(chain, replace(candidate, cooperative=False).values()).cooperative
    result, expected = ChainKernel(again)(**inputs), evaluate(chain, inputs)
    np.testing.assert_allclose(result, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("cooperative", [False, True])
def test_exports_as_c_pack_constants_whose_loops_are_merged(
    cooperative: bool, tmp_path: Path
) -> None:
    """The 6 × 6 positions of weights are 36 of the product's."""
    tiling = Tiling.of(_WINOGRAD, {"y": 1})
    (slot,) = slots_of(tiling, frozenset())
    assert slot.operator.extents["b"] == 36
    candidate = replace(best_candidate(_CHOOSER, tiling, packs=False), cooperative=cooperative)
    export(candidate, "c", tmp_path)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout


def test_products_of_all_cores_are_predicted_with_transforms_that_these_share() -> None:
    machine, tiling = machines.get("xeon_6240"), Tiling.of(_WINOGRAD, {"y": 1})
    (slot,) = slots_of(tiling, frozenset())
    own, joint = (
        predict_chain(tiling, {"product": 1e-3}, False, machine, cooperative)
        for cooperative in (False, True)
    )
    assert slot.runs == tiling.count == 3
    assert joint.seconds == pytest.approx(3e-3, rel=0.2)
    assert own.seconds == pytest.approx(3e-3 / min(machine.cores, 3), rel=0.5)
    (into, _, out_of), shared = own.steps, joint.steps
    for single, step in ((into, shared[0]), (out_of, shared[2])):
        assert step.seconds < single.seconds / machine.cores * 2 + 3 * machine.launch


def test_one_core_is_predicted_to_compute_other_statements() -> None:
    chain = Chain.parse("p = softmax(t[q,k], axis=k); o[q,k] = p * p", dict(q=4096, k=1024))
    machine, tiling = machines.get("xeon_6240"), Tiling.of(chain, {"q": 1024})
    own, joint = (
        predict_chain(tiling, {}, False, machine, cooperative) for cooperative in (False, True)
    )
    for single, step in zip(own.steps, joint.steps, strict=True):
        assert step.seconds >= single.seconds, step.tensor
