"""onnxruntime: sessions on models, with AMOS's library or without, and their results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from amos.codegen.scheduling import last_line
from amos.errors import NetworkError
from amos.ir.floats import pack, unpack
from amos.machine.cpu import cpu
from amos.network.inputs import values_of
from amos.network.network import Port
from amos.network.packages import helper, onnx
from amos.network.reading.branches import operators_of

if TYPE_CHECKING:
    from amos.network.external.library import Library

#: Name of the model in a folder.
MODEL = "model.onnx"
#: Threads stop spinning when a call ends, and leave the cores to others of the process.
QUIET = {"session.force_spinning_stop": "1"}
#: By default onnxruntime rounds inputs to 8 bits where weights are quantized in blocks.
_EXACT = {"session.qdq_matmulnbits_accuracy_level": "1"}
#: A model of more bytes has its weights in a file of its own.
_LARGEST = 1 << 30
#: Operators that multiply bytes.
_BYTE_OPERATORS = frozenset(
    ["ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulInteger"]
    + ["MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul"]
)
#: Without it, onnxruntime adds products of bytes in 16 bits on CPUs that lack int8 dot products.
#: They saturate. The setting takes effect from its extended optimizations on.
_EXACT_SUMS = {"session.x64quantprecision": "1"}
#: Pairs of products of bytes with weights of this magnitude fit 16 bits.
_NARROW_WEIGHT = 64


@dataclass(frozen=True)
class Reference:
    """Another program that runs a model.

    Attributes:
        evaluate: its results of inputs in order; ``None`` where it does not take the model.
    """

    name: str
    evaluate: Callable[[Sequence[np.ndarray]], Sequence[Any] | None]


def load_onnx(source: Any, *, all_weights: bool) -> Any:
    """Return a model of ONNX, of a file perhaps without the weights in files of their own."""
    is_file = isinstance(source, str | os.PathLike)
    return onnx.load(source, load_external_data=all_weights) if is_file else source


def save_model(model: Any, folder: Path, name: str = MODEL) -> Path:
    """Write a model, with its weights in a file of their own where it is large."""
    large = model.ByteSize() > _LARGEST
    if large:  # onnx moves the weights out of the model that it is given
        model, original = onnx.ModelProto(), model
        model.CopyFrom(original)
    weights = f"{name.removesuffix('.onnx')}.data"
    onnx.save(model, folder / name, save_as_external_data=large, location=weights)
    return folder / name


def plain_session(source: Any, *, optimized: bool = False, threads: int = 0) -> Any:
    """Open a session of onnxruntime that runs an ONNX model node by node, or optimized.

    Where sums of bytes would saturate node by node, it is optimized as far as they do not.
    onnxruntime raises errors of its own types where it does not take the model.

    Args:
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
        level: name of the level at which the model is optimized.
        settings: of the session, by onnxruntime's names.
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


def explain_refusal(source: Any) -> str:
    """Return why onnxruntime does not take a model, or is not there; empty if it takes it."""
    try:
        plain_session(source)
    except Exception as error:  # of types of its own
        return last_line(error)
    return ""


def sum_settings(source: Any) -> Mapping[str, str]:
    """Return the settings of a session with which sums of products of bytes are exact.

    They slow products down, so there are none where the CPU's sums or the weights need none.
    """
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
    if onnx.external_data_helper.uses_external_data(weight):
        return False
    values = onnx.numpy_helper.to_array(weight).astype(np.int16)
    return bool(np.abs(values).max(initial=0) <= _NARROW_WEIGHT)


def _multiplies_bytes(model: Any) -> bool:
    """Return whether operators of a model multiply bytes."""
    graphs = (model.graph, *model.functions)
    return any(not _BYTE_OPERATORS.isdisjoint(operators_of(graph)) for graph in graphs)


