"""PyTorch's modules and exported programs as ONNX models, their open dimensions by name."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from threading import RLock
from typing import Any

import numpy as np

from amos.errors import NetworkError, quote
from amos.network.frontend import RANDOM_OPERATORS, type_names
from amos.network.packages import torch
from amos.network.pytorch.masks import hide_masked_keys
from amos.network.sessions import Reference

#: Held while the levels of the loggers of packages that export a module are changed.
_LOCK = RLock()
_EXPORTERS = (
    "torch._subclasses.fake_tensor",
    "torch.export",
    "torch.onnx",
    "onnxscript",
    "onnx_ir",
)


@dataclass(frozen=True)
class Translation:
    """A program of PyTorch as an ONNX model.

    Attributes:
        program: a ``torch.export.ExportedProgram``.
        model: an ``onnx.ModelProto`` with the program's names of inputs.
    """

    program: Any
    model: Any

    @property
    def reference(self) -> Reference:
        """PyTorch itself."""
        return Reference("PyTorch", self.evaluate)

    @cached_property
    def _module(self) -> Any:
        return self.program.module()

    @property
    def examples(self) -> list[Any]:
        """The tensors that it was exported with."""
        return [value for value in self._flat()[0] if hasattr(value, "dtype")]

    def run(self, tensors: Sequence[Any]) -> list[Any]:
        """Run PyTorch on tensors in order."""
        remaining = iter(tensors)
        flat, structure = self._flat()
        values = [next(remaining) if isinstance(x, torch.Tensor) else x for x in flat]
        arguments, named = torch.utils._pytree.tree_unflatten(values, structure)
        with torch.no_grad():
            results = torch.utils._pytree.tree_leaves(self._module(*arguments, **named))
        return [result for result in results if isinstance(result, torch.Tensor)]

    def evaluate(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Run it on arrays, with bfloat16 as float32 on both sides; ``None`` if it fails."""
        pairs = zip(arrays, self.examples, strict=True)
        try:
            results = self.run([torch.from_numpy(np.array(a)).to(x.dtype) for a, x in pairs])
        except Exception:  # PyTorch refuses values with errors of many types
            return None
        return [(r.float() if r.dtype == torch.bfloat16 else r).numpy(force=True) for r in results]

    def _flat(self) -> Any:
        return torch.utils._pytree.tree_flatten(self.program.example_inputs)


def is_torch(model: Any) -> bool:
    """Return whether this is a module or an exported program of PyTorch."""
    return bool(type_names(model) & {"torch.Module", "torch.ExportedProgram"})


