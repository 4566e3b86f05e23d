"""Watches what the backend of PyTorch compiles."""

from __future__ import annotations

from typing import Any

import pytest

from amos.network.pytorch import backend
from amos.network.races import Race


def record_compiled_graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the backend compiles from now on; it wins every race."""
    monkeypatch.setattr(Race, "wins", True)
    compiled: list[Any] = []
    usual = backend.CompiledGraph._build

    def build(self: Any, *arguments: Any) -> Any:
        compiled.append(usual(self, *arguments))
        return compiled[-1]

    monkeypatch.setattr(backend.CompiledGraph, "_build", build)
    return compiled
