"""Models of ONNX: their files, and the shapes that they leave open."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amos.codegen.scheduling import last_line
from amos.errors import NetworkError, quote
from amos.network.packages import onnx
from amos.network.sessions import explain_refusal

#: Operators of ONNX and onnxruntime that add up products.
PRODUCT_OPERATORS = frozenset(
    ["Attention", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "Gemm", "GRU"]
    + ["LSTM", "MatMul", "MatMulInteger", "MatMulNBits", "MultiHeadAttention", "QGemm"]
    + ["QLinearConv", "QLinearMatMul", "RNN"]
)
#: Operators of ONNX that draw numbers, beside a ``Dropout`` that is told to.
RANDOM_OPERATORS = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"]
    + ["RandomUniformLike"]
)
#: Extents of inputs by name.
Shapes = Mapping[str, Sequence[int]]


def close_shapes(source: Any, shapes: Shapes | None) -> tuple[Any, dict[str, list[int]]]:
    """Open a model of ONNX; return it with the extents of its inputs, all of them known."""
    model = open_model(source)
    check_shapes(shapes := {} if shapes is None else shapes)
    return model, _close_shapes(_file_or_title(source), open_shapes(model), shapes)


def _file_or_title(source: Any) -> str:
    """Return the name of a model in errors: the path of its file, or its title."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else title_of(source)


#: Extents of an input, or names of what is open; ``None`` where not even their number is known.
OpenShape = tuple[int | str, ...] | None


def open_shapes(model: Any) -> dict[str, OpenShape]:
    """Return the shapes of the inputs of an opened model, by name."""
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if not value.type.tensor_type.elem_type:
            title = title_of(model)
            raise NetworkError(f"model {title!r}: input {value.name!r} is no tensor with a dtype")
    return {
        value.name: tuple(map(_extent, kind.shape.dim)) if kind.HasField("shape") else None
        for value in model.graph.input
        for kind in [value.type.tensor_type]
        if value.name not in weights
    }


def _extent(dimension: Any) -> int | str:
    """Return a size, or the name, which may be empty, of an open one; some models write -1."""
    sized = dimension.HasField("dim_value") and dimension.dim_value >= 0
    return int(dimension.dim_value) if sized else str(dimension.dim_param)


def open_model(source: Any) -> Any:
    """Return a model in memory: loaded from a file, or as it is.

    Raises:
        NetworkError: this is no model, or no valid file.
    """
    if isinstance(source, str | os.PathLike):
        return _onnx_file(os.fspath(source))
    if not is_onnx(source):
        raise NetworkError(
            "expected the path of an ONNX file, a torch.nn.Module or an ExportedProgram, "
            f"got {quote(source)}"
        )
    return source


def title_of(source: Any) -> str:
    """Return the name of a model: of its file, its graph, or the class of a module."""
    if isinstance(source, str | os.PathLike):
        return Path(source).stem
    return str(source.graph.name or "model") if is_onnx(source) else type(source).__name__


def type_names(source: Any) -> set[str]:
    """Return the names of a value's types, with the packages that define them."""
    return {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(source).__mro__}


def is_onnx(model: Any) -> bool:
    """Return whether this is a model of ONNX in memory."""
    return "onnx.ModelProto" in type_names(model)


def _onnx_file(path: str) -> Any:
    try:
        import onnx
    except ImportError:
        raise NetworkError("reading ONNX needs onnx: pip install 'amos-mapper[onnx]'") from None
    if not os.path.isfile(path):
        why = "this is a folder" if os.path.isdir(path) else "there is no such file"
        raise NetworkError(f"model {path!r}: {why}")
    try:
        model = onnx.load(path)
        # Many writers leave out the shapes of results, which nothing here needs.
        if all(each.type.tensor_type.HasField("shape") for each in model.graph.output):
            _check_file(path)
    except Exception as error:  # protobuf and onnx each have errors of their own
        raise NetworkError(f"model {path!r} is no valid ONNX file: {last_line(error)}") from error
    return model


def _check_file(path: str) -> None:
    """Refuse a file that neither onnx's checker nor onnxruntime takes, with onnx's reason.

    onnxruntime needs no names of graphs, no order of nodes and no shapes of inputs.
    """
    try:
        onnx.checker.check_model(path)
    except Exception:
        if explain_refusal(path):
            raise


def check_shapes(shapes: object) -> None:
    """Raise NetworkError for values that state no shapes."""
    if not isinstance(shapes, Mapping):
        raise NetworkError(f"shapes: expected extents by input, got {quote(shapes)}")


def is_extent(size: object) -> bool:
    """Return whether something is an extent: a whole number, and not below 0."""
    return isinstance(size, int | np.integer) and not isinstance(size, bool) and int(size) >= 0


def _close_shapes(model: str, own: Mapping[str, OpenShape], stated: Shapes) -> dict[str, list[int]]:
    """Return the extents of each input."""
    if unknown := [name for name in stated if name not in own]:
        names = ", ".join(own)
        raise NetworkError(f"model {model!r} has no input {unknown[0]!r}; inputs are {names}")
    closed = {name: _check_shape(model, name, own[name], shape) for name, shape in stated.items()}
    by_name = _named_sizes(own, closed)
    for name, shape in own.items():
        if name in closed:
            continue
        if shape is None:
            raise NetworkError(
                f"model {model!r}: input {name!r} has no shape; state it: "
                f'shapes={{"{name}": (1, 3, 224, 224)}}'
            )
        extents = [each if isinstance(each, int) else by_name.get(each, -1) for each in shape]
        for position, extent in enumerate(extents):
            if extent < 0:
                example = tuple(1 if each < 0 else each for each in extents)
                sizes = ",".join(map(str, example))
                named = shape[position]
                buckets = f", or some sizes: --bucket {named}=1,4" if named else ""
                raise NetworkError(
                    f"model {model!r}: dimension {named or position!r} of input "
                    f'{name!r} is dynamic; state it: shapes={{"{name}": {example}}}, or '
                    f"--shape {name}={sizes}{buckets}"
                )
        closed[name] = extents
    return closed


def _named_sizes(
    own: Mapping[str, OpenShape], closed: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Return the sizes of dimensions by name, where closed shapes agree on them."""
    sizes: dict[str, set[int]] = {}
    for name, shape in closed.items():
        for extent, size in zip(own[name] or (), shape, strict=False):
            if isinstance(extent, str) and extent:
                sizes.setdefault(extent, set()).add(size)
    return {name: size for name, (size, *more) in sizes.items() if not more}


def _check_shape(model: str, name: str, own: OpenShape, shape: Sequence[int]) -> list[int]:
    fits = isinstance(shape, Sequence) and all(map(is_extent, shape))
    if own is not None:
        fits = fits and len(shape) == len(own)
        fits = fits and all(n in ("", s, str(n)) for n, s in zip(own, shape, strict=True))
    if not fits:
        got = tuple(shape) if isinstance(shape, list) else shape
        extents = ", ".join("?" if each == "" else str(each) for each in own or ())
        has = "any shape" if own is None else f"shape ({extents})"
        raise NetworkError(f"model {model!r}: input {name!r} has {has}, got {quote(got)}")
    return list(map(int, shape))
