"""PyTorch's modules and exported programs as Relax modules, their open dimensions by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from amos.codegen.scheduled import last_line
from amos.errors import NetworkError, shown
from amos.network.torch_dtypes import converters, promoted


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
    model = _outside_inference_mode(model)
    modes = {each: each.training for each in model.modules()}
    try:
        with torch.inference_mode(False), torch.no_grad():
            return torch.export.export(model.eval(), tuple(map(_usual_tensor, inputs)))
    except Exception as error:  # what torch refuses, it refuses with many types
        raise NetworkError(
            f"module {name}: PyTorch cannot export it: {_first_line(error)}"
        ) from error
    finally:
        for each, training in modes.items():
            each.training = training


def _outside_inference_mode(model: Any) -> Any:
    """The module; a copy if ``torch.inference_mode`` made it, which PyTorch does not export."""
    import torch

    if not any(each.is_inference() for each in (*model.parameters(), *model.buffers())):
        return model
    tensors: dict[int, Any] = {}
    with torch.inference_mode(False):
        for each in model.parameters():
            tensors[id(each)] = torch.nn.Parameter(each.clone(), requires_grad=False)
        for each in model.buffers():
            tensors[id(each)] = each.clone()
        return deepcopy(model, tensors)


def _usual_tensor(value: Any) -> Any:
    """A tensor that PyTorch may export."""
    import torch

    return value.clone() if isinstance(value, torch.Tensor) and value.is_inference() else value


def _first_line(error: Exception) -> str:
    """What PyTorch says first: advice and where its own code stands follow."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def functional(program: Any) -> Any:
    """A program that changes nothing in place.

    Raises:
        NetworkError: it does, which would be lost from one call to the next.
    """
    try:
        # Without decompositions it still tells changes in place apart.
        program = program.run_decompositions({})
    except Exception as error:  # what torch refuses, it refuses with many types
        raise NetworkError(f"PyTorch cannot decompose the program: {_first_line(error)}") from error
    signature = program.graph_signature
    if changed := [
        *signature.user_inputs_to_mutate.values(),
        *signature.buffers_to_mutate.values(),
    ]:
        raise NetworkError(f"{changed[0]!r} is changed in place")
    return program


def resized(program: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """A program with nothing open, its inputs with some shapes.

    Raises:
        NetworkError: PyTorch cannot export it so.
    """
    if all(isinstance(e, int) for shape in named_shapes(program).values() for e in shape):
        return program
    try:
        return _exported_again(program, shapes)
    except Exception as error:  # what torch refuses, it refuses with many types
        raise NetworkError(f"PyTorch cannot export the program: {_first_line(error)}") from error


def evaluated(program: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What PyTorch computes of inputs in order; bfloat16 as float32, on both sides."""
    import torch
    from torch.utils import _pytree

    tensors = (torch.from_numpy(np.asarray(array)) for array in arrays)
    flat, structure = _pytree.tree_flatten(program.example_inputs)
    values = [next(tensors).to(x.dtype) if isinstance(x, torch.Tensor) else x for x in flat]
    arguments, named = _pytree.tree_unflatten(values, structure)
    with torch.no_grad():
        results = _pytree.tree_leaves(program.module()(*arguments, **named))
    inside = (result for result in results if isinstance(result, torch.Tensor))
    return [(r.float() if r.dtype == torch.bfloat16 else r).numpy(force=True) for r in inside]


def from_program(program: Any) -> Any:
    """A Relax module of a program.

    Raises:
        NetworkError: there is something that is not supported.
    """
    from tvm.relax.frontend.torch import from_exported_program

    for spec in program.graph_signature.input_specs:
        if type(spec.arg).__name__ == "ConstantArgument":
            value = shown(spec.arg.value)
            raise NetworkError(f"input {spec.arg.name!r}: expected a tensor, got {value}")
    try:
        return from_exported_program(
            promoted(program.run_decompositions()),
            keep_params_as_input=False,
            unwrap_unit_return_tuple=True,
            custom_convert_map=converters(),
            run_ep_decomposition=False,
        )
    except NetworkError:
        raise
    except Exception as error:  # what TVM refuses, it refuses with many types
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


def _exported_again(program: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
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
