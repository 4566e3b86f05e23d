"""Models of ONNX: their files, the shapes that they leave open, and onnxruntime beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from amos.codegen.scheduling import last_line
from amos.errors import NetworkError, quote
from amos.machine.cpu import cpu
from amos.network.reading.branches import operators_of

#: Operators of ONNX and onnxruntime that add up products.
PRODUCT_OPERATORS = frozenset(
    ["Attention", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "Gemm", "GRU"]
    + ["LSTM", "MatMul", "MatMulInteger", "MatMulNBits", "MultiHeadAttention", "QGemm"]
    + ["QLinearConv", "QLinearMatMul", "RNN"]
)
#: Those of them that multiply bytes.
_BYTE_OPERATORS = frozenset(
    ["ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulInteger"]
    + ["MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul"]
)
#: Without it, onnxruntime adds products of bytes in 16 bits on CPUs that lack int8 dot products.
#: They saturate. The setting takes effect from its extended optimizations on.
_EXACT_SUMS = {"session.x64quantprecision": "1"}
#: Pairs of products of bytes with weights of this magnitude fit 16 bits.
_NARROW_WEIGHT = 64
#: Operators of ONNX that draw numbers, beside a ``Dropout`` that is told to.
RANDOM_OPERATORS = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"]
    + ["RandomUniformLike"]
)
#: Extents of inputs by name.
Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Reference:
    """Another program that runs a model.

    Attributes:
        name: of the program.
        evaluate: its results of inputs in order; ``None`` where it does not take the model.
    """

    name: str
    evaluate: Callable[[Sequence[np.ndarray]], Sequence[Any] | None]


def close_shapes(source: Any, shapes: Shapes | None) -> tuple[Any, dict[str, list[int]]]:
    """Open a model of ONNX; returns it with the extents of its inputs.

    Raises:
        NetworkError: this is no model, or an extent is not known.
    """
    model = open_model(source)
    check_shapes(shapes := {} if shapes is None else shapes)
    return model, _close_shapes(_file_or_title(source), open_shapes(model), shapes)


def _file_or_title(source: Any) -> str:
    """Return the name of a model in errors: the path of its file, or its title."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else title_of(source)


#: Extents of an input, or names of what is open; ``None`` where not even their number is known.
OpenShape = tuple[int | str, ...] | None


def open_shapes(model: Any) -> dict[str, OpenShape]:
    """Return the shapes of the inputs of an opened model, by name.

    Raises:
        NetworkError: an input is no tensor, or of no dtype.
    """
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
    import onnx

    try:
        onnx.checker.check_model(path)
    except Exception:
        if find_spec("onnxruntime") is None:
            raise
        with suppress(Exception):
            plain_session(path)
            return
        raise


def plain_session(source: Any, *, optimized: bool = False, threads: int = 0) -> Any:
    """Open a session of onnxruntime that runs an ONNX model node by node, or optimized.

    Where sums of bytes would saturate node by node, it is optimized as far as they do not.
    onnxruntime raises errors of its own types where it does not take the model.

    Args:
        source: file or model.
        optimized: let onnxruntime rewrite it.
        threads: that run a call; 0 for all cores.
    """
    model = source if cpu().has_int8_dot_products else load_onnx(source, all_weights=False)
    settings, level = dict(sum_settings(model)), "ORT_ENABLE_ALL"
    if not optimized:
        saturates = settings and _multiplies_bytes(model)
        level = "ORT_ENABLE_EXTENDED" if saturates else "ORT_DISABLE_ALL"
        # Between conversions, a node would become one of bytes, or one that is not valid.
        settings["session.disable_quant_qdq"] = "1"
    return create_session(source, level, settings, threads)


