"""Sessions of onnxruntime: opened on models with AMOS's library, and run on arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from amos.codegen.scheduling import last_line
from amos.errors import NetworkError
from amos.ir.floats import pack, unpack
from amos.machine.cpu import cpu
from amos.network.external.library import Library
from amos.network.frontend import create_session, sum_settings
from amos.network.inputs import values_of
from amos.network.network import Port

#: Name of the model in a folder.
MODEL = "model.onnx"
#: Threads stop spinning when a call ends, and leave the cores to others of the process.
QUIET = {"session.force_spinning_stop": "1"}
#: By default onnxruntime rounds inputs to 8 bits where weights are quantized in blocks.
_EXACT = {"session.qdq_matmulnbits_accuracy_level": "1"}
#: A model of more bytes has its weights in a file of its own.
_LARGEST = 1 << 30


def save_model(model: Any, folder: Path, name: str = MODEL) -> Path:
    """Write a model, with its weights in a file of their own where it is large."""
    import onnx

    large = model.ByteSize() > _LARGEST
    if large:  # onnx moves the weights out of the model that it is given
        model, original = onnx.ModelProto(), model
        model.CopyFrom(original)
    weights = f"{name.removesuffix('.onnx')}.data"
    onnx.save(model, folder / name, save_as_external_data=large, location=weights)
    return folder / name


def open_session(
    path: str | os.PathLike[str], library: Library | None, settings: Mapping[str, str]
) -> Any:
    """Open a session of onnxruntime on a model, unoptimized where it is not taken otherwise.

    Args:
        path: of the model.
        library: of its operators.
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


def optimization_level(session: Any) -> str:
    """Return the name of the level at which onnxruntime optimizes the model of a session."""
    return str(session.get_session_options().graph_optimization_level.name)


class SessionRunner:
    """Runs a session on inputs in order; bfloat16 stands as float32 in arrays.

    Some networks take a few microseconds, and Python is slow after each of them, as they evict it
    from the caches: so a call does as little as it can.

    Attributes:
        session: of onnxruntime.
        ports: the inputs of its model.
        names: of these.
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
    from onnx import TensorProto
    from onnxruntime import OrtValue

    inputs = {}
    for port in ports:
        array = values[port.name]
        if port.dtype == "bfloat16":
            bits = pack(array, "bfloat16").view(np.uint16).reshape(array.shape)
            inputs[port.name] = OrtValue.ortvalue_from_numpy_with_onnx_type(
                bits, TensorProto.BFLOAT16
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
