"""PyTorch's modules and exported programs as Relax modules, their open dimensions by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amos.codegen.scheduled import last_line
from amos.errors import NetworkError


def exported(model: Any, inputs: Sequence[Any] | None) -> Any:
    """The ``ExportedProgram`` of a ``torch.nn.Module``, or of a program itself.

    Args:
        model: a module or a program.
        inputs: example inputs of a module.

    Raises:
        NetworkError: PyTorch cannot export it, or inputs are missing.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        return model
    name = type(model).__name__
    if inputs is None:
        raise NetworkError(
            f"module {name}: give example inputs, as in load_network(module, inputs=(x,))"
        )
    try:
        with torch.no_grad():
            return torch.export.export(model.eval(), tuple(inputs))
    except Exception as error:  # what torch refuses, it refuses with many types
        raise NetworkError(
            f"module {name}: PyTorch cannot export it: {last_line(error)}"
        ) from error


def from_program(program: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """A Relax module of a program, its inputs with some shapes.

    Raises:
        NetworkError: there is something that is not supported.
    """
    from tvm.relax.frontend.torch import from_exported_program

    try:
        if any(isinstance(e, str) for shape in named_shapes(program).values() for e in shape):
            program = _resized(program, shapes)
        return from_exported_program(
            program, keep_params_as_input=False, unwrap_unit_return_tuple=True
        )
    except Exception as error:  # what torch and TVM refuse, they refuse with many types
        raise NetworkError(f"TVM cannot import the program: {last_line(error)}") from error


def named_shapes(model: Any) -> dict[str, tuple[int | str, ...]]:
    """Extents of a program's inputs, or names of those that it leaves open; none of a module."""
    nodes = [] if not hasattr(model, "graph_signature") else _inputs(model)
    shapes = {node.name: getattr(node.meta["val"], "shape", ()) for node in nodes}
    return {name: tuple(map(_extent, shape)) for name, shape in shapes.items()}


def _inputs(program: Any) -> list[Any]:
    """The nodes of what a program reads that is no weight."""
    names = program.graph_signature.user_inputs
    return [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]


def _extent(size: Any) -> int | str:
    """An extent, or what ``torch.export.Dim`` calls it, or else PyTorch's own symbol."""
    if isinstance(size, int):
        return size
    symbol, environment = size.node.expr, size.node.shape_env
    names = getattr(environment, "source_name_to_debug_name", {})
    sources = getattr(environment, "var_to_sources", {}).get(symbol, ())
    return next((names[each.name] for each in sources if each.name in names), str(symbol))


def _resized(program: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """A program exported again for other shapes."""
    import torch
    from torch.utils import _pytree

    flat, structure = _pytree.tree_flatten(program.example_inputs)
    examples = [
        torch.zeros(tuple(shapes[node.name]), dtype=value.dtype)
        if isinstance(value, torch.Tensor)
        else value
        for node, value in zip(_inputs(program), flat, strict=True)
    ]
    arguments, named = _pytree.tree_unflatten(examples, structure)
    with torch.no_grad():
        return torch.export.export(program.module(), arguments, named)
