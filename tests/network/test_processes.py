"""Kernels that another process builds are called as those of this one."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amos.explore import choosing
from amos.measure import helpers
from amos.network.kernels import BuiltKernels, load_builders
from amos.network.sessions import plain_session
from tests.network.models import Builder, compile_whole, load_whole


@pytest.fixture
def built_here(monkeypatch: pytest.MonkeyPatch) -> list[BuiltKernels]:
    """What this process builds beside another one."""
    monkeypatch.setattr(helpers, "LEAST_CALLS", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    (helper,) = helpers._get_helpers(1, start=True)
    helper.serve(deque([helpers._Job(load_builders, ())]))

    built: list[BuiltKernels] = []

    def map_later(*arguments: Any, here: Callable[..., Any], **options: Any) -> Any:
        def build_later(*request: Any) -> Any:
            time.sleep(0.5)  # or this process might build all of them
            built.append(here(*request))
            return built[-1]

        return helpers.map_in_processes(*arguments, here=build_later, **options)

    monkeypatch.setattr(choosing, "map_in_processes", map_later)
    return built


@pytest.mark.long
def test_a_network_is_built_by_two_processes(built_here: list[BuiltKernels]) -> None:
    b = Builder()
    x, results = b.input("x", (4, 16)), []
    for columns, rows in [(24, 16), (40, 24), (8, 40), (48, 8)]:
        x = b.node("Relu", b.node("MatMul", x, b.random(rows, columns)))
        results.append(x)  # so that no two products are one chain
    model = b.model(*results)
    network = load_whole(model)
    compiled = compile_whole(network, progress=False)
    kernels = [*compiled.kernels.values()]
    assert len(kernels) == 4 and 0 < len(built_here) < 4
    assert len(compiled.checks) == 5  # and the whole
    values = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    expected = plain_session(model).run(None, {"x": values})
    for result, reference in zip(compiled(values), expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-4)
