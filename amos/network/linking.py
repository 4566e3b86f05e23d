"""Kernels and the engine's own operators as one module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from amos.network import engine
from amos.network.kernels import TaskKernel
from amos.network.model import CompiledNetwork
from amos.network.program import joined, rebuilt
from amos.network.simplify import slices_of_splits


def linked(models: Sequence[CompiledNetwork], placed: Callable[[Any], Any]) -> Any:
    """The engine's executable of kernels and all else, with a function for each model.

    Args:
        models: with their kernels; each says what its function is called.
        placed: makes of the module one whose constants are somewhere else.

    Raises:
        NetworkError: the engine cannot compile it.
    """
    module = joined({model.function: calling(model) for model in models})
    libraries = [kernel.library.mod for model in models for kernel in model.kernels.values()]
    if libraries:
        module = module.with_attr("external_mods", libraries)
    names = ", ".join(model.network.name for model in models)
    return engine.executable(placed(module), name=names)


def calling(model: CompiledNetwork) -> Any:
    """Write a module of the engine's operators and calls of the kernels."""
    graph, rewrite = model.network.graph, dict[int, Any]()
    called: set[int] = set()
    for task, kernel in model.kernels.items():
        for group in task.groups:
            called |= {node.number for node in group.nodes}
            rewrite[group.result.number] = _Call(kernel, group)
    slices = slices_of_splits(graph, called)
    return rebuilt(graph, slices | rewrite, frozenset(called - rewrite.keys()))


@dataclass(frozen=True)
class _Call:
    """Writes the call of a kernel in the place of a group."""

    kernel: TaskKernel
    group: Any

    def __call__(self, writer: Any) -> Any:
        return self.kernel.call(self.group, writer)
