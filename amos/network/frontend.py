"""Models in: ONNX files and PyTorch modules as a Relax module of operators."""

from __future__ import annotations

import io
import os
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from amos._toolchain import load_tvm
from amos.codegen.scheduled import last_line
from amos.errors import NetworkError, shown
from amos.network.qlinear import with_pairs

__all__ = ["Shapes", "import_model"]

#: Extents of inputs by name.
Shapes = Mapping[str, Sequence[int]]


def import_model(source: Any, inputs: Sequence[Any] | None, shapes: Shapes | None) -> Any:
    """A Relax module whose ``main`` is the model, with its weights as constants.

    Args:
        source: path of an ONNX file, an ``onnx.ModelProto``, a ``torch.nn.Module`` or a
            ``torch.export.ExportedProgram``.
        inputs: example inputs of a ``torch.nn.Module``.
        shapes: extents of inputs that the model leaves open.

    Raises:
        NetworkError: this is no model, or one with something that is not supported.
        ToolchainError: onnx is not installed.
    """
    load_tvm()
    if isinstance(source, str | os.PathLike):
        return _from_onnx(_onnx_file(os.fspath(source)), os.fspath(source), shapes or {})
    kinds = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(source).mro()}
    if "onnx.ModelProto" in kinds:
        return _from_onnx(source, source.graph.name or "model", shapes or {})
    if kinds & {"torch.Module", "torch.ExportedProgram"}:
        return _from_torch(source, inputs)
    raise NetworkError(
        "expected the path of an ONNX file, a torch.nn.Module or an ExportedProgram, "
        f"got {shown(source)}"
    )


def _onnx_file(path: str) -> Any:
    try:
        import onnx
    except ImportError:
        raise NetworkError("reading ONNX needs onnx: pip install 'amos-mapper[onnx]'") from None
    if not os.path.isfile(path):
        raise NetworkError(f"model {path!r}: there is no such file")
    try:
        model = onnx.load(path)
        # Many writers leave out the shapes of results, which nothing here needs.
        if all(each.type.tensor_type.HasField("shape") for each in model.graph.output):
            onnx.checker.check_model(path)
    except Exception as error:  # protobuf and onnx each have errors of their own
        raise NetworkError(f"model {path!r} is no valid ONNX file: {last_line(error)}") from error
    return model


def _from_onnx(model: Any, name: str, shapes: Shapes) -> Any:
    from tvm.relax.frontend.onnx import from_onnx

    from amos.network.converters import own_converters

    known = _shapes(model, name, shapes)
    model = with_pairs(model, name)
    try:
        with own_converters(), redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return from_onnx(model, shape_dict=known)
    except Exception as error:
        said = f"model {name!r}: TVM cannot import it: {last_line(error)}"
        with _silent():  # TVM complains where a builder ends before its work is done
            traceback.clear_frames(error.__traceback__)
        raise NetworkError(said) from error


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing reaches standard error, from C++ either."""
    with open(os.devnull, "w") as nowhere:
        usual = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(usual, 2)
            os.close(usual)


def _shapes(model: Any, name: str, given: Shapes) -> dict[str, list[int]]:
    """Extents of each input.

    Raises:
        NetworkError: one is not known, or there is no such input.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if unknown := [each for each in given if each not in {value.name for value in inputs}]:
        names = ", ".join(value.name for value in inputs)
        raise NetworkError(f"model {name!r} has no input {unknown[0]!r}; inputs are {names}")
    shapes: dict[str, list[int]] = {}
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        if value.name in given:
            shapes[value.name] = _stated(value, name, given[value.name])
            continue
        if not value.type.tensor_type.HasField("shape"):
            raise NetworkError(
                f"model {name!r}: input {value.name!r} has no shape; state it: "
                f'shapes={{"{value.name}": (1, 3, 224, 224)}}'
            )
        for position, dim in enumerate(dims):
            if dim.dim_value < 1:
                example = tuple(d.dim_value or 1 for d in dims)
                raise NetworkError(
                    f"model {name!r}: dimension {dim.dim_param or position!r} of input "
                    f"{value.name!r} is dynamic; state it: "
                    f'shapes={{"{value.name}": {example}}}'
                )
        shapes[value.name] = [dim.dim_value for dim in dims]
    return shapes


def _stated(value: Any, name: str, shape: Sequence[int]) -> list[int]:
    extents = isinstance(shape, Sequence) and all(isinstance(e, int) and e > 0 for e in shape)
    dims, own = value.type.tensor_type.shape.dim, "any shape"
    fits = extents
    if value.type.tensor_type.HasField("shape"):
        own = f"shape ({', '.join(dim.dim_param or str(dim.dim_value or '?') for dim in dims)})"
        fits = extents and len(shape) == len(dims)
        fits = fits and all(dim.dim_value in (0, e) for e, dim in zip(shape, dims, strict=True))
    if not fits:
        got = tuple(shape) if isinstance(shape, Sequence) else shape
        raise NetworkError(f"model {name!r}: input {value.name!r} has {own}, got {shown(got)}")
    return list(shape)


def _from_torch(source: Any, inputs: Sequence[Any] | None) -> Any:
    import torch
    from tvm.relax.frontend.torch import from_exported_program

    name = type(source).__name__
    try:
        if isinstance(source, torch.nn.Module):
            if inputs is None:
                raise NetworkError(
                    f"module {name}: give example inputs, as in load_network(module, inputs=(x,))"
                )
            with torch.no_grad():
                source = torch.export.export(source.eval(), tuple(inputs))
        return from_exported_program(
            source, keep_params_as_input=False, unwrap_unit_return_tuple=True
        )
    except NetworkError:
        raise
    except Exception as error:  # what torch and TVM refuse, they refuse with many types
        raise NetworkError(f"module {name}: TVM cannot import it: {last_line(error)}") from error
