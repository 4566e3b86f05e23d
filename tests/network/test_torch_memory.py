"""How results of ``torch.compile(module, backend="amos")`` lie in memory."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from amos.errors import NetworkError
from amos.network.pytorch.backend import amos_backend
from amos.network.pytorch.memory import find_views, invert, order_of_axes, permute, separate
from tests.network.torch_graphs import record_compiled_graphs

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def test_orders_of_axes(torch: Any) -> None:
    x = torch.zeros(2, 3, 4, 5)
    assert order_of_axes(x) is None
    assert order_of_axes(x.to(memory_format=torch.channels_last)) == (0, 2, 3, 1)
    assert order_of_axes(x.permute(3, 1, 0, 2)) == (2, 1, 3, 0)
    # One axis has but one place in memory, some elements have none, and some lie apart.
    assert order_of_axes(x[:, :1].to(memory_format=torch.channels_last)) is None
    assert order_of_axes(torch.zeros(0, 3, 4)) is None
    assert order_of_axes(x[:, :, ::2].permute(3, 1, 0, 2)) is None
    assert order_of_axes(torch.zeros(3, 1).expand(3, 5)) is None
    assert order_of_axes(torch.zeros(())) is None


def test_an_order_is_inverted(torch: Any) -> None:
    x = torch.randn(2, 3, 4, 5)
    order = (2, 0, 3, 1)
    assert torch.equal(permute(permute(x, order), invert(order)), x)
    assert permute(x, None) is x


def test_views_are_found(torch: Any) -> None:
    x, y, own = torch.randn(4, 6), torch.randn(8), torch.randn(5)
    views = find_views([3, x[1:], own], [x[2:, ::2], y, y.view(2, 4).t(), own, torch.zeros(0)])
    assert [view is None for view in views] == [False, True, False, False, True]
    call = [3, torch.randn(3, 6), own, None, torch.randn(8)]
    input_view, transposed, parameter = [view.of(call) for view in views if view is not None]
    assert torch.equal(input_view, call[1][1:, ::2])
    assert torch.equal(transposed, call[4].view(2, 4).t())
    assert torch.equal(parameter, own)


def test_views_that_no_view_can_state_are_refused(torch: Any) -> None:
    x = torch.randn(4, 6)
    with pytest.raises(NetworkError, match="its results share memory"):
        find_views([x], [x.view(torch.int32)])
    with pytest.raises(NetworkError, match="its results share memory"):
        find_views([], [x[1:], x])


def test_results_without_common_elements_are_no_views(torch: Any) -> None:
    assert find_views([], torch.randn(4, 24).chunk(3, -1)) == (None, None, None)
    x = torch.randn(4, 24)
    with pytest.raises(NetworkError, match="its results share memory"):
        find_views([], [x[:, :8], x[:, 7:]])


def test_tensors_that_share_memory_are_separated(torch: Any) -> None:
    x, y = torch.randn(4, 16).chunk(2, -1)
    values = [x, 3, y.t(), torch.zeros(1, 4).expand(3, 4), torch.zeros(0), torch.zeros(0)]
    first, number, second, *last = separate(values)
    assert first is x and number == 3 and all(map(operator.is_, last, values[3:]))
    assert torch.equal(second, y.t()) and second.stride() == (1, 16)
    (view,) = find_views([first, second], [second[1:]])
    assert view is not None and view.base == 1
    later = torch.randn(4, 16)[:, 8:].t()
    assert torch.equal(view.of([x, later]), later[1:])


def _strided(torch: Any) -> Any:
    class Strided(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(8, 16, 3, padding=1)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.conv(x))
            torch._dynamo.graph_break()
            return y.permute(0, 2, 3, 1).view(len(y), -1)

    return Strided().eval().to(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_follows_may_rely_on_channels_last(
    torch: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, single = record_compiled_graphs(monkeypatch), dtype == "float32"
    module = _strided(torch).to(getattr(torch, dtype))
    function = torch.compile(module, backend=amos_backend)
    x = torch.randn(2, 8, 6, 5).to(module.conv.weight.dtype)
    x = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        for value in (x, -x):
            assert torch.allclose(function(value), module(value), atol=1e-5 if single else 1e-1)
    assert len(compiled) == 1
    ((_, order),) = compiled[0].inputs.values()
    assert order == (0, 2, 3, 1) and compiled[0].results[0][1] == order


@pytest.mark.filterwarnings("ignore:.*is changed in place")
def test_changes_in_place_behind_a_graph_reach_inputs_and_results(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Aliased(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(16, 8)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.linear(x))
            input_view, result_view = x.view(-1), y.t()
            torch._dynamo.graph_break()
            input_view.add_(1)
            result_view[0] = 3
            return x * 2, y

    compiled = record_compiled_graphs(monkeypatch)
    module = Aliased().eval()
    function = torch.compile(module, backend=amos_backend)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(4, 16)
            same = x.clone()
            for result, expected in zip(function(x), module(same), strict=True):
                assert torch.allclose(result, expected, atol=1e-5)
            assert torch.equal(x, same)
    assert len(compiled) == 1


def test_inputs_may_share_memory_in_one_call_alone(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(x: Any, y: Any) -> Any:
        return x @ y.t(), y.t(), *(x @ x.t()).chunk(2, -1)

    compiled = record_compiled_graphs(monkeypatch)
    graph = torch.compile(function, backend=amos_backend)
    with torch.no_grad():
        for x, y in (torch.randn(16, 12).chunk(2), (torch.randn(8, 12), torch.randn(8, 12))):
            results = graph(x, y)
            for result, expected in zip(results, function(x, y), strict=True):
                assert torch.allclose(result, expected, atol=1e-5)
            assert results[1].data_ptr() == y.data_ptr()
    assert len(compiled) == 1


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_sizes_are_results_too(torch: Any) -> None:
    def sizes(x: Any) -> Any:
        return x @ x.t(), len(x) * 2

    function = torch.compile(sizes, backend=amos_backend, dynamic=True)
    with torch.no_grad():
        for extent in (3, 5):
            result, double = function(torch.ones(extent, 4))
            assert result.shape == (extent, extent) and double == 2 * extent


def test_sizes_that_values_decide_run_eagerly(torch: Any) -> None:
    def rows(x: Any, mask: Any) -> Any:
        y = x[mask.nonzero().squeeze(1)]
        return y @ y.t(), y.t()

    function = torch.compile(rows, backend=amos_backend)
    x, mask = torch.randn(3, 4), torch.tensor([1, 0, 1])
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        torch.no_grad(),
        pytest.warns(UserWarning, match="a size that values of tensors decide"),
    ):
        for result, expected in zip(function(x, mask), rows(x, mask), strict=True):
            assert torch.equal(result, expected)
