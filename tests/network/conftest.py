"""Networks of these tests are compiled in this process, and run by AMOS if it is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from amos.measure import helpers
from amos.network.external.race import Timing
from amos.network.lowerings import cascade, fused


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    """Other processes would take longer to start than they save, and are not patched."""
    helpers.stop_helpers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(helpers, "LEAST_CALLS", 1000)
        yield


@pytest.fixture(scope="module", autouse=True)
def _not_raced() -> Iterator[None]:
    """Otherwise onnxruntime would run some of these small networks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Timing, "wins", property(lambda timing: not timing.fault))
        yield


@pytest.fixture
def cascades_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cascades pay everywhere, the longer ones more."""
    monkeypatch.setattr(cascade, "_has_resident_intermediate", lambda chain, machine: False)
    monkeypatch.setattr(fused, "predict_separate", lambda site, *_: float(len(site.groups)))


@pytest.fixture
def torch() -> Any:
    """PyTorch, as if nothing had been compiled before."""
    module = pytest.importorskip("torch", reason="PyTorch is not installed")
    module.manual_seed(0)
    module._dynamo.reset()
    return module
