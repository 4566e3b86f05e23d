"""Compiling again takes searches and kernels from the cache on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import amos
from amos.cli.app import app
from amos.explore.choosing import Chooser
from amos.network import kernels
from amos.network.loops import scheduling
from amos.network.lowerings.base import ProductLowering
from tests.network.models import Builder


def _refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("computed again")


def test_a_network_compiled_again_is_the_same_without_search_or_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AMOS_CACHE_MIB", raising=False)
    b = Builder()
    x = b.input("x", (1, 8, 12, 12))
    y = b.node("Relu", b.node("Conv", x, b.random(16, 8, 3, 3), pads=[1, 1, 1, 1]))
    y = b.node("Softmax", b.node("Conv", y, b.random(8, 16, 1, 1)), axis=1)
    model = b.model(y)

    def compile_model() -> Any:
        return amos.compile(amos.load_network(model), precision="auto", progress=False)

    first = compile_model()
    for owner, name in (
        (Chooser, "search"),
        (ProductLowering, "build"),
        (scheduling, "object_code"),
    ):
        monkeypatch.setattr(owner, name, _refuse)
    second = compile_model()
    monkeypatch.setenv("AMOS_CACHE_MIB", "0")
    with pytest.raises(AssertionError, match="again"):
        compile_model()
    assert {*first.kernels} and len(first.kernels) == len(second.kernels)
    if first.library is not None and second.library is not None:
        assert first.library.domain == second.library.domain
    values = np.random.default_rng(0).standard_normal((1, 8, 12, 12)).astype(np.float32)
    np.testing.assert_array_equal(first(values), second(values))


def test_a_command_that_has_compiled_a_model_starts_no_processes_ahead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AMOS_CACHE_MIB", raising=False)
    starts = list[int]()
    monkeypatch.setattr(kernels, "start_builders", lambda *_: starts.append(1))
    for seed, count in ((0, 1), (0, 1), (1, 2)):
        b = Builder(seed)
        y = b.node("MatMul", b.input("x", (8, 16)), b.random(16, 8 + seed))
        if seed or not starts:  # a file that is written again is another model
            onnx.save(b.model(y), tmp_path / "model.onnx")
        assert CliRunner().invoke(app, ["compile", str(tmp_path / "model.onnx")]).exit_code == 0
        assert len(starts) == count
