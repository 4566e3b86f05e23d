"""The kernels that stay: built, right and the fastest; others give way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

import amos
from amos.errors import BuildError, NetworkError, ToolchainError
from amos.network import CompiledNetwork
from amos.network.comparison import Comparison, compare_alone, compare_in_network
from amos.network.groups import Job
from amos.network.kernels import TaskKernel, load_code
from amos.network.lowerings.base import Direct, ProductLowering
from tests.network.models import Builder, compile_whole, load_whole, reference_result


@pytest.fixture
def product() -> tuple[ModelProto, np.ndarray]:
    b = Builder()
    model = b.model(b.node("Relu", b.node("MatMul", b.input("x", (4, 16)), b.random(16, 32))))
    return model, np.random.default_rng(2).standard_normal((4, 16)).astype(np.float32)


@pytest.mark.long
def test_kernels_slower_than_the_engines_code_stay_out(
    monkeypatch: pytest.MonkeyPatch, product: tuple[ModelProto, np.ndarray]
) -> None:
    model, values = product

    def rigged(kernels: Sequence[TaskKernel], task: Job) -> list[float]:
        seconds = compare_alone(kernels, task)
        assert all(0 < each < 1 for each in seconds)
        return [2.0] * len(kernels) + [1.0]

    monkeypatch.setattr("amos.network.compilation.compare_alone", rigged)
    network = load_whole(model)
    compiled = compile_whole(network, measure=True, verify=False, progress=False)
    assert not compiled.kernels and not compiled.comparisons
    (why,) = compiled.fallbacks.values()
    assert why == "the kernel takes 2000 ms, plain loops 1000 ms"
    (row,) = compiled.report().tasks
    assert (row.reason, row.instruction) == (why, "")
    np.testing.assert_allclose(
        compiled(values), reference_result(model, x=values), rtol=1e-5, atol=1e-6
    )


@pytest.mark.long
def test_a_kernel_that_cannot_be_built_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, product: tuple[ModelProto, np.ndarray]
) -> None:
    model, values = product
    tried, build = list[Direct](), Direct.build

    def failing(direct: Direct, symbol: str) -> TaskKernel:
        tried.append(direct)
        if len(tried) == 1:
            raise BuildError("the first")
        return build(direct, symbol)

    monkeypatch.setattr(Direct, "build", failing)
    network = load_whole(model)
    compiled = compile_whole(network, measure=True, progress=False)
    assert len(tried) > 1 and [*compiled.fallbacks.values()] != ["the first"]
    np.testing.assert_allclose(
        compiled(values), reference_result(model, x=values), rtol=1e-5, atol=1e-6
    )
    tried.clear()
    compiled = compile_whole(network, progress=False)
    assert len(tried) > 1 and not compiled.fallbacks


def test_calls_need_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this network is left to the engine."""
    b = Builder()
    y = b.node("MatMul", b.input("x", (4, 16)), b.random(16, 40))
    model = compile_whole(load_whole(b.model(y)), verify=False, progress=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert model(np.zeros((4, 16), np.float32)).shape == (4, 40)


def test_no_kernel_is_built_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    model = b.model(b.node("MatMul", b.input("x", (4, 24)), b.random(24, 40)))
    monkeypatch.setattr("amos.network.kernels.compiler_command", lambda: None)
    monkeypatch.setattr(Direct, "build", lambda *_: pytest.fail("a kernel was built"))
    with pytest.raises(NetworkError, match="needs a C compiler: apt install gcc"):
        amos.compile(amos.load_network(model), progress=False)


def test_code_that_cannot_be_loaded_ends_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kernel could not be loaded either, and later ones may be."""
    b = Builder()
    network = load_whole(b.model(b.node("MatMul", b.input("x", (4, 24)), b.random(24, 40))))
    with monkeypatch.context() as patch:
        patch.setattr("amos.network.kernels.complaint", lambda *_: "")  # links nothing
        with pytest.raises(ToolchainError, match=r"cannot be loaded from .* TMPDIR names another"):
            compile_whole(network, progress=False)
    assert compile_whole(network, progress=False).kernels


class _Silent:
    """The library of a kernel that stores nothing."""

    def __getitem__(self, _: str) -> Any:
        return lambda *tensors: None


@pytest.mark.parametrize("wrong", [1, 100])
def test_a_wrong_kernel_gives_way(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the next candidate, or at last to the engine; the failure is reported."""
    built, build = list[TaskKernel](), Direct.build

    def rigged(direct: Direct, symbol: str) -> TaskKernel:
        built.append(build(direct, symbol))
        return built[-1]

    def load(code: bytes) -> Any:
        return _Silent() if len(built) <= wrong else load_code(code)

    monkeypatch.setattr(Direct, "build", rigged)
    monkeypatch.setattr("amos.network.kernels.load_code", load)
    b = Builder()
    model = b.model(b.node("MatMul", b.input("x", (4, 16)), b.random(16, 40)))
    compiled = compile_whole(load_whole(model), progress=False)
    values = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    np.testing.assert_allclose(compiled(values), reference_result(model, x=values), 1e-4, 1e-4)
    assert len(_keys_of(built)) == len(built) > 1
    assert len(compiled.failures) == min(wrong, len(built))
    assert "not used: the kernel of" in str(compiled)
    assert compiled.to_dict()["failures"] == list(compiled.failures)
    assert list(compiled.kernels.values()) == ([] if wrong > 1 else built[1:])
    assert list(compiled.fallbacks.values()) == ([compiled.failures[0]] if wrong > 1 else [])


def _keys_of(kernels: Sequence[TaskKernel]) -> set[object]:
    """Identities of the products of kernels."""
    lowerings = (kernel.lowering for kernel in kernels)
    return {each.product.key for each in lowerings if isinstance(each, ProductLowering)}


def test_the_kernel_that_is_fastest_inside_the_network_stays(
    monkeypatch: pytest.MonkeyPatch, product: tuple[ModelProto, np.ndarray]
) -> None:
    """All are really run there, in the order of what they take alone."""
    model, values = product
    alone: list[TaskKernel] = []

    def backwards(kernels: Sequence[TaskKernel], task: Job) -> list[float]:
        alone[:] = kernels[::-1]
        return [float(len(kernels) - n) for n in range(len(kernels))] + [math.inf]

    def rigged(
        models: Sequence[CompiledNetwork], kernels: Mapping[Job, Sequence[TaskKernel]]
    ) -> dict[Job, Comparison]:
        for loaded in models:
            np.testing.assert_allclose(loaded(values), expected, rtol=1e-5, atol=1e-6)
        ((task, comparison),) = compare_in_network(models, kernels).items()
        assert [each.kernels[task] for each in models] == alone[:2] == kernels[task]
        assert len(comparison.seconds) == 2
        assert all(0 < each < 1 for each in comparison.seconds)
        return {task: replace(comparison, seconds=(2.0, 1.0))}

    expected = reference_result(model, x=values)
    monkeypatch.setattr("amos.network.compilation._MEASURED", 3)
    monkeypatch.setattr("amos.network.compilation._FINALISTS", 2)
    monkeypatch.setattr("amos.network.compilation.compare_alone", backwards)
    monkeypatch.setattr("amos.network.compilation.compare_in_network", rigged)
    compiled = compile_whole(load_whole(model), measure=True, progress=False)
    assert list(compiled.kernels.values()) == [alone[1]]
    assert len(_keys_of(alone)) == 3
    (summary,) = compiled.to_dict()["comparisons"]
    assert (summary["chosen"], summary["count"], summary["seconds"]) == (1, 1, (2.0, 1.0))
    assert "2000000.0, 1000000.0 us in the network, of 1 x out[m, n]" in str(compiled)
    np.testing.assert_allclose(compiled(values), expected, rtol=1e-5, atol=1e-6)