def open_session(
    path: str | os.PathLike[str], library: Library | None, settings: Mapping[str, str]
) -> Any:
    """Open a session of onnxruntime on a model, unoptimized where it is not taken otherwise.

    Args:
        settings: of the session, by onnxruntime's names, such as ``QUIET``.

    Raises:
        NetworkError: onnxruntime is missing or does not take the model.
    """
    if find_spec("onnxruntime") is None:
        raise NetworkError("running a network needs onnxruntime: pip install 'amos-mapper[onnx]'")
    settings = {**_EXACT, **sum_settings(path), **settings}
    own = "" if library is None else str(library.path)
    errors = []
    # Its optimizer makes some models invalid that it runs as they are.
    for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"):
        try:
            return create_session(path, level, settings, cpu().cores, own)
        except Exception as error:  # onnxruntime raises types of its own
            errors.append(error)
    raise NetworkError(f"onnxruntime refuses the model: {last_line(errors[0])}") from errors[0]


def infer_by_onnxruntime(model: Any) -> list[Any]:
    """Declare the results of a model, which may have operators that only onnxruntime knows.

    There are none where it does not take the model.
    """
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
        number = onnx.TensorProto.DataType.Value(names.get(kind, kind.upper()))
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


class SessionRunner:
    """Runs a session on inputs in order; bfloat16 stands as float32 in arrays.

    Some networks take a few microseconds, and Python is slow after each of them, as they evict it
    from the caches: so a call does as little as it can.
    """

    def __init__(self, session: Any, ports: Sequence[Port]) -> None:
        self.session, self.ports, self.names = session, ports, [each.name for each in ports]
        outputs = session.get_outputs()
        types = {each.type for each in (*session.get_inputs(), *outputs)}
        self._has_bfloat16 = "tensor(bfloat16)" in types
        self._results = [each.name for each in outputs]
        kinds = {each.name: (_find_dtype(each), each.shape) for each in ports}
        # NumPy's float64 equals None, which stands for no dtype.
        self._inputs = {name: kind for name, kind in kinds.items() if kind[0] is not None}

    def takes(self, values: Mapping[str, Any]) -> bool:
        """Return whether :meth:`run` takes these: all inputs, as arrays of their dtypes and shapes.

        It takes none where there is bfloat16, which NumPy lacks.
        """
        if self._has_bfloat16:
            return False
        own = self._inputs
        for name, value in values.items():
            if type(value) is not np.ndarray or (value.dtype, value.shape) != own.get(name):
                return False
        return len(values) == len(self.names)

    def run(self, values: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """Run the session on inputs that it takes by name; onnxruntime raises types of its own."""
        results: Sequence[np.ndarray] = self.session.run(self._results, values)
        return results

    def __call__(self, arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
        """Run the session; returns all outputs.

        Raises:
            BuildError: an input is of another shape, dtype or device.
            RuntimeError: onnxruntime fails.
        """
        values = dict(zip(self.names, arrays, strict=True))
        if not self.takes(values):
            values = {x.name: values_of(x, y) for x, y in zip(self.ports, arrays, strict=True)}
        try:
            if not self._has_bfloat16:
                return tuple(self.run(values))
            return _run_bfloat16(self.session, self.ports, values)
        except Exception as error:  # onnxruntime raises types of its own
            raise RuntimeError(str(error)) from error


def _find_dtype(port: Port) -> np.dtype[Any] | None:
    """Find NumPy's dtype of an input; ``None`` where it has none of this name."""
    try:
        return np.dtype(port.dtype)
    except TypeError:
        return None


def _run_bfloat16(
    session: Any, ports: Sequence[Port], values: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, ...]:
    """Run a session of which a port is of bfloat16, a dtype that NumPy lacks."""
    from onnxruntime import OrtValue

    inputs = {}
    for port in ports:
        array = values[port.name]
        if port.dtype == "bfloat16":
            bits = pack(array, "bfloat16").view(np.uint16).reshape(array.shape)
            inputs[port.name] = OrtValue.ortvalue_from_numpy_with_onnx_type(
                bits, onnx.TensorProto.BFLOAT16
            )
        else:
            inputs[port.name] = OrtValue.ortvalue_from_numpy(array)
    names = [port.name for port in session.get_outputs()]
    return tuple(map(_from_value, session.run_with_ort_values(names, inputs)))


def _from_value(value: Any) -> np.ndarray:
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    import ctypes

    size = int(np.prod(value.shape()))
    words = (ctypes.c_uint16 * size).from_address(value.data_ptr()) if size else ()
    return unpack(np.array(words, np.uint16), "bfloat16", tuple(value.shape()))
