"""Products of MLP blocks as chains: right for blocks of any rows, and only where they may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amos.explore.choosing import Chooser
from amos.ir import Operator
from amos.machine import Machine
from amos.measure.reference import References
from amos.network.kernels import check_kernel
from amos.network.lowerings import fused
from amos.network.lowerings.cascade import list_tilings, lower_chain
from amos.network.lowerings.cascade_matching import chain_layers
from amos.network.lowerings.chains import FusedChain
from amos.network.lowerings.fused import choose_fused
from tests.network.models import Builder, WholeNetwork, compile_whole, load_whole

_CHOOSER = Chooser("host")
_ROWS, _WIDTH, _HIDDEN = 37, 16, 48


@pytest.fixture
def paying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains pay everywhere."""
    monkeypatch.setattr(fused, "predict_separate", lambda *_: float("inf"))


def _machine() -> Machine:
    return _CHOOSER.target(())


def _layers(rows: int, factors: str = "float32") -> tuple[Operator, Operator]:
    kinds = {"x": factors, "weight": factors, "out": "float32"}
    text = "out[a,m,n] += x[a,m,k] * weight[k,n]"
    extents = {"a": 3, "m": rows, "n": _HIDDEN, "k": _WIDTH}
    first = Operator.parse(text, extents, kinds, name="matmul")
    last = Operator.parse(text, extents | {"n": _WIDTH, "k": _HIDDEN}, kinds, name="matmul")
    hidden = "gelu(acc + bias[n])"
    first = first.with_epilogue(hidden if factors == "float32" else f"bf16({hidden})")
    return first, last.with_epilogue("acc + bias[n] + residual[a,m,n]")


@pytest.mark.parametrize("factors", ["float32", "bfloat16"])
def test_blocks_of_rows(factors: str) -> None:
    """Rows that no block divides."""
    chain = chain_layers(_layers(7, factors))
    lowerings = lower_chain(chain, list_tilings(chain, _machine()), _CHOOSER, 4)
    assert len({str(each.candidate.tiling) for each in lowerings}) == 4
    assert check_kernel(lowerings[-1].build("kernel"), References()).passed


def test_cores_have_even_shares() -> None:
    chain = chain_layers(_layers(197))
    tilings = {str(tiling) for tiling in list_tilings(chain, _machine())}
    assert {"a:2", "a:1, m:197", "a:1, m:99", "a:1, m:25"} <= tilings


def _network(*, observed: bool = False, constant: bool = True) -> WholeNetwork:
    b = Builder()
    x = b.node("Relu", b.input("x", (1, _ROWS, _WIDTH)))
    weight = b.random(_WIDTH, _HIDDEN) if constant else b.input("w", (_WIDTH, _HIDDEN))
    hidden = b.node("Relu", b.node("Add", b.node("MatMul", x, weight), b.random(_HIDDEN)))
    y = b.node("Add", b.node("MatMul", hidden, b.random(_HIDDEN, _WIDTH)), x)
    return load_whole(b.model(y, *[hidden] * observed))


def _choose(network: WholeNetwork) -> list[Any]:
    return [job.operator for job in choose_fused(network, _CHOOSER)]


@pytest.mark.usefixtures("paying")
def test_a_network_with_a_block_computes_the_same() -> None:
    network = _network()
    (row,) = network.report().tasks
    assert row.kind == "matmul + matmul" and row.seconds and row.mappings > 1
    compiled = compile_whole(network)
    ((_, kernel),) = compiled.kernels.items()
    assert isinstance(kernel.lowering, FusedChain) and all(x.passed for x in compiled.checks)
    x = np.random.default_rng(0).standard_normal((1, _ROWS, _WIDTH)).astype(np.float32)
    assert network.reference is not None
    (expected,) = network.reference.evaluate([x]) or ()
    np.testing.assert_allclose(compiled(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("paying")
@pytest.mark.parametrize("more", [{"observed": True}, {"constant": False}])
def test_what_is_no_block(more: dict[str, bool]) -> None:
    """Hidden rows that are read elsewhere, too, and products of two activations."""
    assert not _choose(_network(**more))


@pytest.mark.parametrize(("predicted", "is_fused"), [(0.0, False), (1.0, True)])
def test_the_model_decides(
    monkeypatch: pytest.MonkeyPatch, predicted: float, is_fused: bool
) -> None:
    monkeypatch.setattr(fused, "predict_separate", lambda *_: predicted)
    assert bool(_choose(_network())) == is_fused
