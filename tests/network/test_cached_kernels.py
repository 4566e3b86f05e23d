"""Compiling again takes searches and kernels from the cache on disk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import amos
from amos.explore.choosing import Chooser
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