def translate(model: Any, inputs: Any, name: str) -> Translation:
    """Export a module or a program to ONNX.

    Args:
        model: a ``torch.nn.Module`` or a ``torch.export.ExportedProgram``.
        inputs: example inputs of a module.

    Raises:
        NetworkError: inputs are wrong or missing, PyTorch cannot export it, it changes tensors
            in place, or draws random numbers.
    """
    with _suppress_logs(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = _export(model, inputs)
        _check_functional(program)
        translated = _export_onnx(program, name)
    for node in translated.graph.node:
        if node.op_type in RANDOM_OPERATORS or (node.op_type == "Dropout" and len(node.input) == 3):
            raise NetworkError(f"model {name!r}: {node.op_type} draws random numbers")
    return Translation(program, translated)


@contextmanager
def _suppress_logs() -> Iterator[None]:
    """Suppress the logs of PyTorch and onnxscript, which repeat what errors say."""
    loggers = [logging.getLogger(name) for name in _EXPORTERS]
    with _LOCK:
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _export(model: Any, inputs: Any) -> Any:
    """Export a module; return a program as it is."""
    if not isinstance(model, torch.nn.Module):
        return model
    name = type(model).__name__
    _check_inputs(name, inputs)
    model = _copy_inference_tensors(model)
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.inference_mode(False), torch.no_grad():
            return torch.export.export(model.eval(), tuple(map(_example, inputs)))
    except Exception as error:  # what torch refuses, it refuses with many types
        raise NetworkError(
            f"module {name}: PyTorch cannot export it: {_first_line(error)}"
        ) from error
    finally:
        for module, training in modes.items():
            module.training = training


def _check_inputs(name: str, inputs: object) -> None:
    """Refuse example inputs that are none."""
    if inputs is None:
        raise NetworkError(
            f"module {name}: give example inputs, as in load_network(module, inputs=(x,))"
        )
    if not isinstance(inputs, tuple | list):
        raise NetworkError(f"inputs: expected a tuple of tensors, as (x,), got {quote(inputs)}")
    for number, value in enumerate(inputs):
        if isinstance(value, np.ndarray):
            raise NetworkError(
                f"inputs: expected tensors, number {number} is an array of NumPy; "
                "torch.from_numpy makes a tensor of it"
            )


def _copy_inference_tensors(model: Any) -> Any:
    """Return the module, or a copy of one with tensors of ``torch.inference_mode``.

    PyTorch exports no such tensors.
    """
    if not any(tensor.is_inference() for tensor in (*model.parameters(), *model.buffers())):
        return model
    tensors: dict[int, Any] = {}
    with torch.inference_mode(False):
        for tensor in model.parameters():
            tensors[id(tensor)] = torch.nn.Parameter(tensor.clone(), requires_grad=False)
        for tensor in model.buffers():
            tensors[id(tensor)] = tensor.clone()
        return deepcopy(model, tensors)


def _example(value: Any) -> Any:
    """Copy an input for PyTorch's exporter.

    It takes no tensors of inference mode, and reads only the last of inputs that are one tensor.
    """
    return value.clone() if isinstance(value, torch.Tensor) else value


def _check_functional(program: Any) -> None:
    """Refuse inputs that are no tensors, and changes in place, which calls would lose."""
    for spec in program.graph_signature.input_specs:
        if type(spec.arg).__name__ == "ConstantArgument":
            value = quote(spec.arg.value)
            raise NetworkError(f"input {spec.arg.name!r}: expected a tensor, got {value}")
    try:
        # Without decompositions it still tells changes in place apart.
        signature = program.run_decompositions({}).graph_signature
    except Exception as error:  # what torch refuses, it refuses with many types
        raise NetworkError(f"PyTorch cannot decompose the program: {_first_line(error)}") from error
    changed = [*signature.user_inputs_to_mutate.values(), *signature.buffers_to_mutate.values()]
    if changed:
        raise NetworkError(f"{changed[0]!r} is changed in place")


def _export_onnx(program: Any, name: str) -> Any:
    """Export a program as an ONNX model in memory."""
    try:
        exported = torch.onnx.export(program, dynamo=True, optimize=True, verbose=False)
        model = exported.model_proto
    except ImportError:
        raise NetworkError(
            "PyTorch needs onnxscript to export ONNX: pip install 'amos-mapper[torch]'"
        ) from None
    except Exception as error:  # what torch refuses, it refuses with many types
        cause = error.__cause__ or error
        raise NetworkError(f"PyTorch cannot export {name} to ONNX: {_first_line(cause)}") from error
    model.graph.name = name
    hide_masked_keys(model.graph)
    names = _dimension_names(program)
    for port in (*model.graph.input, *model.graph.output):
        for extent in port.type.tensor_type.shape.dim:
            if extent.HasField("dim_param"):
                extent.dim_param = re.sub(
                    r"\w+", lambda symbol: names.get(symbol[0], symbol[0]), extent.dim_param
                )
    return model


def _dimension_names(program: Any) -> dict[str, str]:
    """Map PyTorch's symbols for open dimensions to names by ``torch.export.Dim``."""
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    names: dict[str, str] = {}
    for size in (size for node in nodes for size in getattr(node.meta.get("val"), "shape", ())):
        if not isinstance(size, int):
            symbol, environment = size.node.expr, size.node.shape_env
            debug = getattr(environment, "source_name_to_debug_name", {})
            sources = getattr(environment, "var_to_sources", {}).get(symbol, ())
            names |= {str(symbol): debug[each.name] for each in sources if each.name in debug}
    return names


def _first_line(error: BaseException) -> str:
    """Return the first line of an error of PyTorch, which advice and a trace follow."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)
