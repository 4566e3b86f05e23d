"""PyTorch's modules in, held against PyTorch itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import amos
from amos.errors import NetworkError

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
nn: Any = torch.nn
Module: Any = nn.Module

# What PyTorch says about itself.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


class _Several(Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        return {"scores": self.last(y.mean((2, 3))), "images": [y.bfloat16()]}


class _Counting(Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Any, factor: int = 1) -> Any:
        if factor == 1:
            self.calls += 1
        return x * factor + self.calls


def test_the_whole_is_compared_with_pytorch() -> None:
    torch.manual_seed(0)
    module, x = _Several(), torch.randn(1, 3, 8, 8)
    module.first.eval()
    network = amos.load_network(module, inputs=(x,))
    assert module.training and module.last.training and not module.first.training
    compiled = amos.compile(network, progress=False)
    assert [check.reference for check in compiled.checks[-1:]] == ["PyTorch"]
    scores, _ = compiled(x)
    with torch.no_grad():
        np.testing.assert_allclose(scores, module(x)["scores"].numpy(), atol=1e-5)


def test_an_export_that_computes_something_else_is_refused() -> None:
    pool = nn.AvgPool2d(3, divisor_override=5)  # which PyTorch's exporter drops
    with pytest.raises(NetworkError, match="AvgPool2d: PyTorch exports it to ONNX wrongly: .*by"):
        amos.load_network(pool, inputs=(torch.zeros(1, 3, 8, 8),))


def test_what_is_refused() -> None:
    x = torch.randn(4, 6)
    with pytest.raises(NetworkError, match="'calls' is changed in place"):
        amos.load_network(_Counting(), inputs=(x,))
    with pytest.raises(NetworkError, match="input 'factor': expected a tensor, got 3"):
        amos.load_network(_Counting(), inputs=(x, 3))
    wrong: Any
    for wrong in (3, x, {"x": x}):
        with pytest.raises(NetworkError, match=r"inputs: expected a tuple of tensors, as \(x,\)"):
            amos.load_network(_Counting(), inputs=wrong)
    with pytest.raises(NetworkError, match="number 0 is an array of NumPy; torch.from_numpy"):
        amos.load_network(_Counting(), inputs=(x.numpy(),))


class _Sums(Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        y = torch.sub(torch.add(x, x * x, alpha=2), 3, alpha=0.5)
        return torch.rsub(y, x, alpha=4)


class _Resized(Module):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Any) -> Any:
        return nn.functional.interpolate(x, **self.options)


def test_sums_have_factors() -> None:
    x = torch.randn(4, 16)
    compiled = amos.compile(amos.load_network(_Sums(), inputs=(x,)), progress=False)
    np.testing.assert_allclose(compiled(x), _Sums()(x).numpy(), rtol=1e-5, atol=1e-5)


class _Indexed(Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stored", torch.tensor([[0, -1], [2, -3]]))
        self.register_buffer("upwards", torch.tensor([[0, 1], [2, 3]]))

    def forward(self, x: Any, i: Any, j: Any) -> Any:
        stored = x[self.stored, self.stored] + x[self.upwards.view(-1)].sum()
        return x[i], x[:, i - 1], x[i, j], x[None, i].transpose(0, 1), torch.take(x, i), stored


def test_negative_indices_count_from_the_end() -> None:
    x, upwards = torch.randn(4, 6), torch.tensor([1, 2, 3])
    network = amos.load_network(_Indexed(), inputs=(x, upwards, upwards))
    i, j = torch.tensor([0, -1, -3]), torch.tensor([-6, 5, -2])
    results = amos.compile(network, progress=False)(x, i, j)
    for actual, reference in zip(results, _Indexed()(x, i, j), strict=True):
        np.testing.assert_allclose(actual, reference.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        dict(scale_factor=2),
        dict(scale_factor=1.7),
        dict(size=(3, 6)),
        dict(scale_factor=1.7, mode="bilinear"),
        dict(size=3, mode="bilinear", antialias=True),
    ],
)
def test_sizes_of_images_change_as_in_pytorch(options: dict[str, Any]) -> None:
    x, module = torch.randn(1, 2, 6, 6), _Resized(**options)
    try:
        network = amos.load_network(module, inputs=(x,))
    except NetworkError as refused:  # PyTorch's exporter takes other elements for some of them
        assert "wrongly" in str(refused) or "cannot export" in str(refused)
        return
    result = amos.compile(network, progress=False)(x)
    np.testing.assert_allclose(result, module(x).numpy(), rtol=1e-4, atol=1e-5)


def test_a_module_made_in_inference_mode_is_exported() -> None:
    with torch.inference_mode():
        module = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)).eval()
        x = torch.ones(4, 16)
        expected = module(x).numpy()
    network = amos.load_network(module, [x])
    result = amos.compile(network, progress=False)(x.numpy())
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert module[0].weight.is_inference()


def test_random_numbers_are_refused() -> None:
    class Random(Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x + torch.rand_like(x)

    with pytest.raises(NetworkError, match="model 'Random': RandomUniformLike draws random"):
        amos.load_network(Random(), inputs=(torch.randn(4, 6),))


def test_examples_may_be_the_same_tensor() -> None:
    class Difference(Module):  # type: ignore[misc]
        def forward(self, x: Any, y: Any) -> Any:
            return (x @ x.T) - 2 * y

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    compiled = amos.compile(amos.load_network(Difference(), inputs=(x, x)), progress=False)
    np.testing.assert_allclose(compiled(x, y), Difference()(x, y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_query_without_keys_attends_to_nothing(dtype: str) -> None:
    class Attention(Module):  # type: ignore[misc]
        def forward(self, query: Any, key: Any, value: Any, mask: Any) -> Any:
            return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    tensors = [torch.randn(1, 2, 5, 8).to(getattr(torch, dtype)) for _ in range(3)]
    mask = torch.rand(5, 5) > 0.3
    mask[3] = False
    network = amos.load_network(Attention(), inputs=(*tensors, mask))
    result = np.asarray(amos.compile(network, progress=False)(*tensors, mask), np.float32)
    expected = Attention()(*tensors, mask).float()
    np.testing.assert_allclose(result, expected.numpy(), atol=2e-2)
    assert not np.any(result[:, :, 3])
