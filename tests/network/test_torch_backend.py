"""``torch.compile(module, backend="amos")``."""

from __future__ import annotations

import tomllib
import warnings
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from amos.errors import NetworkError
from amos.network.pytorch import backend
from amos.network.pytorch.backend import Options, amos_backend
from amos.network.races import Race
from tests.network.torch_graphs import record_compiled_graphs

ROOT = Path(__file__).resolve().parents[2]


def test_pytorch_finds_it_by_name() -> None:
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("not a checkout of the repository")
    with (ROOT / "pyproject.toml").open("rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["torch_dynamo_backends"]
    module, _, name = points["amos"].partition(":")
    assert getattr(import_module(module), name) is amos_backend


def test_options_are_checked() -> None:
    assert Options.read(None) == Options(records=None, trials=0)
    assert Options.read({"records": "a.db", "trials": 4}) == Options("a.db", 4)
    with pytest.raises(NetworkError, match="unknown option 'trails'; options are records, trials"):
        Options.read({"trails": 4})
    with pytest.raises(NetworkError, match="trials need a file that keeps them"):
        Options.read({"trials": 4})


# What PyTorch says about itself.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def _network(torch: Any) -> Any:
    nn = torch.nn

    class Network(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
            self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.norm(self.first(x)))
            x = torch.relu(x + self.second(x))
            return self.last(x.mean((2, 3)))

    return Network().eval()


@pytest.mark.long
def test_it_computes_what_pytorch_does(torch: Any) -> None:
    network = _network(torch)
    compiled = torch.compile(network, backend=amos_backend)
    with torch.no_grad():
        for batch in (1, 2):
            x = torch.randn(batch, 3, 8, 8)
            assert torch.allclose(compiled(x), network(x), atol=1e-5)
        network.last.weight.mul_(2)
        assert torch.allclose(compiled(x), network(x), atol=1e-5)
        network.last.bias.data = torch.ones(5)
        assert torch.allclose(compiled(x), network(x), atol=1e-5)


def test_what_it_does_not_take_runs_eagerly_and_says_why(torch: Any) -> None:
    class Odd(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.linalg.svdvals(x)

    compiled, x = torch.compile(Odd(), backend=amos_backend), torch.randn(3, 4)
    with torch.no_grad(), pytest.warns(UserWarning, match="runs eagerly: .*_linalg_svd"):
        result = compiled(x)
    assert torch.equal(result, Odd()(x))
    layer, nothing = torch.nn.Linear(4, 2), torch.zeros(0, 4)
    with torch.no_grad():
        assert torch.compile(layer, backend=amos_backend)(nothing).shape == (0, 2)
    numbers = torch.randn(4, 4, dtype=torch.complex64)
    square = torch.compile(torch.matmul, backend=amos_backend)
    with pytest.warns(UserWarning, match="runs eagerly: a tensor of complex64"):
        assert torch.equal(square(numbers, numbers), numbers @ numbers)


def test_results_keep_their_dtype(torch: Any) -> None:
    layer = torch.nn.Linear(16, 16).eval()
    kinds = (torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool)

    def function(x: Any) -> Any:
        narrow = x.half()  # of whose product the engine makes float32
        return [*(layer(x).to(k) for k in kinds), narrow @ narrow.T]

    compiled = torch.compile(function, backend=amos_backend)
    x = torch.randn(4, 16)
    with torch.no_grad():
        (*results, product), expected = compiled(x), layer(x)
    assert product.dtype == torch.float16
    assert torch.allclose(product.float(), x @ x.T, rtol=1e-2, atol=1e-1)
    assert [each.dtype for each in results] == [*kinds]
    for result, kind in zip(results, kinds, strict=True):
        assert torch.allclose(result.float(), expected.to(kind).float(), atol=2e-2)


def test_gradients_stay_with_pytorch(torch: Any) -> None:
    network = _network(torch)
    compiled, x = torch.compile(network, backend=amos_backend), torch.randn(1, 3, 8, 8)
    with pytest.warns(UserWarning, match="runs eagerly: gradients are asked for"):
        compiled(x).sum().backward()
    assert network.first.weight.grad is not None


def test_dropout_and_changes_in_place_stay_with_pytorch(torch: Any) -> None:
    class Random(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.dropout(x, 0.5, training=True)

    class Counting(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            x.add_(1)
            return x * 2

    x = torch.ones(64, 64)
    with torch.no_grad(), pytest.warns(UserWarning, match="runs eagerly"):
        dropped = torch.compile(Random(), backend=amos_backend)(x)
    assert set(dropped.flatten().tolist()) == {0.0, 2.0}
    with torch.no_grad(), pytest.warns(UserWarning, match="runs eagerly: .*changed in place"):
        doubled = torch.compile(Counting(), backend=amos_backend)(x)
    assert torch.equal(doubled, torch.full((64, 64), 4.0)) and torch.equal(x, 0 * x + 2)


@pytest.mark.long
def test_trials_are_measured_into_records(torch: Any, tmp_path: Path) -> None:
    layer, path = torch.nn.Linear(16, 16).eval(), tmp_path / "tuning.db"
    options = {"records": str(path), "trials": 2}
    compiled, x = torch.compile(layer, backend=amos_backend, options=options), torch.randn(4, 16)
    with torch.no_grad():
        assert torch.allclose(compiled(x), layer(x), atol=1e-5)
    assert path.exists()


def _compiled_after(torch: Any, function: Any, warm: Any, *inputs: Any) -> tuple[Any, list[str]]:
    """What is compiled in a call with some inputs returns for others, and what was said."""
    compiled = torch.compile(function, backend=amos_backend)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled(*warm)
        result = compiled(*inputs)
    return result, [str(each.message) for each in caught if "amos" in str(each.message)]


def _cases(torch: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    generator = torch.Generator().manual_seed(0)

    def draw(kind: Any, top: int, *shape: int) -> Any:
        return torch.randint(-top, top, shape, generator=generator).to(kind)

    pool = torch.nn.functional.avg_pool2d
    image = torch.randn(1, 3, 9, 9, generator=generator)
    small, large = draw(torch.int32, 50, 4, 6), draw(torch.int64, 99999, 16, 64)
    return {
        "division": (lambda x: [x / 255.0, x / 3, x // -3, x % -7, x > 2.5], (small,)),
        "divisor": (lambda x: [pool(x, 3, 2, padding=1, divisor_override=5)], (image,)),
        "scan": (lambda x: [x.cumsum(1), x.sum(1)], (draw(torch.int8, 127, 4, 64),)),
        "product": (lambda x, y: [x @ y], (large, draw(torch.int64, 99999, 64, 16))),
        "floats": (lambda x: [x // 0.1, x % 0.1], ((image * 10).round() / 10,)),
    }


@pytest.mark.parametrize("name", ["division", "divisor", "scan", "product", "floats"])
def test_zeros_at_first_do_not_hide_what_is_wrong(torch: Any, name: str) -> None:
    function, inputs = _cases(torch)[name]
    zeros = [torch.zeros_like(each) for each in inputs]
    got, message = _compiled_after(torch, function, zeros, *inputs)
    expected = function(*inputs)
    assert not message
    for actual, reference in zip(got, expected, strict=True):
        assert actual.dtype == reference.dtype
        assert torch.allclose(actual, reference, rtol=1e-5 if actual.is_floating_point() else 0)


def test_what_is_random_runs_eagerly_after_zeros_too(torch: Any) -> None:
    def dropped(x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5, True)

    zeros, ones = torch.zeros(64, 64), torch.ones(64, 64)
    result, message = _compiled_after(torch, dropped, (zeros,), ones)
    assert set(result.flatten().tolist()) == {0.0, 2.0}
    assert "draws random numbers" in message[0]


@pytest.mark.long
def test_layers_made_under_inference_mode_are_compiled(torch: Any) -> None:
    with torch.inference_mode():
        layer = torch.nn.Linear(8, 8)
    x = torch.randn(2, 8)
    compiled = torch.compile(layer, backend=amos_backend)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            assert torch.allclose(compiled(x), layer(x), atol=1e-5)


def _causal(torch: Any) -> Any:
    """Attention of GPT-2, with a causal mask of its own."""

    class Causal(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.joined, self.last = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)
            self.register_buffer("mask", torch.ones(16, 16).tril().bool())

        def forward(self, x: Any) -> Any:
            split = (each.unflatten(2, (4, 8)) for each in self.joined(x).split(32, 2))
            q, k, v = (each.transpose(1, 2) for each in split)
            length = x.shape[1]
            scores = (q @ k.transpose(2, 3) / 8**0.5).masked_fill(
                ~self.mask[:length, :length], torch.finfo(x.dtype).min
            )
            return self.last((scores.softmax(3) @ v).transpose(1, 2).flatten(2))

    return Causal()


def _levels(torch: Any) -> Any:
    """A product of values rounded to 8 bits, as PT2E writes it."""
    from torch.ao.quantization.fx import _decomposed  # noqa: F401

    levels = torch.ops.quantized_decomposed

    class Levels(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            weight = torch.randint(-127, 127, (32, 32), dtype=torch.int8)
            self.register_buffer("weight", weight)

        def forward(self, x: Any) -> Any:
            limits = (0.05, 128, 0, 255, torch.uint8)
            x = levels.quantize_per_tensor(x, *limits)
            x = levels.dequantize_per_tensor(x, *limits)
            weight = levels.dequantize_per_tensor(self.weight, 0.01, 0, -127, 127, torch.int8)
            return torch.nn.functional.linear(x, weight)

    return Levels()


def _layers(torch: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    nn, x = torch.nn, torch.randn(2, 16, 32)
    attention = nn.MultiheadAttention(32, 4, batch_first=True)
    layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    return {
        "causal": (_causal(torch), (x,)),
        "attention": (attention, (x, x.clone(), x.clone())),
        "lstm": (nn.LSTM(32, 16, 2, batch_first=True, bidirectional=True), (x,)),
        "gru": (nn.GRU(32, 16), (x,)),
        "levels": (_levels(torch), (x,)),
        "half": (deepcopy(layers).half(), (x.half(),)),
        "bfloat16": (layers.bfloat16(), (x.bfloat16(),)),
    }


@pytest.mark.parametrize(
    "name", ["causal", "attention", "lstm", "gru", "levels", "half", "bfloat16"]
)
@pytest.mark.long
def test_layers_are_compiled(torch: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = record_compiled_graphs(monkeypatch)
    layer, inputs = _layers(torch)[name]
    function = torch.compile(layer.eval(), backend=amos_backend)
    recurrent = torch._dynamo.config.patch(allow_rnn=True)  # torch was imported after the backend
    with recurrent, torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message='backend "amos"')
        function(*map(torch.zeros_like, inputs))
        results, expected = function(*inputs), layer(*inputs)
    leaves = torch.utils._pytree.tree_leaves
    for result, right in zip(leaves(results), leaves(expected), strict=True):
        assert result.dtype == right.dtype
        assert torch.allclose(
            result, right, atol=2e-2 if name in ("half", "levels", "bfloat16") else 1e-5
        )
    assert len(compiled) == 1


def test_what_is_slower_runs_eagerly(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = torch.nn.Linear(8, 8), torch.randn(2, 8)
    monkeypatch.setattr(backend, "race", lambda amos, eager: Race((2.0,), (1.0,)))
    graphs: list[Any] = []
    usual = backend.CompiledGraph._compile_checked

    def checked(self: Any, values: Any) -> Any:
        graphs.append(self)
        return usual(self, values)

    monkeypatch.setattr(backend.CompiledGraph, "_compile_checked", checked)
    compiled = torch.compile(layer, backend=amos_backend)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", message='backend "amos"')
        assert torch.equal(compiled(x), layer(x))
        assert torch.equal(compiled(x), layer(x))
    (graph,) = graphs
    assert graph.races == [Race((2.0,), (1.0,))] and [*graph._models.values()] == [None]