def create_session(
    source: Any, level: str, settings: Mapping[str, str], threads: int, library: str = ""
) -> Any:
    """Create a session of onnxruntime on this CPU, which logs nothing.

    onnxruntime raises errors of its own types.

    Args:
        source: file or model.
        level: name of the level at which the model is optimized.
        settings: of the session, by onnxruntime's names.
        threads: that run a call; 0 for all cores.
        library: path of a library of operators, if any.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    for name, value in settings.items():
        options.add_session_config_entry(name, value)
    if library:
        options.register_custom_ops_library(library)
    is_file = isinstance(source, str | os.PathLike)
    return onnxruntime.InferenceSession(
        os.fspath(source) if is_file else source.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )


def sum_settings(source: Any) -> Mapping[str, str]:
    """Return the settings of a session with which sums of products of bytes are exact.

    They slow products down, so there are none where the CPU's sums or the weights need none.

    Args:
        source: file or model.
    """
    import onnx

    if cpu().has_int8_dot_products:
        return {}
    graph = load_onnx(source, all_weights=False).graph
    weights = [each for each in graph.initializer if each.data_type == onnx.TensorProto.INT8]
    if weights and all(map(_is_narrow, weights)):
        return {}
    # onnxruntime would make weights invalid that are quantized in blocks.
    blocked = any(each.name == "block_size" for node in graph.node for each in node.attribute)
    return {} if blocked else _EXACT_SUMS


def _is_narrow(weight: Any) -> bool:
    """Return whether no pair of products of bytes with a weight overflows 16 bits."""
    import onnx

    if onnx.external_data_helper.uses_external_data(weight):
        return False
    values = onnx.numpy_helper.to_array(weight).astype(np.int16)
    return bool(np.abs(values).max(initial=0) <= _NARROW_WEIGHT)


def load_onnx(source: Any, *, all_weights: bool) -> Any:
    """Return a model of ONNX, of a file perhaps without the weights in files of their own."""
    import onnx

    is_file = isinstance(source, str | os.PathLike)
    return onnx.load(source, load_external_data=all_weights) if is_file else source


def _multiplies_bytes(model: Any) -> bool:
    """Return whether operators of a model multiply bytes."""
    graphs = (model.graph, *model.functions)
    return any(not _BYTE_OPERATORS.isdisjoint(operators_of(graph)) for graph in graphs)


def infer_by_onnxruntime(model: Any) -> list[Any]:
    """Declare the results of a model, which may have operators that only onnxruntime knows.

    There are none where it does not take the model.
    """
    from onnx import TensorProto, helper

    names = {"float": "FLOAT", "double": "DOUBLE"}
    try:
        ports = plain_session(model).get_outputs()
    except Exception:  # onnxruntime raises errors of its own types
        return []
    declared = []
    for port in ports:
        if not port.type.startswith("tensor("):  # a sequence or a map
            continue
        kind = port.type.removeprefix("tensor(").removesuffix(")")
        number = TensorProto.DataType.Value(names.get(kind, kind.upper()))
        declared.append(helper.make_tensor_value_info(port.name, number, port.shape))
    return declared


def onnxruntime_reference(source: Any) -> Reference | None:
    """Run an ONNX model node by node, where onnxruntime is installed."""
    if find_spec("onnxruntime") is None:
        return None

    def evaluate(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        try:
            session = plain_session(source)
            names = [port.name for port in session.get_inputs()]
            return [*session.run(None, dict(zip(names, arrays, strict=True)))]
        except Exception:  # it takes other dtypes, operators and sizes than TVM
            return None

    return Reference("onnxruntime", evaluate)


def check_shapes(shapes: object) -> None:
    """Refuse values that state no shapes.

    Raises:
        NetworkError: it is something else.
    """
    if not isinstance(shapes, Mapping):
        raise NetworkError(f"shapes: expected extents by input, got {quote(shapes)}")


def is_extent(size: object) -> bool:
    """Return whether something is an extent: a whole number, and not below 0."""
    return isinstance(size, int | np.integer) and not isinstance(size, bool) and int(size) >= 0


def _close_shapes(model: str, own: Mapping[str, OpenShape], stated: Shapes) -> dict[str, list[int]]:
    """Return the extents of each input.

    Raises:
        NetworkError: one is not known, or there is no such input.
    """
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
