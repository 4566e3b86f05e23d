"""Precisions of products that PyTorch allows, in ``torch.compile(module, backend="amos")``."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from amos.errors import NetworkError
from amos.network.precision.rounding import is_product
from amos.network.precision.variants import has_bfloat16
from amos.network.pytorch import backend
from amos.network.pytorch.backend import amos_backend, reducible_operations
from amos.network.races import Race
from tests.network.torch_graphs import record_compiled_graphs

# What PyTorch says about itself.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@pytest.fixture
def precisions(torch: Any) -> Any:
    """PyTorch, whose precisions of products are put back afterwards."""
    mkldnn = torch.backends.mkldnn
    settings = {setting: setting.fp32_precision for setting in (mkldnn.matmul, mkldnn.conv)}
    before = torch.get_float32_matmul_precision()
    yield torch
    torch.set_float32_matmul_precision(before)
    for setting, value in settings.items():
        setting.fp32_precision = value


@pytest.mark.parametrize("name", ["highest", "high", "medium"])
def test_operators_that_pytorch_allows_to_be_rounded(precisions: Any, name: str) -> None:
    """Of "high" PyTorch promises 10 bits of mantissa, which bfloat16 does not have."""
    precisions.set_float32_matmul_precision(name)
    products = {"MatMul"} if name == "medium" else set()
    assert reducible_operations() == products
    precisions.backends.mkldnn.conv.fp32_precision = "bf16"
    assert reducible_operations() == products | {"Conv", "ConvTranspose"}


@pytest.mark.long
def test_products_have_the_precision_of_pytorch(
    precisions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, compiled = precisions, record_compiled_graphs(monkeypatch)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(16, 16, 5), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(256, 512)
    ).eval()
    torch.set_float32_matmul_precision("medium")
    x = torch.randn(8, 16, 8, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message='backend "amos"')
        result = torch.compile(layers, backend=amos_backend)(x)
        torch.set_float32_matmul_precision("highest")
        error = (result - layers(x)).norm() / layers(x).norm()
    (model,) = compiled
    (network,) = model.partition.network.networks.values()
    products = [node for node in network.graph.nodes if is_product(node)]
    dtypes = {node.operation: node.operands[1].dtype for node in products}
    rounded = has_bfloat16()
    assert dtypes["MatMul"] == ("bfloat16" if rounded else "float32")
    assert dtypes["Conv"] == "float32"
    assert 1e-4 < error < 1e-2 if rounded else error < 1e-5


def test_what_differs_too_much_in_bfloat16_is_computed_as_it_is(
    precisions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_bfloat16():
        pytest.skip("this CPU has neither avx512_bf16 nor amx_bf16")
    torch, layer = precisions, precisions.nn.Linear(256, 256).eval()
    torch.set_float32_matmul_precision("medium")
    compared: list[bool] = []
    usual = backend.CompiledGraph._compare

    def compare(self: Any, model: Any, *arguments: Any) -> None:
        compared.append(model.partition.has_rounded_products)
        usual(self, model, *arguments)
        if compared[-1]:
            raise NetworkError("it differs")

    monkeypatch.setattr(backend.CompiledGraph, "_compare", compare)
    monkeypatch.setattr(Race, "wins", True)
    x = torch.randn(64, 256)
    with torch.no_grad():
        result = torch.compile(layer, backend=amos_backend)(x)
        torch.set_float32_matmul_precision("highest")
        assert torch.allclose(result, layer(x), atol=1e-4)
    assert compared == [True, False]
